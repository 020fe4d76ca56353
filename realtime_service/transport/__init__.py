"""gRPC and HTTP: listener, health, authentication, streams."""
