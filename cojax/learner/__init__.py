"""Stage 1's update: batches, advantages, losses, the jitted step; arrays only."""
