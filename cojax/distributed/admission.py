"""Whether the processes of a run fit together: the same code and settings, and folders that all of them see."""

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.distributed.start import DistributedError
from cojax.distributed.wire import Wire, WireError
from cojax.storage.differences import differences
from cojax.storage.files import missing_folders, remove_empty

_POLL = 0.1


def admit(
    wire: Wire,
    processes: int,
    facts: Mapping[str, Any],
    folders: Mapping[str, Path],
    deadline: float,
    *,
    keep: bool = True,
) -> None:
    """In process 0: compares every process's facts with its own, and has each read a file in each of the `folders`.

    `folders` are by the setting that names them. All processes learn the outcome. Folders that were not there before
    stay only if all are admitted, and if `keep`. Raises DistributedError, which names the process and what differs.
    """
    missing = [path for folder in folders.values() for path in missing_folders(folder)]
    missing.sort(key=lambda path: len(path.parts), reverse=True)
    try:
        _compare(wire, processes, facts, folders, deadline)
    except BaseException:
        remove_empty(missing)
        raise
    if not keep:
        remove_empty(missing)


def _compare(
    wire: Wire, processes: int, facts: Mapping[str, Any], folders: Mapping[str, Path], deadline: float
) -> None:
    theirs = _answers(wire, processes, "facts", deadline)
    faults = [
        f"process {number} has other settings, versions or code than process 0: {found}"
        for number in sorted(theirs)
        if (found := differences(facts, theirs[number]["facts"]))
    ]
    for setting, folder in folders.items():
        faults = faults or _unseen_by(wire, processes, setting, folder, deadline)
    fault = "; ".join(faults)
    wire.send({"kind": "verdict", "fault": fault})
    if fault:
        raise DistributedError(fault)


def _unseen_by(wire: Wire, processes: int, setting: str, folder: Path, deadline: float) -> list[str]:
    """Which of the other processes do not see the folder of this setting."""
    token = folder / f".seen-{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        token.write_text(token.name)
        wire.send({"kind": "read", "path": str(token.absolute())})
        return [
            f"process {number} does not see {folder.absolute()}: {answer['fault']}. Set --config.{setting} to a "
            "folder that all hosts share under one path"
            for number, answer in sorted(_answers(wire, processes, "seen", deadline).items())
            if answer["fault"]
        ]
    finally:
        token.unlink(missing_ok=True)


def ask_admission(wire: Wire, facts: Mapping[str, Any], deadline: float) -> None:
    """In every other process: answers process 0. Raises DistributedError where it refuses."""
    wire.send({"kind": "facts", "facts": facts})
    while True:
        try:
            _, message = wire.receive(2 * deadline)
        except WireError as error:
            raise DistributedError(f"process 0 does not answer: {error}") from error
        if message.get("kind") == "verdict":
            if message["fault"]:
                raise DistributedError(message["fault"])
            return
        if message.get("kind") == "read":
            wire.send({"kind": "seen", "fault": unseen(Path(message["path"]), deadline)})


def unseen(path: Path, deadline: float) -> str:
    """Why the file cannot be read; empty once it can. A network's folder may show it late."""
    until = time.monotonic() + deadline / 2
    while True:
        try:
            os.listdir(path.parent)  # a cached listing is read anew
            found = path.read_text()
            return "" if found == path.name else f"{path} holds something else there"
        except OSError as error:
            if time.monotonic() > until:
                return f"{path.name}, which process 0 wrote there, is missing ({error.strerror})"
        time.sleep(_POLL)


def _answers(wire: Wire, processes: int, kind: str, deadline: float) -> dict[int, Mapping[str, Any]]:
    """The message of this kind from each of the other processes."""
    found: dict[int, Mapping[str, Any]] = {}
    until = time.monotonic() + deadline
    while len(found) < processes - 1:
        try:
            number, message = wire.receive(max(0.01, until - time.monotonic()))
        except WireError as error:
            missing = ", ".join(str(number) for number in range(1, processes) if number not in found)
            raise DistributedError(f"process {missing} does not answer: {error}") from error
        if message.get("kind") == kind:
            found[number] = message
    return found
