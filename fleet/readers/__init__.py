"""One file a foreign fleet format."""
