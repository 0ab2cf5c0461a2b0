"""The program of a child process: child.py OWNER REPORT FOLDERS NAME … runs `cojax NAME …`.

OWNER and REPORT are the numbers of two pipes (cojax/host/processes.py). FOLDERS is a JSON list of folders of the
parent's import path, which are searched after all others. This file is run by its path, so that it finds the parent's
cojax, whatever is installed, and with -P, so that no folder of the user comes first.
"""

import json
import sys
from pathlib import Path

_IMPORT_FOLDER = str(Path(__file__).resolve().parents[2])


def main() -> int:
    sys.path.insert(0, _IMPORT_FOLDER)
    from cojax.command import main as command
    from cojax.host.processes import end_with_owner

    sys.path.remove(_IMPORT_FOLDER)
    owner_pipe, report_pipe, folders_json, *arguments = sys.argv[1:]
    end_with_owner(int(owner_pipe), int(report_pipe))
    sys.path += [folder for folder in json.loads(folders_json) if folder not in sys.path]
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
