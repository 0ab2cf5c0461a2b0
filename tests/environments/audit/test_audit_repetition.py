"""Other processes: shifted clocks, differences between plays, worlds that fail there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from environments.audit.repetition import (
    Origin,
    ProcessFailure,
    Replayed,
    Surroundings,
    explain_difference,
    find_unsteady,
    play_elsewhere,
)

_READS = """
import json, time, datetime, sqlite3
from datetime import date
from environments.audit.child import Clock
import environments.audit.child as child
shift_s = datetime.datetime.fromisoformat("2031-03-15T23:30:00+00:00").timestamp() - time.time()
child.shift_clock(Clock(shift_s))
row = sqlite3.connect(":memory:").execute(
    "SELECT date('now'), strftime('%Y', 'now'), date('2020-01-31', '+1 day'), date()"
).fetchone()
print(json.dumps([
    time.strftime("%Y-%m-%d", time.gmtime()), datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    datetime.datetime.utcnow().year, datetime.date.today().year, isinstance(datetime.datetime.now(), datetime.datetime),
    isinstance(datetime.date(2020, 1, 1), datetime.datetime), *row,
]))
"""


def test_all_clocks_are_shifted():
    output = subprocess.run([sys.executable, "-c", _READS], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == [
        "2031-03-15", "2031-03-15", 2031, 2031, True, False, "2031-03-15", "2031", "2020-02-01", "2031-03-15"
    ]  # fmt: skip


def test_another_process_plays_alike():
    import environments

    tasks = environments.load("desk").tasks("dev", 2)
    plays = [Replayed(task, task.solution) for task in tasks]
    traces = play_elsewhere(Origin("desk", {}), plays, Surroundings("reversed", is_reversed=True), 30.0)
    assert [trace["verdict"][0] for trace in traces] == [1.0, 1.0]
    assert traces[0]["opening"] == [["user", tasks[0].query]]
    assert explain_difference(traces[0], traces[0]) == ""
    assert explain_difference(traces[0], traces[1]).startswith("opening (1): ")
    assert explain_difference(traces[0], traces[1], shows_values=False) == "opening (1)"


def test_a_world_that_cannot_be_made_elsewhere_is_a_failure():
    with pytest.raises(ProcessFailure, match=r"it failed: .*no module 'nowhere'"):
        play_elsewhere(Origin("nowhere", {}), [], Surroundings("here"), 5.0)


def test_unsteady_paths_and_aspects_do_not_count():
    first = {"opening": [], "observations": [], "states": [{("a",): "1", ("b",): "2"}], "outcome": [], "verdict": [1]}
    second = first | {"states": [{("a",): "1", ("b",): "3"}], "verdict": [0]}
    assert find_unsteady(first, second) == {("b",), "verdict"}
    assert explain_difference(first, second) == "the state after action 0: b"
    assert explain_difference(first, second, frozenset({("b",)})) == "verdict (1): 1, then 0"
    assert explain_difference(first, second, find_unsteady(first, second)) == ""
