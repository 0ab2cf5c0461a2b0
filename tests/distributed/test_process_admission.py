"""Processes that do not fit together are refused by name; a folder that one of them does not see is found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wires import SILENCE, Connected

from cojax.distributed.start import DistributedError, admit, ask_admission, unseen
from cojax.distributed.wire import Wire
from cojax.host.background import run_on_thread

FACTS = {"settings": {"seed": 0, "optimizer": {"learning_rate": 0.1}}, "versions": {"jax": "0.10"}, "commit": "abc"}


@contextlib.contextmanager
def other_process(answer: Callable[[Wire], None]) -> Iterator[tuple[Wire, list[str]]]:
    """The wire of process 0, and what process 1, which does `answer`, is refused with."""
    refused: list[str] = []
    with Connected() as connected:
        wire, leads = connected.process(1), connected.process(0)

        def work() -> None:
            try:
                answer(wire)
            except DistributedError as error:
                refused.append(str(error))

        answered = run_on_thread("process 1", work)
        yield leads, refused
        answered.result(SILENCE)


def test_equal_processes_that_see_the_folder_are_admitted_and_nothing_is_left_there(tmp_path):
    with other_process(lambda wire: ask_admission(wire, FACTS, SILENCE)) as (wire, refused):
        admit(wire, 2, FACTS, {"workdir": tmp_path / "run"}, SILENCE)
    assert not refused
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_that_is_not_to_be_kept_goes_with_those_above_it(tmp_path):
    with other_process(lambda wire: ask_admission(wire, FACTS, SILENCE)) as (wire, refused):
        admit(wire, 2, FACTS, {"workdir": tmp_path / "some/where/run"}, SILENCE, keeps_folders=False)
    assert not refused
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        ({**FACTS, "commit": "def"}, r"commit \(commit was 'abc', now 'def'\)"),
        ({**FACTS, "versions": {"jax": "0.9"}}, r"versions\.jax \(versions\.jax was '0\.10', now '0\.9'\)"),
        (
            {**FACTS, "settings": {"seed": 0, "optimizer": {"learning_rate": 0.2}}},
            r"settings\.optimizer\.learning_rate",
        ),
    ],
)
def test_what_differs_is_named_in_both_processes_and_nothing_is_written(theirs, named, tmp_path):
    with (
        other_process(lambda wire: ask_admission(wire, theirs, SILENCE)) as (wire, refused),
        pytest.raises(DistributedError, match=f"process 1 has other settings, versions or code .*: {named}") as one,
    ):
        admit(wire, 2, FACTS, {"workdir": tmp_path / "run"}, SILENCE)
    assert refused == [str(one.value)]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_a_process_does_not_see_is_named(tmp_path):
    def answer(wire: Wire) -> None:
        """As `ask_admission` on a host where the folder is another one."""
        wire.send({"kind": "facts", "facts": FACTS})
        _, message = wire.receive(SILENCE)
        elsewhere = Path(message["path"].replace(str(tmp_path), str(tmp_path / "elsewhere")))
        wire.send({"kind": "seen", "fault": unseen(elsewhere, 0.2)})

    with (
        other_process(answer) as (wire, _),
        pytest.raises(DistributedError, match=r"process 1 does not see .*/run: .* is missing .* --config\.workdir"),
    ):
        admit(wire, 2, FACTS, {"workdir": tmp_path / "run"}, SILENCE)
    assert not (tmp_path / "run").exists()


def test_a_second_folder_is_named_by_its_own_setting(tmp_path):
    def answer(wire: Wire) -> None:
        """As `ask_admission` on a host that shares the workdir alone."""
        wire.send({"kind": "facts", "facts": FACTS})
        for shared in (True, False):
            _, message = wire.receive(SILENCE)
            path = Path(message["path"])
            wire.send({"kind": "seen", "fault": unseen(path if shared else tmp_path / "elsewhere" / path.name, 0.2)})

    folders = {"workdir": tmp_path / "run", "sglang.folder": tmp_path / "weights"}
    with (
        other_process(answer) as (wire, _),
        pytest.raises(DistributedError, match=r"process 1 does not see .*/weights: .* Set --config\.sglang\.folder to"),
    ):
        admit(wire, 2, FACTS, folders, SILENCE)
    assert not any(folder.exists() for folder in folders.values())


def test_a_process_that_does_not_answer_is_named(tmp_path):
    with (
        other_process(lambda wire: None) as (wire, _),
        pytest.raises(DistributedError, match="process 1 does not answer: no message came within"),
    ):
        admit(wire, 2, FACTS, {"workdir": tmp_path / "run"}, 0.1)
