"""Spark as the driver sees it: the session, its slots and GPUs, and why a job failed."""
