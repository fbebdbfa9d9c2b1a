"""Where to place a split on a whole fleet: what cannot be told apart is looked at once, the rest is exact."""
