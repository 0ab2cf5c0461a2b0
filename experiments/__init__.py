"""Commands and configurations; the only place that reads a ConfigDict."""
