"""One file for each experiment, the study, and a short file for each command."""
