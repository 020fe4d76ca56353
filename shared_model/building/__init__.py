"""Builds a release from a model folder: reads, converts, quantises, seals. Loads frameworks; serving does not."""

import os

# Before nncf is imported: it reports its use to Google Analytics, and writes to ~, unless it runs in CI.
os.environ.setdefault("NNCF_CI", "1")
