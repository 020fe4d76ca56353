"""How a partition becomes visible: the fence, the one transaction, and the files that no transaction holds."""
