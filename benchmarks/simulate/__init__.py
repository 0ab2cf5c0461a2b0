"""Simulates training steps from the times that runs recorded: python -m experiments.simulate RUN …."""
