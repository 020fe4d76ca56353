"""Keys that Redis does not hold; they authenticate heartbeats, calls between replicas, pointer and policy."""
