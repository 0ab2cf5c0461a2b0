"""Threads, processes and clocks of the host."""
