"""Between writing and committing: what was written is read back, held against the day before, and judged."""
