"""One run in several processes: process 0 leads, the others compute what it tells them to."""
