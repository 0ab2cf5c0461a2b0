"""Threads, processes and time on the host."""
