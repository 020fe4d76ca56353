"""Chooses a request's path and replica: a pure decision (`policy`) over a snapshot, refreshed in the background."""
