"""The process: signals, the composition root, supervised workers, background tasks."""
