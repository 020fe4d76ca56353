"""scoring.v1: translation between its messages and the dispatcher."""
