"""The task of an executor: its device and engine, tokenisation ahead of the engine, and texts that cannot be scored."""
