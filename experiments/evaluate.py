"""Measures the success of a checkpoint, a model folder or an endpoint."""

from cojax.evaluation.command import start as main

if __name__ == "__main__":
    main()
