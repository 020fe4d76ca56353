"""Shared by the client library and by replicas that call each other: keepalive, and which failures may be retried."""
