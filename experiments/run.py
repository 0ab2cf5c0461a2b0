"""Trains by a configuration, or goes on with a run; --check only tries everything."""

from cojax.run.command import start

if __name__ == "__main__":
    start()
