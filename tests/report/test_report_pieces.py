"""What the page does not hold lies in pieces beside it; the list has every episode, with the advantages of groups."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from large_run import write_run
from test_report import ATTACK, CHILD, SEED, episode, metrics

from cojax.pool import make_task_record
from cojax.report import episodes, page
from cojax.report.episodes import EpisodeIndex, make_advantages
from cojax.report.figures import paired_difference
from cojax.report.page import build_contents, write_report
from cojax.report.pieces import Pieces, piece
from cojax.report.run import read_run
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, StorageError, write_json


def data_of(folder: Path) -> Any:
    text = (folder / "report.html").read_text()
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(block)


def unpacked(script: str) -> tuple[str, str, Any]:
    match = re.fullmatch(r'cojaxPiece\("([0-9a-z]+)","([a-z]+-\d+)","([A-Za-z0-9+/=]*)"\);\n', script)
    assert match
    return match[1], match[2], json.loads(zlib.decompress(base64.b64decode(match[3])))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    write_json(folder / "config.json", {"config": {"learner": {"advantage": "mean_centred"}}})
    Log(folder / "metrics.jsonl").append([metrics(1)])
    Log(folder / "tasks.jsonl").append([make_task_record(SEED), make_task_record(CHILD)])
    rewards = (1.0, 0.0, 0.0, 0.0)
    played = [episode(1, SEED, sample, reward, ["boundary"] * (sample == 1)) for sample, reward in enumerate(rewards)]
    lost = [episode(1, CHILD, 0, 0.0, [], outcome="engine_error"), episode(1, CHILD, 2, 0.5, [])]
    Episodes(folder / "episodes").write(1, [*played, *lost, {**episode(1, SEED, 7, 0.0, []), "agent": "second"}])
    return folder


def test_the_index_has_every_group_in_few_columns(run: Path) -> None:
    index = build_contents(read_run(run))["index"]
    assert index["tasks"] == [[SEED.id, SEED.query, "unguided"], [CHILD.id, CHILD.query, "boundary"]]
    ((step, (first, second, other)),) = index["steps"]
    assert step == 1
    assert first == {
        "t": 0, "r": [1.0, 0.0, 0.0, 0.0], "k": [1, 1, 1, 1], "s": [[], ["boundary"], [], []],
        "v": [0.75, -0.25, -0.25, -0.25],
    }  # fmt: skip
    # Lost to the engine, and then alone: neither is learned from.
    assert second == {
        "t": 1, "r": [0.0, 0.5], "k": [1, 1], "n": [0, 2], "o": ["engine_error", "finished"], "v": [None, None],
    }  # fmt: skip
    assert other == {"t": 0, "r": [0.0], "k": [1], "n": [7], "a": "second"}


def test_advantages_are_those_of_the_run_and_never_the_users_code(run: Path) -> None:
    def found(learner: dict[str, Any], **code: Any) -> list[Any] | None:
        write_json(run / "config.json", {"config": {"learner": learner}, "code": code})
        advantages = make_advantages(read_run(run))
        return advantages(Episodes(run / "episodes").read(1)[:4]) if advantages else None

    assert found({"advantage": "success"}) == [1.0, 0.0, 0.0, 0.0]
    turn_level = {"advantage": "turn_level", "advantage_settings": {"coefficient": 0.0}}
    assert found(turn_level) == [[1.5], [-0.5], [-0.5], [-0.5]]
    assert found({"advantage": "os:system"}) is None
    entry = {"learner.advantage": {"name": "leave_one_out", "settings": {}}}
    assert found({"advantage": "success"}, **entry) == [1.0, -0.333, -0.333, -0.333]
    assert found({"advantage": "success", "advantage_settings": {"of_another_version": 1}}) == [None] * 4


def test_a_small_run_has_all_in_its_page_and_no_folder(run: Path) -> None:
    write_report(run)
    data = data_of(run)
    assert (len(data["episodes"]), data["pieces"], (run / "report_files").exists()) == (7, None, False)


def test_a_larger_run_has_pieces_and_loses_the_old_ones(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MAX_INLINE_BYTES", 1_000)
    monkeypatch.setattr(page, "MAX_HISTORY_BYTES", 0)
    (run / "report_files").mkdir()
    (run / "report_files/episodes-000009.js").write_text("old")
    write_report(run)
    data = data_of(run)
    names = sorted(path.name for path in (run / "report_files").iterdir())
    assert names == ["episodes-000001.js", "tasks-0000.js"]
    stamp, name, held = unpacked((run / "report_files/episodes-000001.js").read_text())
    assert (stamp, name, len(held)) == (data["pieces"]["stamp"], "episodes-000001", 7)
    assert (held[1]["id"], held[1]["signals"]) == (f"1-{SEED.id}-1", [["boundary", ""]])
    (row,) = data["tasks"]
    assert (row["id"], row["number"], row["actions"], "solution" in row) == (CHILD.id, 0, 2, False)
    ((task,)) = unpacked((run / "report_files/tasks-0000.js").read_text())[2]
    assert task["verdict_evidence"] == ["runs: 2 actions", ATTACK]
    assert "'strict-dynamic'" in (run / "report.html").read_text().partition("<style>")[0]
    monkeypatch.undo()
    write_report(run)
    assert not (run / "report_files").exists()
    assert "'strict-dynamic'" not in (run / "report.html").read_text().partition("<style>")[0]


def test_only_pieces_are_removed_and_nothing_behind_a_link(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("episodes-000009.js", "tasks-0000.partial", f".tasks-0000.js.{'0' * 16}.tmp")
    theirs = ("app.js", "notes.partial", "episodes.js", "report.html")
    for folder in (tmp_path / "elsewhere", run / "report_files"):
        folder.mkdir()
        for name in (*ours, *theirs):
            (folder / name).write_text("kept")
    write_report(run)
    assert sorted(path.name for path in (run / "report_files").iterdir()) == sorted(theirs)
    shutil.rmtree(run / "report_files")
    (run / "report_files").symlink_to(tmp_path / "elsewhere")
    write_report(run)
    monkeypatch.setattr(episodes, "MAX_INLINE_BYTES", 1_000)
    with pytest.raises(StorageError, match=r"report_files is a link to .*elsewhere"):
        write_report(run)
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {*ours, *theirs}
    assert {path.read_text() for path in (tmp_path / "elsewhere").iterdir()} == {"kept"}


def test_a_piece_holds_no_text_as_it_was() -> None:
    script = piece("00ff", "episodes-000001", {"</script>\u2028\ud800": [float("nan"), float("inf"), ATTACK]})
    assert unpacked(script) == ("00ff", "episodes-000001", {"</script>\u2028\ud800": [None, None, ATTACK]})


def test_huge_texts_stay_small(run: Path) -> None:
    long = {"x" * 300_000: "y" * 300_000, **{str(n): ["z" * 900] * 90 for n in range(90)}}
    played = episode(2, SEED, 0, 0.0, [])
    played["turns"][0]["action"]["calls"][0]["arguments"] = long
    played["turns"][0]["action"]["text"] = "\u2028" * 300_000
    Episodes(run / "episodes").write(2, [played])
    write_report(run)
    assert (run / "report.html").stat().st_size < 400_000
    (turn,) = data_of(run)["episodes"][-1]["turns"]
    assert turn["text"] == "\u2028" * 1_500 + " … [298,500 characters more]"


def test_the_index_leaves_out_steps_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "run", tasks=200, episodes=1_280)
    played = EpisodeIndex()
    build_contents(read_run(tmp_path / "run"), Pieces("00"), played)
    whole = played.build_index()
    assert (len(whole["steps"]), played.group_count) == (10, 1_280)
    monkeypatch.setattr(episodes, "MAX_INDEX_BYTES", len(json.dumps([rows for _, rows in whole["steps"]])) // 2)
    assert [step for step, _ in played.build_index()["steps"]] in ([2, 4, 6, 8, 10], [3, 5, 7, 9], [3, 5, 7, 10])


def test_a_paired_difference_and_its_interval() -> None:
    one, other = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.5}, {"b": 1.0, "c": 1.0, "a": 0.0, "d": 1.0, "e": 1.0}
    found = paired_difference(one, other)
    assert found is not None
    # Differences 0, 0, 1, ½: mean 0.375, s = 0.4787, t₀.₉₇₅(3) = 3.1824.
    assert (found["mean"], found["count"], found["better"], found["worse"]) == (0.375, 4, 2, 0)
    assert (round(found["low"], 4), round(found["high"], 4)) == (-0.3867, 1.0)
    same = paired_difference({str(n): 1.0 for n in range(300)}, {str(n): 1.0 for n in range(300)})
    assert same is not None
    assert (same["mean"], same["low"], same["high"]) == (0.0, -0.01, 0.01)
    assert paired_difference({"a": 1.0}, {"a": 0.0}) is None
