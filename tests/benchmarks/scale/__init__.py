"""The parts of `bench_scale`."""
