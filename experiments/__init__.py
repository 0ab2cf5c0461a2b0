"""Experiments, one a file; the study; and a file of a few lines that starts each command."""
