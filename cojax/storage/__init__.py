"""Files of runs and evaluations: directories, logs, episodes, checkpoints, and the checksums that verify them."""
