"""Replies of children that are trusted with nothing: bytes, values, depth and memory are bounded as they come in."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import patience

from cojax.environment import play
from cojax.environment.replay import follow
from cojax.host.processes import read_memory
from cojax.types import Action, Check, Evaluation, Message, Observation, Task
from environments.worker import Bounds, IsolatedEnvironment, isolate, wire
from environments.worker.wire import Malformed, Scan, filter_reply, read

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=10,
)


def counted(value: Any) -> int:
    """Values in it, keys included."""
    if isinstance(value, dict):
        return 1 + sum(1 + counted(item) for item in value.values())
    return 1 + sum(map(counted, value)) if isinstance(value, list) else 1


def scanned(text: bytes, part: int, values: int = 10**9, depth: int = 256) -> Scan:
    scan = Scan(values, depth)
    for start in range(0, len(text), part):
        scan.count_chunk(text[start : start + part])
    return scan


@settings(max_examples=60, deadline=None)
@given(VALUES, st.integers(1, 9))
def test_a_scan_counts_what_json_holds_whatever_its_parts(value, part):
    text = json.dumps(value).encode()
    scan = scanned(text, part)
    assert (scan.value_count, scan.depth, scan.in_string) == (scanned(text, len(text)).value_count, 0, False)
    # Keys and text are counted twice at most.
    assert counted(value) - 1 <= scan.value_count <= 3 * counted(value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"value":[' + b"{}," * 300, "more than 500 values"),
        (b"[" * 300, "nests deeper than 256"),
        (b'"",' * 300, "more than 500 values"),
        (b'["\\\\",[' + b"1," * 600, "more than 500 values"),
        (b"]" * 9, "ends what it did not begin"),
        ("é".encode(), "not ASCII"),
        (b"\xff\xfe[\x00", "not ASCII"),
    ],
)
@pytest.mark.parametrize("part", [1, 7, 10**6])
def test_a_scan_refuses_what_is_too_much(text, reason, part):
    with pytest.raises(ValueError, match=reason):
        scanned(text, part, values=500)


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 4_000_000 + b'"', b'"' + b"\\\\" * 4_000_000 + b'"', b'"[' * 9])
def test_what_a_string_holds_is_not_counted(text):
    began = time.process_time()
    assert scanned(text, 65_536, values=20).value_count <= 19
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1,"a":2}', b"[1]", b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e999}', b'{"a":' + b"1" * 5_000 + b"}",
        b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}", b'{"a":1} x', b"", b"\x00", '{"a":"é"}'.encode(),
        '{"a":1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(line):
    with pytest.raises(ValueError, match=r"."):
        wire.decode(line)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Message, {"role": "tool", "content": 5}),
        (Message, {"role": {}, "content": "x"}),
        (Message, {"role": "tool"}),
        (Message, ["tool", "x"]),
        (Observation, {"messages": ""}),
        (Observation, {"messages": {}}),
        (Observation, {"ok": 1}),
        (Observation, {"done": None}),
        (Observation, {"reward": 1.0}),
        (Observation, None),
        (Evaluation, {"reward": True, "checks": []}),
        (Evaluation, {"reward": "1", "checks": []}),
        (Evaluation, {"reward": 1.0, "checks": [["x", True]]}),
        (tuple[Action, ...], [{"text": "x", "calls": [{"name": "f", "arguments": []}]}]),
        (Task, {"environment": "e", "query": "q", "setup": {}, "origin": 5}),
    ],
)
def test_a_record_is_exactly_one(kind, value):
    with pytest.raises(Malformed):
        read(kind, value)


def test_a_record_is_read_as_it_was_sent():
    assert read(Evaluation, {"reward": 1, "checks": [{"name": "x", "passed": True}]}) == Evaluation(
        1, (Check("x", True),)
    )
    assert read(Observation, {"messages": [{"role": "any", "content": "\ud800"}]}).messages[0].content == "\ud800"


@pytest.fixture(scope="module")
def world() -> Iterator[IsolatedEnvironment]:
    environment = isolate("liar", bounds=Bounds(deadline=4.0), runs_policy_code=True)
    yield environment
    environment.close()


def lie(world: IsolatedEnvironment, **setup: object):
    lost = Task("liar", "", {"op": "step", "ending": "answer", **setup})
    return play(world, lost, follow([Action("on")]), max_turns=1)


def peak(pid: int) -> int:
    """The most memory that the process held since `forget_peak`, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def forget_peak(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


MILLIONS = 8 * 2**20
FLOODS = {
    "objects": {"head": '{"n":CALL,"value":[', "body": "{},", "times": MILLIONS // 3 - 20, "tail": "{}]}\n"},
    "lists in lists": {"head": '{"n":CALL,"value":[', "body": "[[]],", "times": MILLIONS // 5 - 20, "tail": "1]}\n"},
    "empty keys": {"head": '{"n":CALL,"value":{', "body": '"":{},', "times": MILLIONS // 6 - 20, "tail": '"":1}}\n'},
    "numbers": {"head": '{"n":CALL,"value":[', "body": "1.5,", "times": MILLIONS // 4 - 20, "tail": "1]}\n"},
    "one number": {"head": '{"n":CALL,"value":', "body": "9", "times": MILLIONS - 90, "tail": "}\n"},
    "no end": {"body": "x", "times": 2 * MILLIONS, "ending": "hang"},
}  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
def test_eight_megabytes_take_a_small_multiple_of_memory(world, flood):
    assert lie(world).reward == 1.0
    there, here = forget_peak(world.supervisor), forget_peak(os.getpid())
    assert lie(world, **FLOODS[flood]).outcome == "timeout"
    assert peak(world.supervisor) - there < 8 * MILLIONS
    assert peak(os.getpid()) - here < 8 * MILLIONS
    assert lie(world).reward == 1.0


def honest(world: IsolatedEnvironment, length: int):
    return play(world, Task("liar", "", {"length": length}), follow([Action("on")]), max_turns=1)


def test_a_large_honest_reply_takes_a_small_multiple_of_memory(world):
    there, here = forget_peak(world.supervisor), forget_peak(os.getpid())
    trajectory = honest(world, MILLIONS - 200)
    assert (
        trajectory.turns[0].observation.text == f"\U0001f600{'x' * 15_999}\n[{MILLIONS - 200 - 15_999} characters cut]"
    )
    assert peak(world.supervisor) - there < 8 * MILLIONS
    assert peak(os.getpid()) - here < 12 * MILLIONS


def test_the_memory_of_large_replies_goes_back_to_the_system():
    with contextlib.closing(isolate("liar", bounds=Bounds(deadline=4.0), runs_policy_code=True)) as world:
        honest(world, 1_000)
        before = read_memory(world.supervisor, "Rss")
        chance = random.Random(2)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda length: honest(world, length), [chance.randrange(2**22) for _ in range(30)]))
        assert read_memory(world.supervisor, "Rss") - before < 8  # MB


@pytest.mark.real
def test_many_large_replies_at_once_wait_for_room_and_arrive(world):
    """Eight honest replies of eight megabytes, and eight that stop half-way: 96 MB, of which a part is held."""
    there, outcomes = forget_peak(world.supervisor), set()

    def one(number: int) -> None:
        stops = {"head": '{"n":CALL,"value":"', "body": "x", "times": MILLIONS // 2, "ending": "hang"}
        found = lie(world, **stops) if number % 2 else honest(world, MILLIONS - 200)
        outcomes.add((number % 2, found.outcome, found.reward))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {(0, "truncated", 1.0), (1, "timeout", 0.0)}
    assert peak(world.supervisor) - there < 12 * MILLIONS


def test_whatever_a_child_writes_beside_its_replies_is_its_own_loss(world):
    """Seeded noise in replies: no exception here, no failure of the machinery, no descriptor left behind."""
    chance = random.Random(16)
    reply = '{"n":CALL,"value":{"messages":[{"role":"tool","content":"x"}],"ok":true,"done":false}}\n'
    scraps = ["{", "}", "[", "]", '"', "\\", "\n", ",", ":", "NaN", "1e999", "null", "CALL", "\xff", "\\ud800", "\x00"]
    descriptors = len(os.listdir(f"/proc/{world.supervisor}/fd"))
    for _ in range(60):
        text = list(reply)
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(text))
            text[place : place + chance.randrange(3)] = chance.choice(scraps)
        found = lie(world, head="".join(text), ending=chance.choice(["answer", "exit", "raise"]))
        assert (found.outcome, found.reward) == ("timeout", 0.0), (text, found)
    until = time.monotonic() + patience(10)
    while len(os.listdir(f"/proc/{world.supervisor}/fd")) > descriptors and time.monotonic() < until:
        time.sleep(0.05)
    assert len(os.listdir(f"/proc/{world.supervisor}/fd")) <= descriptors


def test_an_honest_reply_is_passed_on_to_the_bit():
    line = wire.encode({"n": 3, "value": {"deep": [[["é\ud800"]]], "many": list(range(1_000))}}).rstrip()
    assert filter_reply(line, 3) == line
