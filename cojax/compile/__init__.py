"""Compiles a run's learner for accelerators that are not present, and says whether it fits and what it costs."""
