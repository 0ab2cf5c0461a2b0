"""Does a run fit accelerators that are not here, and what does it cost?"""

from cojax.compile.command import start as main

if __name__ == "__main__":
    main()
