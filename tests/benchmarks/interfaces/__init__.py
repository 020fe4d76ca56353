"""Figures of the interfaces: HTTP beside gRPC, and a look-up by message id beside an echo."""
