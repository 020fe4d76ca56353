"""The parts of `make bench-peers`: other servers with the same graph, their environments, and what h2load says."""
