"""Deferred requests that no idle lane took by day: claimed, answered from the table or by Spark, and committed."""
