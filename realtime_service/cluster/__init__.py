"""The other replicas: who they are, how they are, and calls that are forwarded to them."""
