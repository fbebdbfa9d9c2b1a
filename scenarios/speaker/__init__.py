"""How the shipped model that speaks was made: what it learned (`text`) and the recipe that trained it (`train`)."""
