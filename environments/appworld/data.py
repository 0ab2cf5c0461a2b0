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

_STAMP_FILE = "stamp.json"
_TRUTH = "ground_truth"
# Seconds that the server's first answer, the whole download and the build may take.
_SERVER_TIMEOUT_S, _DOWNLOAD_TIMEOUT_S, _BUILD_TIMEOUT_S = 15, 1_800, 600
_NETWORK_PROBE = """
import requests
from appworld.download import S3_BASE_URL
answer = requests.head(S3_BASE_URL + "data-0.1.0.bundle", timeout=5)
raise SystemExit(0 if answer.ok else f"the server answered {answer.status_code}")
"""


def find_root(root_name: str) -> Path:
    """The data root of that name, with ground truth: APPWORLD_ROOT for a process that runs no model code.

    Raises InstallError, which says what to do, if the root does not exist or another version made it.
    """
    root_folder = _root_folder(root_name)
    if not is_current(root_name):
        problem = "is stale" if (root_folder / _STAMP_FILE).exists() else "is not there"
        raise InstallError(f"AppWorld's {root_name} data {problem} ({root_folder}). {_advise(root_name)}")
    return root_folder


def find_public_root(root_name: str) -> Path:
    """The root's public twin, for processes that run model code. Raises InstallError as `find_root` does."""
    find_root(root_name)
    return _public_folder(root_name)


def read_task_ids(root_name: str, split: str) -> list[str]:
    """The ids of a split's tasks, in the benchmark's order; the part before `_` is the scenario."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} not found; available: {', '.join(SPLITS)}")
    id_lines = (find_public_root(root_name) / "data" / "datasets" / f"{split}.txt").read_text().splitlines()
    return [id_line.partition(":")[0].strip() for id_line in id_lines if id_line.strip()]


def read_specs(root_name: str, task_id: str) -> dict[str, Any]:
    """What an agent may know of a task: `instruction`, `supervisor`, `datetime`."""
    return json.loads((_task_folder(find_public_root(root_name), task_id) / "specs.json").read_text())


def read_solution(root_name: str, task_id: str) -> tuple[str, ...]:
    """The code blocks of a task's reference solution; none if the benchmark withholds it, as in its test splits.

    Only trusted processes may call this, because it reads ground truth.
    """
    truth_folder = _task_folder(find_root(root_name), task_id) / _TRUTH
    if (truth_folder / "blocks.json").exists():
        return tuple(json.loads((truth_folder / "blocks.json").read_text()))
    if (truth_folder / "compiled_solution.py").exists():
        return ((truth_folder / "compiled_solution.py").read_text() + "\nsolution(apis, requester)\n",)
    return ()


def provide(root_name: str, python_path: str, say: Callable[[str], None]) -> None:
    """Makes that root and its public twin, or reports that they exist. `python_path` has the package.

    It never overwrites existing data: it checks and uses official data that was copied there by hand. Raises
    InstallError, which says what to do.
    """
    with lock(_root_folder(root_name), f"AppWorld's {root_name} data", say, file_mode=0o700):
        _make_root(root_name, python_path, say)


def _make_root(root_name: str, python_path: str, say: Callable[[str], None]) -> None:
    new_folder = _root_folder(root_name)
    for leftover_folder in new_folder.parent.glob(f".{root_name}-*"):
        shutil.rmtree(leftover_folder, ignore_errors=True)
    if is_current(root_name):
        say(f"appworld: {root_name} data already in {new_folder}")
        return
    workspace = Path(tempfile.mkdtemp(prefix=f".{root_name}-", dir=new_folder.parent))
    try:
        if root_name == "tiny":
            say(f"appworld: building tiny data in {new_folder}")
            build_command = [python_path, "-m", f"{__package__}.tiny", str(workspace / "root")]
            _run_in_folder(build_command, _BUILD_TIMEOUT_S, "cannot build the tiny data", workspace / "root")
        elif (new_folder / "data").exists():
            say(f"appworld: checking the data found in {new_folder}")
            (workspace / "root").mkdir(mode=0o700)
        else:
            say(f"appworld: downloading the official data into {new_folder}")
            _download(python_path, workspace / "root")
        data_folder = next(parent / "data" for parent in (workspace / "root", new_folder) if (parent / "data").exists())
        if flaw := next(_find_flaws(data_folder), ""):
            raise InstallError(f"AppWorld's {root_name} data is incomplete: {flaw}. {_advise(root_name)}")
        say("appworld: copying what model code may see")
        shutil.copytree(data_folder, workspace / "public" / "data", ignore=shutil.ignore_patterns(_TRUTH))
        _move_into_place(root_name, workspace)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    say(f"appworld: {root_name} data ready in {new_folder}")


def _move_into_place(root_name: str, workspace: Path) -> None:
    """Renames the new folders into place, then stamps them, so that neither is used before it is complete."""
    root_folder = _root_folder(root_name)
    was_copied_by_hand = not (workspace / "root" / "data").exists()
    for source, target in ((workspace / "public", _public_folder(root_name)), (workspace / "root", root_folder)):
        if source.name == "public" or not was_copied_by_hand:
            if target.exists():
                target.rename(workspace / f"old-{target.name}")
            source.chmod(0o700)
            source.rename(target)
        target.chmod(0o700)
        write_whole(target / _STAMP_FILE, json.dumps(_expected_stamp(root_name)))


def _root_folder(root_name: str) -> Path:
    if root_name not in ROOTS:
        raise InstallError(f"AppWorld's data {root_name!r} not found; available: {', '.join(ROOTS)}")
    root_folder = cache() / "appworld" / root_name
    if "memory" in str(root_folder):
        raise InstallError(
            f"the path {root_folder} contains 'memory', which AppWorld takes for a database held in memory; "
            "set COJAX_CACHE to a folder without it"
        )
    return root_folder


def _public_folder(root_name: str) -> Path:
    return _root_folder(root_name).with_name(f"{root_name}-public")


def _task_folder(root_folder: Path, task_id: str) -> Path:
    if not re.fullmatch(r"[0-9a-zA-Z]+_[0-9]+", task_id):
        raise ValueError(f"{task_id!r} is no task of AppWorld; expected an id like 82e2fac_1")
    return root_folder / "data" / "tasks" / task_id


def _expected_stamp(root_name: str) -> dict[str, str]:
    """The stamp of a root of this version."""
    stamp = {"package": RECIPE.requirements[0]}
    if root_name == "tiny":
        digest = hashlib.sha256()
        source_files = sorted(Path(__file__).with_name("tiny").iterdir())
        for source_file in (path for path in source_files if path.suffix in (".py", ".md", ".json")):
            digest.update(source_file.name.encode() + b"\0" + source_file.read_bytes() + b"\0")
        stamp["builder"] = digest.hexdigest()[:16]
    return stamp


def is_current(root_name: str) -> bool:
    """Whether the root and its twin both exist and this version made them."""
    for root_folder in (_root_folder(root_name), _public_folder(root_name)):
        try:
            if json.loads((root_folder / _STAMP_FILE).read_text()) != _expected_stamp(root_name):
                return False
        except (OSError, ValueError):
            return False
    return True


def _advise(root_name: str) -> str:
    """Says how a user can get that data."""
    install_command = "cojax install appworld"
    if root_name == "tiny":
        return f"Run: {install_command} --data=tiny"
    return (
        f"Ways forward:\n  {install_command} --data=tiny   builds a small root here, without a network\n"
        f"  {install_command}   downloads the official data, where there is a network, or takes what you put at "
        f"{_root_folder(root_name) / 'data'}"
    )


def _download(python_path: str, folder: Path) -> None:
    """Downloads with the package's own code, into a new folder, because that code deletes existing data."""
    command = [python_path, "-m", "appworld.cli", "download", "data", "--root", str(folder)]
    try:
        _run_in_folder([python_path, "-c", _NETWORK_PROBE], _SERVER_TIMEOUT_S, "its server cannot be reached", folder)
        output = _run_in_folder(command, _DOWNLOAD_TIMEOUT_S, "the download broke off", folder)
        if not (folder / "data").exists():
            raise InstallError(f"the package's download left nothing: {output.strip()[-500:]}")
    except InstallError as error:
        raise InstallError(f"AppWorld's official data is not available: {error}\n{_advise('official')}") from error


def _run_in_folder(command: list[str], timeout_s: float, complaint: str, folder: Path) -> str:
    """Makes `folder`, runs the command in it, and returns its output."""
    folder.mkdir(mode=0o700, exist_ok=True)
    run_variables = {
        "APPWORLD_ROOT": str(folder),
        "APPWORLD_CACHE": str(home("appworld") / "package"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, cwd=folder, env={**os.environ, **run_variables}
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"{complaint}: no end within {timeout_s} seconds") from error
    except OSError as error:
        raise InstallError(f"{complaint}: {error}") from error
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines()
        raise InstallError(f"{complaint}: {lines[-1][:500] if lines else f'exit status {process.returncode}'}")
    return process.stdout


def _find_flaws(data_folder: Path) -> Iterator[str]:
    """Says what a data folder lacks."""
    for subfolder, pattern, min_count in (("api_docs/standard", "*.json", 11), ("base_dbs", "*.db", 12)):
        file_count = len(list((data_folder / subfolder).glob(pattern)))
        if file_count < min_count:
            yield f"{data_folder / subfolder} has {file_count} files {pattern}, expected {min_count}"
    for split in SPLITS:
        list_file = data_folder / "datasets" / f"{split}.txt"
        if not list_file.exists():
            yield f"{list_file} is missing"
            continue
        for task_line in list_file.read_text().split():
            task_folder = data_folder / "tasks" / task_line.partition(":")[0]
            for entry_name in ("specs.json", "dbs", f"{_TRUTH}/evaluation.py", f"{_TRUTH}/test_data.json"):
                if not (task_folder / entry_name).exists():
                    yield f"{task_folder / entry_name} is missing"
