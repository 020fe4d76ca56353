"""What callers are promised while parts fail, as tests on real processes: one fault a file.

The suite runs each with few calls and judges what became of them; `make proof` runs it at full size, holds the times,
too, and reports them.
"""
