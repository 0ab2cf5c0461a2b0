"""Installing: resumable, idempotent, and clear about what is missing. The packages are made here."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from environments import install as command
from environments.worker import venv
from environments.worker.venv import InstallError, Recipe, home, install, interpreter

THIS = tuple(sys.version_info[:2])
RECIPE = Recipe(("cojax-proof==1.0",), proof="import cojax_proof", pythons=(THIS,))


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder of wheels as the only index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def wheel(folder: Path, code: str = "") -> None:
    with zipfile.ZipFile(folder / "cojax_proof-1.0-py3-none-any.whl", "w") as file:
        file.writestr("cojax_proof.py", code)
        info = "cojax_proof-1.0.dist-info"
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: cojax-proof\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def test_an_installation_goes_on_where_it_stopped_and_is_made_once(offline):
    said: list[str] = []
    with pytest.raises(InstallError, match="put the wheels into a folder"):
        install("proof", RECIPE, None, said.append)
    with pytest.raises(InstallError, match=r"run: cojax install proof"):
        interpreter("proof", RECIPE)
    wheel(offline, "raise RuntimeError('no such luck')")
    with pytest.raises(InstallError, match="no such luck"):
        install("proof", RECIPE, None, said.append)
    assert not (home("proof") / "installed.json").exists()
    wheel(offline)
    repaired = Recipe(("--force-reinstall", *RECIPE.requirements), proof="import cojax_proof", pythons=(THIS,))
    install("proof", repaired, None, said.append)
    assert said[-3].startswith("proof: going on with")
    assert said[-1] == "proof: installed"
    subprocess.run([interpreter("proof", repaired), "-c", "import cojax_proof"], check=True)
    with pytest.raises(InstallError, match="by another version of its recipe"):
        interpreter("proof", RECIPE)
    install("proof", repaired, None, said.append)
    assert said[-1] == f"proof: already installed in {home('proof')}"
    mark = json.loads((home("proof") / "installed.json").read_text())
    assert mark == {"recipe": venv._hash_recipe(repaired), "python": f"{THIS[0]}.{THIS[1]}"}
    assert not list(home("proof").glob("*.part"))


def test_another_recipe_is_installed_there_and_an_interpreter_that_runs_no_more_is_made_anew(monkeypatch):
    python = home("proof") / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    venv.write_whole(home("proof") / "installed.json", json.dumps({"recipe": "another", "python": "3"}))
    ran: list[tuple[list[str], bool]] = []

    def run(command: list[str], *rest: object, **more: object) -> None:
        ran.append((command, python.exists()))
        python.parent.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(venv, "_run", run)
    install("proof", RECIPE, None, lambda line: None)
    (pip, there), (proof, _) = ran
    assert (pip[0], pip[-1], proof, there) == (str(python), "cojax-proof==1.0", [str(python), "-c", RECIPE.proof], True)
    assert interpreter("proof", RECIPE) == str(python)
    python.unlink()
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    install("proof", RECIPE, None, lambda line: None)
    assert ran[2:] == [([sys.executable, "-P", "-m", "venv", str(home("proof"))], False), (pip, False), (proof, False)]
    assert interpreter("proof", RECIPE) == str(python)


def test_pythons_never_measured_are_refused():
    other = Recipe(RECIPE.requirements, proof="pass", pythons=((2, 7),))
    with pytest.raises(InstallError, match=rf"runs on Python 2\.7; .* is {THIS[0]}\.{THIS[1]}"):
        install("proof", other, sys.executable, lambda line: None)
    with pytest.raises(InstallError, match="name it: --python=PATH"):
        install("proof", other, None, lambda line: None)
    with pytest.raises(InstallError, match="/no/python is not a Python that runs here"):
        install("proof", RECIPE, "/no/python", lambda line: None)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "file"))
    with pytest.raises(InstallError, match="set COJAX_CACHE to a writable folder"):
        install("proof", RECIPE, None, lambda line: None)


def test_the_command(capsys):
    assert command.main(["desk"]) == 0
    assert capsys.readouterr().out == "desk: needs nothing installed\n"
    assert command.main(["bfcl", "--python=/no/python"]) == 1
    assert "/no/python is not a Python that runs here" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_:
        command.main(["nowhere"])
    assert exit_.value.code == 2


def test_an_installation_says_that_it_goes_on_and_ends_at_its_deadline(monkeypatch):
    monkeypatch.setattr(venv, "_REPORT_PERIOD_S", 0.05)
    said: list[int] = []
    venv._run([sys.executable, "-c", "import time; time.sleep(0.3)"], "it fails", report_wait=said.append)
    assert len(said) >= 2
    with pytest.raises(InstallError, match=r"it fails: .* timed out after 0\.2 seconds"):
        venv._run([sys.executable, "-c", "import time; time.sleep(60)"], "it fails", timeout_s=0.2)
    with pytest.raises(InstallError, match="it fails:\nwhy"):
        venv._run([sys.executable, "-c", "import sys; sys.exit('why')"], "it fails")
