"""Judges a release: its variants against fp32, its speed on this machine, its accuracy on labelled texts."""
