"""One file a model format."""
