"""Published epochs: the scores of one partition and release, kept in Redis for the online service.

An epoch goes live only after it was written completely, counted and verified; the pointer moves forward in (ds, token).
"""
