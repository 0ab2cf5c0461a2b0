"""The campaign's fault `foreign`: a command that trusts a run directory is found, and a careful one is not."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from campaign import foreign_attacks
from commands import Commands
from patience import patience

from cojax.storage.checksums import add_checksum

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the campaign needs Linux")
_START = "import sys\nfrom pathlib import Path\nrun = Path(sys.argv[1])\n"
CAREFUL = (
    _START
    + """
from cojax.report.pieces import Pieces, replace_text
try:
    pieces = Pieces("stamp", run)
    pieces.put("episodes-000001", {})
    replace_text(run / "report.html", "x")
    pieces.remove_old()
except OSError as error:
    sys.exit(print(f"error: {error}") or 2)
"""
)


# The reasons by a program as the only command, with one kind of attack: a line of JSON a case. A process of its own, as
# a fork has the threads and the memory of what it is forked from.
JUDGE = """
import json, sys
from pathlib import Path
sys.path.append("tests")
import cojax.report.pieces  # loaded once, for all forks
from campaign import foreign, foreign_attacks
folder, sound, deadline = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
attacks, foreign._PEAK = foreign_attacks.ATTACKS, 600.0
for name, attack, program, count in json.loads(sys.argv[4]):
    (folder / f"a_{name}.py").write_text(program)
    sys.path.insert(0, str(folder))
    foreign_attacks.ATTACKS = (getattr(foreign_attacks, attack),) if attack else attacks
    # Only what hangs is waited for.
    foreign._DEADLINE = deadline / 120 if attack == "_pipe" else deadline
    foreign._COMMANDS = {"command": lambda run, whole: ("a_" + name, str(run))}
    found = [one for number in range(count) for one in foreign.attack(f"{name}{number}", 0, folder, sound)]
    print(json.dumps([(count, reason) for count, _, reason in found]))
"""
# Name → the kind of attack, the program, and what is to be found of it.
TRUSTING = {
    "links": ("_link", "for path in run.rglob('*'):\n    path.is_file() and path.write_text('')", "lost", "elsewhere/"),
    "deletion": ("_unknown", "for path in run.rglob('*-1.js'):\n    path.unlink()", "lost", "episodes-1.js is changed"),
    "code": ("_code", "sys.path.append(str(run))\nimport foreign_code", "forged", "code of the directory ran"),
    "pipes": (
        "_pipe",
        "for path in run.rglob('*'):\n    path.is_dir() or open(path).close()",
        "leaked",
        "no end within",
    ),
    "traceback": ("_forged", "raise KeyError('steps')", "lost", "status 1, and not one line: "),
    "memory": ("_unknown", "x = b'x' * 600_000_000", "leaked", "it held"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """The violations by each program: counts and reasons."""
    folder = tmp_path_factory.mktemp("faults")
    sound = folder / "sound"
    (sound / "episodes").mkdir(parents=True)
    sections = {name: {"name": ""} for name in ("environment", "learner", "explorer")}
    (sound / "config.json").write_text(json.dumps({"config": sections}))
    for name in ("summary.json", "metrics.jsonl", "report.html"):
        (sound / name).write_text('{"steps": 1}\n')
    (sound / "episodes/000001.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    cases = [("careful", "", CAREFUL, 20)]
    cases += [(name, attack, _START + program, 2) for name, (attack, program, *_) in TRUSTING.items()]
    deadline = str(patience(60.0))
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, str(folder), str(sound), deadline, json.dumps(cases)],
        cwd=ROOT, capture_output=True, text=True, timeout=patience(300.0),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip((name for name, *_ in cases), map(json.loads, done.stdout.splitlines()), strict=True))


def test_a_careful_command_breaks_nothing(found: dict[str, list[list[str]]]) -> None:
    assert found["careful"] == []


@pytest.mark.parametrize("name", TRUSTING)
def test_a_command_that_trusts_a_directory_is_found(found: dict[str, list[list[str]]], name: str) -> None:
    *_, count, reason = TRUSTING[name]
    assert [one for one in found[name] if one[0] == count and reason in one[1]]


def test_results_that_no_run_wrote_are_refused_in_a_line(tmp_path: Path, commands: Commands) -> None:
    foreign_attacks.whole(tmp_path / "run")
    path = tmp_path / "run/summary.json"
    summary = json.loads(path.read_text())
    del summary["checksum"], summary["tasks_initial"]
    path.write_text(json.dumps(add_checksum(summary)))
    done = commands.run("experiments.run", f"--workdir={tmp_path / 'run'}", folder=tmp_path)
    assert (done.returncode, done.stdout.count("\n"), "Traceback" in done.stderr) == (1, 1, False), done.stderr
    assert "holds a record that no run wrote (KeyError: 'tasks_initial')" in done.stdout
