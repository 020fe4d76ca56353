"""The life of a request between transport and execution, and of deferred requests."""
