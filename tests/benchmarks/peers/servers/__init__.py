"""Servers of other makes, each a script for the Python of its own environment. None imports Tandem."""
