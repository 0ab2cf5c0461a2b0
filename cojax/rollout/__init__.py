"""Stage 1's episodes: text to tokens and back, and the engines that sample."""
