"""Does a run fit accelerators that are not here, and what does it cost?"""

from cojax.compile.command import start

if __name__ == "__main__":
    start()
