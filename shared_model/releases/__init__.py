"""Releases: one checkpoint with all its variants, immutable, built once and copied, verified before use."""
