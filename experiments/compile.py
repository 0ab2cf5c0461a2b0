"""Does a run fit accelerators that are not here, and what does it cost?"""

from cojax.compile.__main__ import start

if __name__ == "__main__":
    start()
