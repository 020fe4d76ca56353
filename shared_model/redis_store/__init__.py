"""Everything about Redis itself: key names, clients, and the embedded server of one machine."""
