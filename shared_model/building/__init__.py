"""Makes a release from a model folder: read, converted, quantised, sealed. Loads frameworks; serving does not."""
