"""Threads, deadlines, processes and clocks of the host."""
