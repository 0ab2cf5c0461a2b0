"""π_θ: the transformer, its parameters and how they are spread; arrays only."""
