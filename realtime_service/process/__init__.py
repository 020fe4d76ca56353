"""The serving process: signals, composition root, supervised workers, background tasks."""
