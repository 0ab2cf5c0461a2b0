"""Says whether a run fits accelerators that are not here, and what it costs."""

from cojax.compile.command import run_command as main

if __name__ == "__main__":
    main()
