"""Attacks on a running service, made with its code in hand, and what a good caller sees meanwhile."""
