"""Drives the schedulers on real engines: one scheduler for each device, one thread for each stream."""
