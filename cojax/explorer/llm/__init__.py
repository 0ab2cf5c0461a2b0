"""The explorer with a language model: prompts, calls to the model, and checks of its replies."""
