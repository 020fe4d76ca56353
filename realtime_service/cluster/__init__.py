"""The other replicas: membership, outlier detection, and forwarding of calls."""
