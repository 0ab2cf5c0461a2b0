"""What a run keeps on disk: its directory, logs, checkpoints, and the proof that they are whole."""
