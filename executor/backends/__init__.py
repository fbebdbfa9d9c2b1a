"""One backend a file, found by its file name."""
