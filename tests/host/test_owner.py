"""A command tells its owner facts, and ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from patience import patience

ROOT = Path(__file__).parents[2]
_PROGRAM = """
import signal, sys
from cojax.host import processes as owner
owner.tell_owner(nobody="hears it")
owner.end_with_owner(int(sys.argv[1]), int(sys.argv[2]))
owner.tell_owner(step=3)
owner.tell_owner(folder="größe")
signal.pause()
"""


def test_it_hears_facts_and_takes_the_command_with_it() -> None:
    theirs, owner = os.pipe()
    told, their_told = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(theirs), str(their_told)],
        cwd=ROOT, pass_fds=(theirs, their_told), env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(theirs)
    os.close(their_told)
    try:
        with open(told, encoding="utf-8") as heard:
            assert [json.loads(heard.readline()) for _ in range(2)] == [{"step": 3}, {"folder": "größe"}]
            assert process.poll() is None
            os.close(owner)
            assert process.wait(patience(60)) == -signal.SIGTERM
            assert heard.read() == ""
    finally:
        process.kill()
        process.wait()
