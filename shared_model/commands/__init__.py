"""The commands of `python -m shared_model`, one module per subject; each adds its parsers."""
