"""Whose module an import finds, in a project with packages that are named as ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Commands
from foreign_project import make_project
from patience import patience

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("foreign") / "a project")


def said(text: str, folder: Path, *path: Path) -> str:
    """What a program prints that finds cojax as a console script does; `path` stands first on its import path."""
    places = os.pathsep.join(map(str, (*path, ROOT)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"from cojax import imports; imports.with_current_folder()\n{text}"],
        cwd=folder, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True,
        timeout=patience(60), check=False,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("first", [False, True])
def test_ours_come_first_and_the_users_are_found_too(project: Path, first: bool) -> None:
    path = (project,) if first else ()
    text = "import experiments, experiments.base as a, experiments.losses as b; print(a.__file__); print(b.__file__)"
    assert said(text, project, *path).splitlines() == [
        str(ROOT / "experiments" / "base.py"), str(project / "experiments" / "losses.py"),
    ]  # fmt: skip
    text = "from environments import OPENED, available, desk, shop; print(OPENED, 'desk' in available(), shop.__name__)"
    assert said(text, project, *path) == "by the user's package True environments.shop"


def test_the_current_folder_comes_before_what_else_is_in_a_checkout(tmp_path: Path) -> None:
    """As in an editable install, where the checkout is on the import path; it has a setup.py, examples and tests."""
    (tmp_path / "setup.py").write_text("MINE = 1\n")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "compose.py").write_text("MINE = 2\n")
    text = "import setup, examples.compose, experiments; print(setup.MINE, examples.compose.MINE, experiments.__file__)"
    assert said(text, tmp_path) == f"1 2 {ROOT}/experiments/__init__.py"


def test_names_of_the_users_package_and_missing_ones(project: Path) -> None:
    assert said("from experiments import SEED, base; print(SEED)", project) == "7"
    assert said("from experiments import nothing", project).startswith("ImportError: cannot import name 'nothing'")
    assert said("import environments.nothing", project) == "ModuleNotFoundError: No module named 'environments.nothing'"


def test_the_users_init_is_run_once_and_only_where_it_is_asked_for(tmp_path: Path) -> None:
    for name in ("experiments", "environments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("print('run'); A = B = 1\nfrom . import part\n")
        (tmp_path / name / "part.py").write_text("from experiments import A\n")
    assert said("import cojax.settings.base, environments; print('quiet')", tmp_path) == "quiet"
    assert said("import experiments.part\nfrom experiments import A, B", tmp_path) == "run"
    (tmp_path / "experiments" / "__init__.py").write_text("raise RuntimeError('not ready')\n")
    assert said("import experiments.part", tmp_path) == "RuntimeError: not ready"


def test_a_module_that_cojax_has_too_is_named(tmp_path: Path, commands: Commands) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "base.py").write_text("def mine(): ...\n")
    assert said("print(*imports.hidden())", tmp_path) == str(tmp_path / "experiments" / "base.py")
    done = commands.run(
        "cojax",
        "run",
        "--config=experiments/desk.py",
        "--config.learner.loss=experiments.base:mine",
        folder=tmp_path,
    )
    assert done.returncode == 1
    assert (
        f"error: loss 'experiments.base:mine' not found: {ROOT}/experiments/base.py defines no 'mine'; " in done.stdout
    )
    assert f"{tmp_path}/experiments/base.py has the same name, and cojax's comes first: rename the file" in done.stdout
    assert f"warning: {tmp_path}/experiments/base.py cannot be imported" in done.stderr


def test_a_package_environments_alone_does_not_stand_before_ours(tmp_path: Path) -> None:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "__init__.py").write_text("OWN = 1\n")
    program = "import experiments, environments; print(environments.__file__, environments.OWN)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, timeout=patience(60), check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(ROOT / "environments" / "__init__.py"), "1"]


def test_another_copy_of_cojax_adds_no_modules(tmp_path: Path) -> None:
    for name in ("cojax", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "experiments" / "old.py").write_text("")
    assert said("import experiments.old", tmp_path) == "ModuleNotFoundError: No module named 'experiments.old'"


@pytest.mark.parametrize("module", ["cojax", "environments.check"])
def test_a_worker_finds_the_users_modules(project: Path, commands: Commands, module: str) -> None:
    name = ["check"] if module == "cojax" else []
    # As a project without a package `environments` before ours would be started by `python -m environments.check`.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = commands.start(
        module, *name, "environments.shop", "--count=3", "--splits=dev", environment=environment, folder=project
    ).wait(timeout=patience(200))
    assert done.returncode == 0, done.stdout + done.stderr
    line = json.loads(done.stdout)
    assert (line["environment"], line["tasks"], line["replayed"]) == ("environments.shop", 3, 3)
