"""Virtual environments of environments: one each, under `$COJAX_CACHE/environments` (by default ~/.cache/cojax)."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import cojax
from cojax.environment import InstallError

# Seconds that a whole installation may take.
_INSTALL_TIMEOUT_S = 1_800
_REPORT_PERIOD_S = 15.0  # seconds between the lines of an installation that goes on
_MARK_FILE_NAME = "installed.json"
# The folder that holds our packages, for another interpreter that runs a module of them.
ROOT = Path(cojax.__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The contents of an environment's virtual environment.

    `requirements` are in pip's form, installed without their dependencies if `dependencies` is false. `pythons` are
    the versions it was tested on. `prepare` is a statement to run after pip, `proof` one that succeeds if everything is
    installed. `programs` are programs that must be on PATH, each with the command that installs it on Debian.
    """

    requirements: tuple[str, ...]
    proof: str
    dependencies: bool = True
    pythons: tuple[tuple[int, int], ...] = ((3, 11), (3, 12))
    prepare: str = ""
    programs: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)


def read_requirements(module_path: str) -> tuple[str, ...]:
    """The lines of the file requirements.txt beside that module's, without comments."""
    lines = Path(module_path).with_name("requirements.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


def cache() -> Path:
    """The folder of files that can be regenerated: `$COJAX_CACHE`, by default ~/.cache/cojax."""
    return Path(os.environ.get("COJAX_CACHE") or "~/.cache/cojax").expanduser().absolute()


def home(env_name: str) -> Path:
    """The folder of the environment's virtual environment."""
    return cache() / "environments" / env_name


def interpreter(env_name: str, recipe: Recipe) -> str:
    """The Python of its virtual environment. Raises InstallError unless it is installed by this very recipe."""
    if not _is_installed(home(env_name), recipe):
        raise InstallError(
            f"environment {env_name!r} is not installed in {home(env_name)}, or by another version of its recipe; "
            f"run: cojax install {env_name}"
        )
    return str(home(env_name) / "bin" / "python")


def install(name: str, recipe: Recipe, python: str | None, say: Callable[[str], None]) -> Path:
    """Makes the virtual environment, or continues an earlier attempt; does nothing if it is installed already.

    `python` names the interpreter to build on; by default this one, or another tested version found on PATH. Raises
    InstallError, which says what to do.
    """
    for program, fix in recipe.programs:
        if shutil.which(program) is None:
            raise InstallError(f"{name} needs the program {program}, which is not on PATH; on Debian and Ubuntu: {fix}")
    folder = home(name)
    with lock(folder, f"the environment {name}", say):
        mark_path = folder / _MARK_FILE_NAME
        version = _read_version(python) if python else None
        if _is_installed(folder, recipe) and _interpreter_runs(folder, version):
            say(f"{name}: already installed in {folder}")
            return folder
        base_exe = python or _find_python(recipe)
        version = version or _read_version(base_exe)
        if version not in recipe.pythons:
            raise InstallError(f"{name} runs on Python {_versions(recipe)}; {base_exe} is {version[0]}.{version[1]}")
        mark_path.unlink(missing_ok=True)
        if _interpreter_runs(folder, version):
            say(f"{name}: going on with {folder}")
        else:
            say(f"{name}: new virtual environment {folder} on {base_exe}")
            shutil.rmtree(folder, ignore_errors=True)
            _run([base_exe, "-P", "-m", "venv", str(folder)], f"cannot make a virtual environment with {base_exe}")
        say(f"{name}: installing {', '.join(recipe.requirements)}")
        pip = [str(folder / "bin" / "python"), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(
            [*pip, *([] if recipe.dependencies else ["--no-deps"]), *recipe.requirements],
            f"cannot install {', '.join(recipe.requirements)}. Without a network, put the wheels into a folder and set "
            "PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER; then run the same command again",
            report_wait=lambda waited_s: say(f"{name}: still installing, {waited_s} s"),
        )
        with tempfile.TemporaryDirectory() as scratch:
            for statement in filter(None, (recipe.prepare, recipe.proof)):
                _run([str(folder / "bin" / "python"), "-c", statement], f"{name} does not work", {"TMPDIR": scratch})
        write_whole(mark_path, json.dumps({"recipe": _hash_recipe(recipe), "python": ".".join(map(str, version))}))
        say(f"{name}: installed")
    return folder


def run_module(python: str, module: str, arguments: list[str], complaint: str, timeout_s: float, **env: str) -> None:
    """Runs one of our modules with that interpreter, with `env` in its environment. Raises InstallError."""
    variables = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **env}
    _run([python, "-m", module, *arguments], complaint, variables, timeout_s=timeout_s)


def _interpreter_runs(folder: Path, version: tuple[int, int] | None) -> bool:
    """Whether the folder's interpreter runs, and has the version if one is given."""
    with contextlib.suppress(InstallError):
        return _read_version(str(folder / "bin" / "python")) == version or version is None
    return False


def _is_installed(folder: Path, recipe: Recipe) -> bool:
    """Whether an installation by this very recipe was completed."""
    try:
        return json.loads((folder / _MARK_FILE_NAME).read_text())["recipe"] == _hash_recipe(recipe)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _run(
    command: list[str],
    complaint: str,
    more_variables: dict[str, str] | None = None,
    report_wait: Callable[[int], None] = lambda waited_s: None,
    timeout_s: float = _INSTALL_TIMEOUT_S,
) -> None:
    """Runs the command. If it fails, raises InstallError with the complaint and the end of the command's output.

    `report_wait` is called every `_REPORT_PERIOD_S` seconds with the seconds that have passed.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            with subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(more_variables or {})}
            ) as process:
                exit_status = _wait_for_process(process, report_wait, timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InstallError(f"{complaint}: {error}") from error
        if exit_status:
            output.seek(0)
            raise InstallError(f"{complaint}:\n{output.read().strip()[-1_500:]}")


def _wait_for_process(process: subprocess.Popen[bytes], report_wait: Callable[[int], None], timeout_s: float) -> int:
    """The exit status. Raises TimeoutExpired, after it killed the process, when the time is up."""
    waited_s = 0.0
    try:
        while waited_s < timeout_s:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_REPORT_PERIOD_S)
            waited_s += _REPORT_PERIOD_S
            report_wait(round(waited_s))
        raise subprocess.TimeoutExpired(process.args, timeout_s)
    finally:
        process.kill()


def _find_python(recipe: Recipe) -> str:
    """This interpreter if its version was tested, else the first tested one on PATH."""
    if tuple(sys.version_info[:2]) in recipe.pythons:
        return sys.executable
    for major, minor in recipe.pythons:
        python = shutil.which(f"python{major}.{minor}")
        with contextlib.suppress(InstallError):
            if python and _read_version(python) == (major, minor):
                return python
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise InstallError(
        f"Python {_versions(recipe)} is needed, not {ours}, and none is on PATH; install one and name it: --python=PATH"
    )


def _read_version(python_path: str) -> tuple[int, int]:
    code = "import sys; print(*sys.version_info[:2])"
    try:
        process = subprocess.run([python_path, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        major, minor = process.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise InstallError(f"{python_path} is not a Python that runs here: {error}") from error


def _versions(recipe: Recipe) -> str:
    return " or ".join(f"{major}.{minor}" for major, minor in recipe.pythons)


def _hash_recipe(recipe: Recipe) -> str:
    return hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that readers see all of it or nothing."""
    part_path = path.with_name(f"{path.name}.part")
    part_path.write_text(text)
    part_path.replace(path)


@contextlib.contextmanager
def lock(path: Path, what: str, say: Callable[[str], None], file_mode: int = 0o777) -> Iterator[None]:
    """Makes the folder that is to hold `path`, and locks a file there, so that installations of one thing wait for
    each other; the lock ends with the process. Raises InstallError for an OSError, including one in the block."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=file_mode)
        with open(path.with_suffix(".lock"), "w") as lock_file:
            try:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another installation is under way; waiting for it")
                fcntl.flock(lock_file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise InstallError(f"cannot write {what} to {path}: {error}; set COJAX_CACHE to a writable folder") from error
