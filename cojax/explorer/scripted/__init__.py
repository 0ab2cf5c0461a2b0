"""The explorer without a language model: it walks along what the environment offers and words it by a grammar."""
