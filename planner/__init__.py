"""What would move, and whether it is admitted. Pure functions: no clock, no randomness, no files."""
