"""The releases that this process has loaded: variants, published scores, statistics."""
