"""Suite `gpu`: what a card is worth, in a bounded number of minutes, each result written as soon as it is there."""
