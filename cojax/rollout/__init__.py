"""Stage 1: plays episodes of tasks; rendering of text to tokens and back, and the engines that sample."""
