"""The Delta tables of scores and quarantined lines: the fence, the one transaction, and files outside any commit."""
