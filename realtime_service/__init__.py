"""The online service: gRPC in, one scheduler per device, three lanes, answers inside their deadlines."""
