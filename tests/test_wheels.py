"""The package as wheel, sdist and editable install: from where it can be imported, a run from it, and its extras."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from foreign_project import make_project

ROOT = Path(__file__).parents[1]
# Folder of the checkout → its place in a wheel.
PLACES = {"cojax": "cojax", "environments": "cojax/environments", "experiments": "cojax/experiments"}
# A user's packages, and what he calls cojax's. Those that a wheel has within cojax may have the same name.
EXPERIMENTS = PLACES["experiments"].replace("/", ".")
LAB = "experiments" if EXPERIMENTS != "experiments" else "lab"


def ran(command: list[str | Path], folder: Path, *, timeout: float = 600, **variables: str) -> str:
    """What the command prints; it must succeed."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env={**own, **variables}, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, from a copy of what belongs to the package."""
    copy = tmp_path_factory.mktemp("sources") / "cojax"
    for name in PLACES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta; build_meta.build_sdist('dist'); build_meta.build_wheel('dist')"
    ran([sys.executable, "-P", "-c", build], copy)
    (wheel,), (sdist,) = (copy / "dist").glob("*.whl"), (copy / "dist").glob("*.tar.gz")
    return wheel, sdist


def names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_every_file_of_the_packages(built: tuple[Path, Path]) -> None:
    files = ((name, path) for name in PLACES for path in (ROOT / name).rglob("*") if path.is_file())
    ours = {
        f"{PLACES[name]}/{path.relative_to(ROOT / name)}" for name, path in files if "__pycache__" not in path.parts
    }
    assert names(built[0]) == ours
    assert {name.partition("/")[0] for name in ours} == {place for place in PLACES.values() if "/" not in place}
    assert "cojax/py.typed" in ours


def test_the_sdist_makes_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.unpack_archive(built[1], tmp_path, filter="data")
    (sources,) = tmp_path.iterdir()
    ran([sys.executable, "-P", "-c", "from setuptools import build_meta; build_meta.build_wheel('dist')"], sources)
    (again,) = (sources / "dist").glob("*.whl")
    assert names(again) == names(built[0])


def environment(folder: Path, wheel: Path) -> Path:
    """The bin folder of an environment with the wheel; the dependencies are those of this interpreter."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A folder that a .pth file names is searched, but its own .pth files, of this checkout too, are not read.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    ran([*pip, "--quiet", "--no-deps", "--no-index", wheel], folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("an environment") / "env", built[0])


@pytest.mark.real
@pytest.mark.parametrize("editable", [False, True])
def test_it_works_in_the_parent_of_a_clone_in_the_clone_and_elsewhere(
    built: tuple[Path, Path], tmp_path: Path, editable: bool
) -> None:
    """In the parent, Python takes the clone for a package without __init__.py."""
    clone, wheel = built[0].parents[1], built[0]
    if editable:  # as `pip install --editable` does
        made = ran([sys.executable, "-P", "-c", _BUILD_EDITABLE, tmp_path], clone).splitlines()[-1]
        wheel = tmp_path / made
    bin = environment(tmp_path / "env", wheel)
    for folder in (clone.parent, clone, tmp_path):
        imported = ran([bin / "python", "-c", "import cojax; cojax.open_run; print(cojax.__file__)"], folder)
        ours = clone if editable or folder == clone else bin.parent
        assert Path(imported.strip()).is_relative_to(ours), folder
        commands = [[bin / "cojax", "run"]]
        commands += [[bin / "python", "-m", "experiments.run"]] if editable or folder == clone else []
        for command in commands:
            done = subprocess.run([*command, "--workdir=none"], cwd=folder, capture_output=True, text=True, check=False)
            assert done.stdout.startswith("error: none holds no run to go on with"), (folder, command, done.stderr)


_BUILD_EDITABLE = "import sys; from setuptools import build_meta; print(build_meta.build_editable(sys.argv[1]))"


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """A dry run into an empty environment, by today's pip, which reads a wheel's needs without fetching the wheel."""
    folder = tmp_path_factory.mktemp("resolver")
    for name in ("pip", "empty"):
        ran([sys.executable, "-m", "venv", folder / name], folder)
    pip = [folder / "pip" / "bin" / "python", "-m", "pip"]
    ran([*pip, "install", "--quiet", "--upgrade", "pip"], folder)
    empty = [*pip, "--python", folder / "empty" / "bin" / "python", "--disable-pip-version-check"]
    return [*empty, "install", "--dry-run", "--use-feature=fast-deps"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("extra", "brought"),
    [("cuda12", "jax-cuda12-plugin"), ("cuda13", "jax-cuda13-plugin"), ("tpu", "libtpu"), ("sglang", "sglang")],
)
def test_pip_resolves_the_extras(
    built: tuple[Path, Path], resolver: list[str | Path], tmp_path: Path, extra: str, brought: str
) -> None:
    """Where there is no such extra, of ours or of JAX, pip says so and goes on."""
    asked = [*resolver, f"{built[0]}[{extra}]"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "does not provide the extra" not in done.stdout + done.stderr
    chosen = next(line for line in done.stdout.splitlines() if line.startswith("Would install "))
    assert {"cojax", "jax", brought} <= {one.rpartition("-")[0] for one in chosen.split()}, chosen


def project_of(folder: Path) -> tuple[Path, dict[str, str]]:
    project = make_project(folder / "a project", LAB, "environments", EXPERIMENTS, "cojax.environments")
    return project, {"COJAX_CACHE": str(folder / "cache")}


def assert_trains(bin: Path, folder: Path) -> None:
    """Two steps by the command and one more by a script, with the user's loss, in the user's world in workers."""
    project, cache = project_of(folder)
    own = ["--config.environment=environments.shop", f"--config.learner.loss={LAB}.losses:careful"]
    printed = ran([bin / "cojax", "run", f"--config={LAB}/small.py", *own], project, timeout=1200, **cache)
    assert "step 2/2" in printed
    where = json.loads((project / "runs/small/config.json").read_text())["code"]
    assert where["environment.name"]["path"] == "environments.shop:make"
    assert where["learner.loss"]["folder"] == str(project)
    (project / "script.py").write_text(
        f"import {LAB}, cojax\n"
        f"assert {LAB}.SEED == 7\n"
        "run = cojax.train(workdir='runs/small', steps=3)\n"
        "print(len(run.metrics()), run.summary()['steps'], cojax.__file__)\n"
    )
    steps, summed, file = ran([bin / "python", "script.py"], project, timeout=1200, **cache).split(maxsplit=2)
    assert (steps, summed) == ("3", "3")
    assert Path(file.strip()).is_relative_to(bin.parent)
    assert (project / "runs/small/report.html").stat().st_size > 100_000


def test_entries_of_the_study_are_found_within_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise ImportError('a package of the user')")
    code = (
        "from cojax.registry import find\nfrom cojax.run.explorers import EXPLORERS\n"
        "from cojax.synthesis import EVOLUTIONS, MEMORIES, PREFIXES\n"
        "found = {'credited': EVOLUTIONS, 'frontier': EVOLUTIONS, 'credits': MEMORIES, 'prefixes': PREFIXES, "
        "'careless': EXPLORERS}\nprint(*{find('entry', name, table).__module__ for name, table in found.items()})"
    )
    modules = set(ran([installed / "python", "-c", code], tmp_path).split())
    study = f"{EXPERIMENTS}.study"
    assert modules == {f"{study}.{name}" for name in ("credits", "frontier", "prefix_replay", "careless")}


def test_an_object_of_a_world_has_one_name_and_a_users_package_is_his(installed: Path, tmp_path: Path) -> None:
    project, cache = project_of(tmp_path)
    (project / "script.py").write_text(
        "import sys, cojax, environments\n"
        "cojax.load_environment('desk', isolated=True).close()\n"
        "assert cojax.load_environment('environments.shop').name == 'desk'\n"
        "assert environments.OPENED and cojax.worlds.available()\n"
        "print(type(cojax.load_environment('desk')).__module__)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('environments')))\n"
    )
    printed = ran([installed / "python", "script.py"], project, **cache).splitlines()
    assert printed == ["cojax.environments.desk", "environments environments.shop"]
    told = ran([installed / "python", "-m", "cojax.environments.check", "--help"], project, **cache)
    assert told.startswith("usage: python -m cojax.environments.check ")


def test_the_command_works_in_a_foreign_project(installed: Path, tmp_path: Path) -> None:
    project, cache = project_of(tmp_path)
    assert ran([installed / "cojax", "--version"], project, **cache).startswith("cojax ")
    checked = json.loads(
        ran([installed / "cojax", "check", "environments.shop", "--count=2", "--splits=dev"], project, **cache)
    )
    assert (checked["tasks"], checked["replayed"], checked["faults"]) == (2, 2, [])
    assert (
        "cojax run --config"
        in subprocess.run(
            [installed / "cojax", "run", "--help"],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        ).stdout
    )


@pytest.mark.nightly
def test_it_trains_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert_trains(installed, tmp_path)


def interpreters() -> list[str]:
    """Every interpreter from 3.11 to 3.13 that is found on PATH, or among those of pyenv, and runs; this one first."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in ("3.11", "3.12", "3.13"):
        places = [shutil.which(f"python{version}"), *map(str, kept.glob(f"{version}.*/bin/python{version}"))]
        for path in filter(None, places):
            if version not in found and not subprocess.run([path, "-c", ""], capture_output=True).returncode:
                found[version] = path
    return list(found.values())


@pytest.mark.nightly
# The wheel of an sdist is the same for every interpreter.
@pytest.mark.parametrize(
    ("python", "kind"), [(python, "wheel") for python in interpreters()] + [(sys.executable, "sdist")]
)
def test_it_trains_after_pip_install_in_an_empty_environment(
    built: tuple[Path, Path], tmp_path: Path, python: str, kind: str
) -> None:
    folder = tmp_path / "env"
    ran([python, "-m", "venv", folder], tmp_path)
    pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    ran([*pip, built[kind == "sdist"]], tmp_path, timeout=1200)
    assert_trains(folder / "bin", tmp_path)
