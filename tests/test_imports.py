"""Whose module an import finds, in a checkout and in a project with packages that are named as ours."""

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
COMMAND = "from cojax import imports; imports.add_current_folder()\n"


def said(text: str, folder: Path, *path: Path) -> str:
    """What a program prints that finds cojax as a console script does; `path` stands first on its import path."""
    places = os.pathsep.join(map(str, (*path, ROOT)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", text],
        cwd=folder, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True,
        timeout=patience(60), check=False,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.fixture
def clashing(tmp_path: Path) -> Path:
    """A folder with packages of the user that are named as ours."""
    return make_project(tmp_path / "a project", lab="experiments", shops="environments")


@pytest.mark.parametrize("first", [False, True])
def test_in_a_checkout_the_command_has_ours_and_names_what_is_hidden(clashing: Path, first: bool) -> None:
    path = (clashing,) if first else ()
    text = f"{COMMAND}import experiments, environments.desk as a; print(experiments.__file__, a.__file__)"
    assert said(text, clashing, *path) == f"{ROOT}/experiments/__init__.py {ROOT}/environments/desk/__init__.py"
    text = f"{COMMAND}print(imports.find_hidden('experiments.losses'), imports.find_hidden('environments'))"
    files = (clashing / "experiments/losses.py", clashing / "environments/__init__.py")
    assert said(text, clashing, *path) == " ".join(map(str, files))
    text = f"{COMMAND}print([imports.find_hidden(name) for name in ('experiments.no', 'cojax')])"
    assert said(text, clashing) == "['', '']"


def test_the_command_tells_of_packages_that_it_cannot_import(clashing: Path, commands: Commands) -> None:
    loss = "--config.learner.loss=experiments.losses:careful"
    done = commands.run("cojax", "run", "--config=experiments/desk.py", loss, folder=clashing)
    assert done.returncode == 1
    fix = "as cojax has a package of that name in a checkout: rename yours, or install cojax without --editable"
    assert "error: loss 'experiments.losses:careful' not found: no module 'experiments.losses'" in done.stdout
    assert f"; {clashing}/experiments/losses.py cannot be imported, {fix}" in done.stdout
    for name in ("experiments", "environments"):
        assert f"warning: {clashing}/{name} cannot be imported, {fix}" in done.stderr


def test_the_current_folder_comes_before_what_else_is_in_a_checkout(tmp_path: Path) -> None:
    """As in an editable install, where the checkout is on the import path; it has a setup.py, examples and tests."""
    (tmp_path / "setup.py").write_text("MINE = 1\n")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "compose.py").write_text("MINE = 2\n")
    text = "import setup, examples.compose, experiments; print(setup.MINE, examples.compose.MINE, experiments.__file__)"
    assert said(COMMAND + text, tmp_path) == f"1 2 {ROOT}/experiments/__init__.py"


def test_in_a_program_of_the_user_his_packages_stay_his(clashing: Path) -> None:
    text = "import cojax, experiments, environments; print(experiments.SEED, environments.OPENED)"
    assert said(text, clashing, clashing) == "7 by the user's package"
    told = said("import cojax, environments; cojax.load_environment('desk')", clashing, clashing)
    assert f"RegistryError: {clashing}/environments/__init__.py hides cojax's environments.desk, as cojax has" in told
    text = "import cojax; print(type(cojax.load_environment('desk')).__module__)"
    assert said(text, clashing, clashing) == "environments.desk"


@pytest.mark.parametrize("module", ["cojax", "environments.check"])
def test_a_worker_finds_the_users_modules(tmp_path: Path, commands: Commands, module: str) -> None:
    project = make_project(tmp_path / "a project")
    name = ["check"] if module == "cojax" else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = commands.start(
        module, *name, "shops.shop", "--count=3", "--splits=dev", environment=environment, folder=project
    ).wait(timeout=patience(200))
    assert done.returncode == 0, done.stdout + done.stderr
    line = json.loads(done.stdout)
    assert (line["environment"], line["tasks"], line["replayed"]) == ("shops.shop", 3, 3)


def test_what_trains_is_imported_without_starting_a_backend(tmp_path: Path, commands: Commands) -> None:
    """The processes of a run find each other, and tests fork commands, before JAX looks for devices."""
    (tmp_path / "started.py").write_text(
        "import sys\nassert 'cojax.run.train' in sys.modules\nimport cojax.run.command, cojax.evaluation.evaluate\n"
        "from jax._src import xla_bridge\nprint(sorted(xla_bridge._backends))\n"
    )
    done = commands.run("started", folder=tmp_path)
    assert done.stdout == "[]\n", done.stderr
