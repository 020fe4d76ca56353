"""The groups of `make bench-router`, one a file: each measures one round and returns figure → value."""
