"""Tests, on real processes, of the promises to callers while parts fail: one fault per file.

The suite runs each with few calls and checks their outcomes; `make proof` runs it at full size, checks the times,
too, and reports them.
"""
