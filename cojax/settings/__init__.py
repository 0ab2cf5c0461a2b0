"""Every setting once, and how a configuration is read."""
