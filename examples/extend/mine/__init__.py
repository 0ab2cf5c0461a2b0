"""A loss, an advantage, a weighting, a signal and a curriculum of one's own: docs/extending.md says how to run them."""
