"""Keeps SGLang servers running on a rollout host."""

from cojax.serving.command import start as main

if __name__ == "__main__":
    main()
