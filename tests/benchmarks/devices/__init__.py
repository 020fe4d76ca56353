"""The parts of `bench_devices`."""
