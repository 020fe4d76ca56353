"""The parts of `make bench-online`: a load generator, what it loads, what that is compared with, and the arithmetic."""
