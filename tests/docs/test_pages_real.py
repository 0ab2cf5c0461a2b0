"""The first pages, done as a reader does them: their commands and their Python in order, in an empty folder."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import DOCS, Block, blocks, commands
from patience import patience

pytestmark = pytest.mark.nightly
DEADLINE = 1_800
# The page's own demo is the same run in full.
SHORTER = {"runs/desk": "--config.steps=20"}


def of(page: str, language: str) -> list[Block]:
    return [block for block in blocks((DOCS / page).read_text(), page) if block.language == language]


def done(command: list[str], folder: Path) -> str:
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL, check=False
    )
    assert ended.returncode == 0, f"{shlex.join(command)}\n{ended.stdout[-1_500:]}{ended.stderr[-1_500:]}"
    return ended.stdout


def served(command: list[str], folder: Path) -> None:
    """Starts a command that goes on until it is stopped, and stops it once it has said its address."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("http://" in line for line in process.stdout)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(patience(60))


def test_the_quickstart_and_the_pages_after_it(tmp_path: Path) -> None:
    for block in of("quickstart.md", "bash"):
        for words in commands(block):
            short = [flag for place, flag in SHORTER.items() if words[1] == "run" and f"--workdir={place}" in words]
            command = [sys.executable, "-m", *words, *short]
            (served if "--live" in words else done)(command, tmp_path)
    assert (tmp_path / "runs/first/report.html").exists()
    assert (tmp_path / "models/first/model.safetensors").exists()
    for page in ("quickstart.md", "reading-a-run.md"):
        for block in of(page, "python"):
            done([sys.executable, "-c", block.text], tmp_path)


def test_the_python_of_the_apis_page(tmp_path: Path) -> None:
    """Without its last line, which loads a model of 8 GB that the reader has."""
    text = "\n".join(block.text for block in of("api.md", "python"))
    kept = [line for line in text.splitlines() if "models/Qwen3-4B" not in line]
    assert len(kept) == len(text.splitlines()) - 1
    shown = done([sys.executable, "-c", "\n".join(kept)], tmp_path)
    assert "\n40 " in shown
