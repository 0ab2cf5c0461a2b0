"""Keeps SGLang servers running on a rollout host."""

from cojax.serving.command import start

if __name__ == "__main__":
    start()
