"""SGLang servers on a rollout host, and the weights that reach them."""
