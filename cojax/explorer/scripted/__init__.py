"""The explorer without a language model: it acts by what would work now and words drafts by a grammar."""
