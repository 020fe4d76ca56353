"""Published epochs: one set of scores for a partition and release, kept in Redis for the online service.

An epoch is written whole, counted and checked, and only then pointed to; the pointer moves forward in (ds, token).
"""
