"""Scores of the texts in a data frame, as the nightly run computes them: of Spark, pandas, Polars or Arrow."""
