"""Judges mutated run directories by the code that resumes, in a process of its own as that loads JAX.

python -m campaign.resumption judge FOLDER SEED ID …    a JSON line a mutation: [[count, id, reason], …]
python -m campaign.resumption arrays FOLDER OTHER       exit status 1 where the last checkpoints differ
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from campaign.cases import ROOT, Violation, child, draw

# One mutation in so many is judged by the whole command.
_WHOLE = 12


def inject(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
    """Judges all mutations in one process, except those that the whole command judges."""
    from campaign import runs

    whole = runs.reference(folder)
    mutated = folder / "mutated"
    shutil.copytree(whole.folder, mutated)
    # By the id alone, so that a case played by itself has the same judge.
    by_command = [id for id in ids if draw(seed, f"{id} judge").random() < 1 / _WHOLE]
    others = [id for id in ids if id not in set(by_command)]
    words = ["campaign.resumption", "judge", str(mutated), str(seed)]
    found = judged(words, others, done) if others else []
    for id in by_command:
        found += _judge_by_command(id, seed, folder / f"mutated-{id}", whole)
        done()
    return found


def judged(words: Sequence[str], ids: Sequence[str], done: Callable[[], None]) -> list[Violation]:
    """The violations by a process of this module and these words, which prints a JSON line for each of the ids."""
    found, answered = [], 0
    command = child(*words, *ids)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            answered += 1
            done()
            found += [Violation(*parts) for parts in json.loads(line)]
    if process.returncode or answered != len(ids):
        found.append(Violation("lost", ids[0], f"the process {words[0]} ended with {process.returncode}"))
    return found


def _judge_by_command(id: str, seed: int, folder: Path, whole: Any) -> list[Violation]:
    """Mutates the finished run's folder and starts the command once more."""
    from campaign import runs

    shutil.copytree(whole.folder, folder)
    name = _mutate(folder, draw(seed, id))
    before = _contents(folder)
    reason = runs.finish(folder)
    words = folder.with_suffix(".said").read_text(errors="replace")
    wrong = ""
    if "Traceback" in words:
        wrong = f"a traceback: {runs.last_line(folder)}"
    elif not reason:
        if names := runs.differing(folder, whole):
            wrong = f"goes on, and {names[0]} differs"
    elif not any(line.startswith("error: ") for line in words.splitlines()):
        wrong = reason
    elif gone := {path for path, content in before.items() if not path.is_file() or path.read_bytes() != content}:
        wrong = f"refused, but {min(gone).relative_to(folder)} was changed"
    shutil.rmtree(folder)
    return [Violation("lost", id, f"{name}: {wrong}")] if wrong else []


def _mutate(folder: Path, rng: Any) -> str:
    """Mutates a file at random; returns the file's name and the mutation."""
    from campaign import mutations

    while True:
        path, kind = rng.choice(mutations.targets(folder)), rng.choice(mutations.KINDS)
        if mutations.apply(folder, path, kind, rng):
            return f"{path.relative_to(folder)} {kind}"


def _contents(folder: Path) -> dict[Path, bytes]:
    """The contents of all files except those that every start writes."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "run.log"))
    return {path: path.read_bytes() for path in files if path.name != "config.json"}


def judge(folder: Path, seed: int, ids: Sequence[str]) -> None:
    """Mutates one file after another, judges it and restores it."""
    from campaign import mutations

    whole = mutations.Whole.of(folder)
    for id in ids:
        rng = draw(seed, id)
        while True:
            path, kind = rng.choice(mutations.targets(folder)), rng.choice(mutations.KINDS)
            content = path.read_bytes()
            if mutations.apply(folder, path, kind, rng):
                break
        verdict, words = mutations.judge(folder, path, whole)
        wrong = [("lost", id, f"{path.relative_to(folder)} {kind}: {words}")] if verdict == "lost" else []
        print(json.dumps(wrong), flush=True)
        mutations.restore(path, content)


def arrays(one: Path, other: Path) -> str:
    """How many arrays of the last checkpoints differ, in words; "" where they are equal."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    def read(folder: Path) -> list[Any]:
        last = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
        restored = ocp.Checkpointer(ocp.StandardCheckpointHandler()).restore(last / "arrays")
        return [np.asarray(leaf) for leaf in jax.tree.leaves(restored)]

    pairs = list(zip(read(one), read(other), strict=True))
    count = sum(mine.tobytes() != theirs.tobytes() for mine, theirs in pairs)
    return f"{count} of {len(pairs)}" if count else ""


def main(what: str, folder: str, other: str, *ids: str) -> int:
    if what == "arrays":
        differ = arrays(Path(folder), Path(other))
        print(differ)
        return int(bool(differ))
    judge(Path(folder), int(other), ids)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
