"""Shared by the client library and by replicas: keepalive, TLS credentials, and which failures may be retried."""
