"""The campaign's fault `foreign`: a command that trusts a run directory is found, and a careful one is not."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from commands import Commands
from patience import patience

import cojax.report.pieces  # noqa: F401  loaded once, for all forks
from cojax.storage.checksums import with_checksum
from experiments.campaign import foreign, foreign_attacks

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
    pieces.clear()
except OSError as error:
    sys.exit(print(f"error: {error}") or 2)
"""
)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    folder = tmp_path / "sound"
    (folder / "episodes").mkdir(parents=True)
    sections = {name: {"name": ""} for name in ("environment", "learner", "explorer")}
    (folder / "config.json").write_text(json.dumps({"config": sections}))
    for name in ("summary.json", "metrics.jsonl", "report.html"):
        (folder / name).write_text('{"steps": 1}\n')
    (folder / "episodes/000001.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    return folder


def found(
    program: str, folder: Path, sound: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> list[tuple[str, str]]:
    """The violations by that program as the only command: counts and reasons."""
    (folder / "a_command.py").write_text(program)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(foreign, "_COMMANDS", {"command": lambda run, whole: ("a_command", str(run))})
    violations = [one for number in range(count) for one in foreign.attack(f"f{number}", 0, folder, sound)]
    return [(count, reason) for count, _, reason in violations]


def test_a_careful_command_breaks_nothing(tmp_path: Path, sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(CAREFUL, tmp_path, sound, monkeypatch, 20) == []


@pytest.mark.parametrize(
    ("attack", "program", "count", "reason"),
    [
        ("_link", "for path in run.rglob('*'):\n    path.is_file() and path.write_text('')", "lost", "elsewhere/"),
        (
            "_unknown",
            "for path in run.rglob('*-1.js'):\n    path.unlink()",
            "lost",
            "episodes-1.js is changed",
        ),
        ("_code", "sys.path.append(str(run))\nimport foreign_code", "forged", "code of the directory ran"),
        ("_pipe", "for path in run.rglob('*'):\n    path.is_dir() or open(path).close()", "leaked", "no end within"),
        ("_forged", "raise KeyError('steps')", "lost", "status 1, and not one line: "),
        ("_unknown", "x = b'x' * 600_000_000", "leaked", "it held"),
    ],
    ids=["links", "deletion", "code", "pipes", "traceback", "memory"],
)
def test_a_command_that_trusts_a_directory_is_found(
    tmp_path: Path,
    sound: Path,
    monkeypatch: pytest.MonkeyPatch,
    attack: str,
    program: str,
    count: str,
    reason: str,
) -> None:
    monkeypatch.setattr(foreign_attacks, "ATTACKS", (getattr(foreign_attacks, attack),))
    # Only what hangs is waited for.
    monkeypatch.setattr(foreign, "_DEADLINE", patience(0.5 if attack == "_pipe" else 60.0))
    monkeypatch.setattr(foreign, "_PEAK", 600.0)
    violations = found(_START + program, tmp_path, sound, monkeypatch, 2)
    assert [one for one in violations if one[0] == count and reason in one[1]]


def test_results_that_no_run_wrote_are_refused_in_a_line(tmp_path: Path, commands: Commands) -> None:
    foreign_attacks.whole(tmp_path / "run")
    path = tmp_path / "run/summary.json"
    summary = json.loads(path.read_text())
    del summary["checksum"], summary["tasks_initial"]
    path.write_text(json.dumps(with_checksum(summary)))
    done = commands.run("experiments.run", f"--workdir={tmp_path / 'run'}", folder=tmp_path)
    assert (done.returncode, done.stdout.count("\n"), "Traceback" in done.stderr) == (1, 1, False), done.stderr
    assert "holds a record that no run wrote (KeyError: 'tasks_initial')" in done.stdout
