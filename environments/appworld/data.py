"""AppWorld's data roots: their names and folders, and how to make and check them. Standard library only.

    $COJAX_CACHE/appworld/official          the benchmark's own data, downloaded or copied there by hand
    $COJAX_CACHE/appworld/tiny              built here from the installed package
    $COJAX_CACHE/appworld/ROOT-public       a copy without any `ground_truth`: all that model code may see

Each has the layout of the package's APPWORLD_ROOT. A root is made in another folder and then renamed. Its stamp says
which version made it, so that no stale or incomplete root is used. The public twin is a copy, without links: a write
through a link would reach the root on which verdicts rest.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..worker.venv import ROOT, InstallError, Recipe, cache, home, lock, write_whole

RECIPE = Recipe(
    requirements=("appworld==0.1.3.post1",),
    # This does what `appworld install` does, but the package's tests go there too, not into the user's home.
    prepare="import os, sys; os.environ['APPWORLD_CACHE'] = sys.prefix + '/package'; "
    "from appworld.install import install_package; install_package()",
    proof="import appworld.apps.spotify.models",
)
# The first is the default of an installation.
ROOTS = ("official", "tiny")
SPLITS = ("train", "dev", "test_normal", "test_challenge")

_STAMP = "stamp.json"
_TRUTH = "ground_truth"
# Deadlines in seconds: the server's first answer, the whole download, the build.
_PATIENCE, _DOWNLOAD, _BUILD = 15, 1_800, 600
_PROBE = """
import requests
from appworld.download import S3_BASE_URL
answer = requests.head(S3_BASE_URL + "data-0.1.0.bundle", timeout=5)
raise SystemExit(0 if answer.ok else f"the server answered {answer.status_code}")
"""


def root(name: str) -> Path:
    """The data root of that name, with ground truth: APPWORLD_ROOT for a process that runs no model code.

    Raises InstallError, which says what to do, if the root does not exist or another version made it.
    """
    folder = _place(name)
    if not is_current(name):
        problem = "is stale" if (folder / _STAMP).exists() else "is not there"
        raise InstallError(f"AppWorld's {name} data {problem} ({folder}). {_ways(name)}")
    return folder


def public(name: str) -> Path:
    """The root's public twin, for processes that run model code. Raises InstallError as `root` does."""
    root(name)
    return _twin(name)


def tasks(name: str, split: str) -> list[str]:
    """The ids of a split's tasks, in the benchmark's order; the part before `_` is the scenario."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} not found; available: {', '.join(SPLITS)}")
    lines = (public(name) / "data" / "datasets" / f"{split}.txt").read_text().splitlines()
    return [line.partition(":")[0].strip() for line in lines if line.strip()]


def specs(name: str, task: str) -> dict[str, Any]:
    """What an agent may know of a task: `instruction`, `supervisor`, `datetime`."""
    return json.loads((_task(public(name), task) / "specs.json").read_text())


def solution(name: str, task: str) -> tuple[str, ...]:
    """The code blocks of a task's reference solution; none where the benchmark withholds it (its test splits).

    Only trusted processes may call this, as it reads ground truth.
    """
    truth = _task(root(name), task) / _TRUTH
    if (truth / "blocks.json").exists():
        return tuple(json.loads((truth / "blocks.json").read_text()))
    if (truth / "compiled_solution.py").exists():
        return ((truth / "compiled_solution.py").read_text() + "\nsolution(apis, requester)\n",)
    return ()


def provide(name: str, python: str, say: Callable[[str], None]) -> None:
    """Makes that root and its public twin, or reports that they exist. `python` is the interpreter with the package.

    It never overwrites existing data: it checks and uses official data that was copied there by hand. Raises
    InstallError, which says what to do.
    """
    with lock(_place(name), f"AppWorld's {name} data", say, mode=0o700):
        _provide(name, python, say)


def _provide(name: str, python: str, say: Callable[[str], None]) -> None:
    folder = _place(name)
    for leftover in folder.parent.glob(f".{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if is_current(name):
        say(f"appworld: {name} data already in {folder}")
        return
    workspace = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    try:
        if name == "tiny":
            say(f"appworld: building tiny data in {folder}")
            builder = [python, "-m", f"{__package__}.tiny", str(workspace / "root")]
            _run(builder, _BUILD, "cannot build the tiny data", workspace / "root")
        elif (folder / "data").exists():
            say(f"appworld: checking the data found in {folder}")
            (workspace / "root").mkdir(mode=0o700)
        else:
            say(f"appworld: downloading the official data into {folder}")
            _download(python, workspace / "root")
        data = next(parent / "data" for parent in (workspace / "root", folder) if (parent / "data").exists())
        if flaw := next(_flaws(data), ""):
            raise InstallError(f"AppWorld's {name} data is incomplete: {flaw}. {_ways(name)}")
        say("appworld: copying what model code may see")
        shutil.copytree(data, workspace / "public" / "data", ignore=shutil.ignore_patterns(_TRUTH))
        _settle(name, workspace)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    say(f"appworld: {name} data ready in {folder}")


def _settle(name: str, making: Path) -> None:
    """Renames the new folders into place, then stamps them, so that neither is used before it is complete."""
    folder = _place(name)
    by_hand = not (making / "root" / "data").exists()
    for source, target in ((making / "public", _twin(name)), (making / "root", folder)):
        if source.name == "public" or not by_hand:
            if target.exists():
                target.rename(making / f"old-{target.name}")
            source.chmod(0o700)
            source.rename(target)
        target.chmod(0o700)
        write_whole(target / _STAMP, json.dumps(_expected_stamp(name)))


def _place(name: str) -> Path:
    if name not in ROOTS:
        raise InstallError(f"AppWorld's data {name!r} not found; available: {', '.join(ROOTS)}")
    folder = cache() / "appworld" / name
    if "memory" in str(folder):
        raise InstallError(
            f"the path {folder} contains 'memory', which AppWorld takes for a database held in memory; "
            "set COJAX_CACHE to a folder without it"
        )
    return folder


def _twin(name: str) -> Path:
    return _place(name).with_name(f"{name}-public")


def _task(folder: Path, task: str) -> Path:
    if not re.fullmatch(r"[0-9a-zA-Z]+_[0-9]+", task):
        raise ValueError(f"{task!r} is no task of AppWorld; expected an id like 82e2fac_1")
    return folder / "data" / "tasks" / task


def _expected_stamp(name: str) -> dict[str, str]:
    """The stamp of a root of this version."""
    stamp = {"package": RECIPE.requirements[0]}
    if name == "tiny":
        digest = hashlib.sha256()
        sources = sorted(Path(__file__).with_name("tiny").iterdir())
        for source in (path for path in sources if path.suffix in (".py", ".md", ".json")):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
        stamp["builder"] = digest.hexdigest()[:16]
    return stamp


def is_current(name: str) -> bool:
    """Whether the root and its twin both exist and this version made them."""
    for folder in (_place(name), _twin(name)):
        try:
            if json.loads((folder / _STAMP).read_text()) != _expected_stamp(name):
                return False
        except (OSError, ValueError):
            return False
    return True


def _ways(name: str) -> str:
    """Says how a user can get that data."""
    install = "cojax install appworld"
    if name == "tiny":
        return f"Run: {install} --data=tiny"
    return (
        f"Ways forward:\n  {install} --data=tiny   builds a small root here, without a network\n"
        f"  {install}   downloads the official data, where there is a network, or takes what you put at "
        f"{_place(name) / 'data'}"
    )


def _download(python: str, folder: Path) -> None:
    """Downloads with the package's own code, into a new folder, as that code deletes existing data."""
    command = [python, "-m", "appworld.cli", "download", "data", "--root", str(folder)]
    try:
        _run([python, "-c", _PROBE], _PATIENCE, "its server cannot be reached", folder)
        output = _run(command, _DOWNLOAD, "the download broke off", folder)
        if not (folder / "data").exists():
            raise InstallError(f"the package's download left nothing: {output.strip()[-500:]}")
    except InstallError as error:
        raise InstallError(f"AppWorld's official data is not available: {error}\n{_ways('official')}") from error


def _run(command: list[str], deadline: float, complaint: str, folder: Path) -> str:
    """Makes `folder`, runs the command in it, and returns its output."""
    folder.mkdir(mode=0o700, exist_ok=True)
    variables = {
        "APPWORLD_ROOT": str(folder),
        "APPWORLD_CACHE": str(home("appworld") / "package"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=deadline, cwd=folder, env={**os.environ, **variables}
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"{complaint}: no end within {deadline} seconds") from error
    except OSError as error:
        raise InstallError(f"{complaint}: {error}") from error
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines()
        raise InstallError(f"{complaint}: {lines[-1][:500] if lines else f'exit status {process.returncode}'}")
    return process.stdout


def _flaws(data: Path) -> Iterator[str]:
    """Says what a data folder lacks."""
    for kind, pattern, count in (("api_docs/standard", "*.json", 11), ("base_dbs", "*.db", 12)):
        file_count = len(list((data / kind).glob(pattern)))
        if file_count < count:
            yield f"{data / kind} has {file_count} files {pattern}, expected {count}"
    for split in SPLITS:
        list_file = data / "datasets" / f"{split}.txt"
        if not list_file.exists():
            yield f"{list_file} is missing"
            continue
        for line in list_file.read_text().split():
            folder = data / "tasks" / line.partition(":")[0]
            for name in ("specs.json", "dbs", f"{_TRUTH}/evaluation.py", f"{_TRUTH}/test_data.json"):
                if not (folder / name).exists():
                    yield f"{folder / name} is missing"
