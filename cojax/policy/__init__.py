"""π_θ: the transformer, its parameters and their layout over devices; this package knows arrays only."""
