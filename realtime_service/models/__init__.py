"""The loaded releases: variants, published scores, statistics."""
