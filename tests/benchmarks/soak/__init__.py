"""A small deployment that runs for hours, with everything that operators and callers do to it."""
