"""Builds a release from a model folder: reads, converts, quantises, seals. Loads frameworks; serving does not."""
