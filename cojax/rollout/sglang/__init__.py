"""Rollouts from SGLang servers: requests, weights, servers' health, and servers started here."""
