"""No argument leads a call to another route of the server than its API's own, as no other user than one who entered."""

import json
import os
import subprocess
import urllib.parse
from pathlib import Path

import pytest
from patience import patience

from cojax.types import Task
from environments.appworld import data as roots
from environments.appworld.environment import AppWorld
from environments.appworld.world import leads_elsewhere
from environments.worker.venv import interpreter

HERE = Path(__file__).parent
MARKS = ("/", "\\", "?", "#", "{", "}", "\n", "\0", "\x7f", "\u2028", "\u202e")


def forms(mark: str) -> list[str]:
    """The mark as it is, once, twice and thrice quoted, and in wide letters."""
    once = urllib.parse.quote(mark, safe="")
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in mark)
    found = [mark, once, once.lower(), once.replace("%", "%25"), once.replace("%", "%2525"), wide]
    return list(dict.fromkeys([*found, once.replace("%", "\uff05"), urllib.parse.quote(wide)]))


PARTS = ("{}", "1{}2", "..{0}..{0}dbs{0}")
HOSTILE = [part.replace("{0}", form).replace("{}", form) for part in PARTS for mark in MARKS for form in forms(mark)]
HOSTILE += ["", " ", ".", "..", "...", "%2e", "%2E%2e", "%252e%252e", ".%2e", "\uff0e\uff0e", "\u2025", "1" * 100_000]
HOSTILE += ["../../dbs?", "../../seed?", "..%2f..%2fdate_time%3f", "../../admin/payment_card?", "../../openapi.json?"]
HOSTILE += ["http://other/../dbs", "//dbs", "1/../../../dbs#", "1;/../dbs?", "{song_id}", "\ud800", "1\t", "..\r\n"]

# What arguments of honest code may look like.
PLAIN = ["1", "7.5", "None", "True", "[1, 2]", "-3", "a@example.com", "+1 (555) 123-4567", "Bericht für Jörg.pdf"]
PLAIN += ["100%.pdf", "a..b", "a%20b", "x:y", "append", "音楽", "a;b", "a&b=c"]


@pytest.mark.parametrize("argument", HOSTILE, ids=repr)
def test_an_argument_that_could_lead_elsewhere_is_known(argument):
    assert leads_elsewhere(argument)


@pytest.mark.parametrize("argument", PLAIN)
def test_what_honest_code_writes_leads_nowhere_else(argument):
    assert not leads_elsewhere(argument)


@pytest.mark.real
def test_no_argument_of_a_path_leads_any_api_to_another_route(appworld: AppWorld, task: Task):
    done = subprocess.run(
        [
            interpreter("appworld", roots.RECIPE),
            HERE / "access_worlds.py",
            roots.find_root("tiny") / "data",
            task.setup["task"],
        ],
        input=json.dumps(HOSTILE),
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
        timeout=patience(300),
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["apis"], told["slots"] >= 200) == (457, True), told["slots"]
    assert told["strayed"] == []
    assert told["recorded"] == []
    assert told["unreached"] == []
