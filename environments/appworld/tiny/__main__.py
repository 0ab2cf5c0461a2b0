"""python -m environments.appworld.tiny ROOT: builds a tiny data root in an empty folder, and proves it."""

import os
import sys
from pathlib import Path


def main(root: str) -> None:
    folder = Path(root).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # The package reads this once, when it is first imported.
    os.environ["APPWORLD_ROOT"] = str(folder)
    from .build import build
    from .prove import prove

    tasks = build(folder)
    if complaints := prove(folder, tasks):
        sys.exit("\n".join(complaints))
    print(f"{len(tasks)} tasks in {folder}, each solved by its solution")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m environments.appworld.tiny ROOT")
    main(sys.argv[1])
