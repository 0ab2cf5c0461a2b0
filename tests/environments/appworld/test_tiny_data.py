"""Data roots: found, taken, refused. The official data is played by files of its layout, which nothing reads here."""

import json
import sys
from pathlib import Path

import pytest

from environments import install as command
from environments.appworld import data
from environments.worker.venv import InstallError

TASKS = ("0a1b2c3_1", "0a1b2c3_2", "0a1b2c3_3")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "appworld"


def official(folder: Path) -> Path:
    """Files laid out as the official data, for one scenario in each split."""
    for number in range(11):
        write(folder / "api_docs" / "standard" / f"{number}.json")
    for number in range(12):
        write(folder / "base_dbs" / f"{number}.db", "rows")
    for split in data.SPLITS:
        write(folder / "datasets" / f"{split}.txt", "0a1b2c3_1\n0a1b2c3_2:tagged\n\n0a1b2c3_3\n")
    for task in TASKS:
        write(folder / "tasks" / task / "specs.json", json.dumps({"instruction": f"Do {task}."}))
        write(folder / "tasks" / task / "dbs" / "venmo.jsonl")
        for name in ("evaluation.py", "test_data.json"):
            write(folder / "tasks" / task / "ground_truth" / name, "secret")
    write(
        folder / "tasks" / TASKS[0] / "ground_truth" / "compiled_solution.py", "def solution(apis, requester):\n    1"
    )
    return folder


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_data_the_ways_forward_are_said(cache: Path) -> None:
    with pytest.raises(InstallError) as missing:
        data.find_root("official")
    for way in ("official data is not there", "--data=tiny", f"what you put at {cache / 'official' / 'data'}"):
        assert way in str(missing.value)
    with pytest.raises(InstallError, match=r"tiny data is not there .* Run: .* --data=tiny"):
        data.read_task_ids("tiny", "train")
    with pytest.raises(InstallError, match="'large' not found; available: official, tiny"):
        data.find_public_root("large")
    with pytest.raises(ValueError, match="split 'eval' not found; available: train, dev"):
        data.read_task_ids("official", "eval")


def test_official_data_put_in_its_place_is_taken_as_it_is(cache: Path) -> None:
    official(cache / "official" / "data")
    said: list[str] = []
    data.provide("official", "no-python-is-needed", said.append)
    assert said[-1] == f"appworld: official data ready in {cache / 'official'}"
    assert data.find_root("official") == cache / "official"
    assert data.find_public_root("official") == cache / "official-public"
    assert data.read_task_ids("official", "dev") == list(TASKS)
    assert data.read_specs("official", TASKS[1]) == {"instruction": "Do 0a1b2c3_2."}
    assert data.read_solution("official", TASKS[0]) == (
        "def solution(apis, requester):\n    1\nsolution(apis, requester)\n",
    )
    assert data.read_solution("official", TASKS[1]) == ()
    for escape in ("../official", "..", "0a1b2c3_1/../0a1b2c3_2", "", "0a1b2c3_1\n"):
        with pytest.raises(ValueError, match="is no task of AppWorld"):
            data.read_solution("official", escape)
    data.provide("official", "no-python-is-needed", said.append)
    assert said[-1] == f"appworld: official data already in {cache / 'official'}"


def test_the_public_twin_holds_no_truth_and_shares_no_file(cache: Path) -> None:
    official(cache / "official" / "data")
    data.provide("official", "no-python-is-needed", print)
    full, public = (
        {path.relative_to(root): path for path in (root / "data").rglob("*")}
        for root in (data.find_root("official"), data.find_public_root("official"))
    )
    assert {name for name in full if "ground_truth" not in name.parts} == set(public)
    assert len(set(full) - set(public)) == 3 + 7
    assert all("secret" not in path.read_text() for path in public.values() if path.is_file())
    assert not {path.stat().st_ino for path in full.values()} & {path.stat().st_ino for path in public.values()}
    assert [oct(root.stat().st_mode)[-3:] for root in (cache / "official", cache / "official-public")] == ["700"] * 2


@pytest.mark.parametrize(
    "lost", ["datasets/dev.txt", "base_dbs/3.db", "tasks/0a1b2c3_2/ground_truth/test_data.json", "tasks/0a1b2c3_3/dbs"]
)
def test_incomplete_data_is_refused_and_left(cache: Path, lost: str) -> None:
    folder = official(cache / "official" / "data")
    (folder / lost).rename(cache / "lost")
    with pytest.raises(InstallError, match=r"official data is incomplete: .*\n? *.*--data=tiny"):
        data.provide("official", "no-python-is-needed", print)
    with pytest.raises(InstallError, match="is not there"):
        data.find_root("official")
    assert (folder / "base_dbs" / "1.db").read_text() == "rows"
    (cache / "lost").rename(folder / lost)
    data.provide("official", "no-python-is-needed", print)
    assert data.read_task_ids("official", "train") == list(TASKS)


def test_a_root_of_another_version_or_half_made_is_not_taken(cache: Path) -> None:
    official(cache / "official" / "data")
    data.provide("official", "no-python-is-needed", print)
    stamp = cache / "official-public" / "stamp.json"
    right = stamp.read_text()
    for wrong in ('{"package": "appworld==0.0.1"}', "{", "[]"):
        stamp.write_text(wrong)
        with pytest.raises(InstallError, match="official data"):
            data.find_root("official")
    stamp.unlink()
    # What an attempt that was killed had left goes, and what it had not touched stays.
    (cache / ".official-killed" / "public").mkdir(parents=True)
    (cache / "official-public" / "data" / "left").write_text("over")
    data.provide("official", "no-python-is-needed", print)
    assert stamp.read_text() == right
    assert not (cache / "official-public" / "data" / "left").exists()
    assert not [path for path in cache.iterdir() if path.name.startswith(".")]


def test_the_tiny_root_goes_stale_with_its_builder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tiny", "tiny-public"):
        write(cache / folder / "stamp.json", json.dumps(data._expected_stamp("tiny")))
    assert data.find_root("tiny") == cache / "tiny"
    write(cache / "tiny" / "stamp.json", json.dumps(data._expected_stamp("tiny") | {"builder": "0123456789abcdef"}))
    with pytest.raises(InstallError, match=r"tiny data is stale .*--data=tiny"):
        data.find_root("tiny")


def test_what_the_package_would_misread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "in-memory-disk"))
    for ask in (data.find_root, data.find_public_root, lambda name: data.provide(name, sys.executable, print)):
        with pytest.raises(InstallError, match=r"contains 'memory'.*set COJAX_CACHE"):
            ask("tiny")


def test_what_fails_while_making_is_said_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(InstallError, match=r"is not available: its server cannot be reached: .*\n.*\n.*--data=tiny"):
        data.provide("official", "/bin/false", print)
    with pytest.raises(InstallError, match="cannot build the tiny data: exit status 1"):
        data.provide("tiny", "/bin/false", print)
    with pytest.raises(InstallError, match=r"cannot build the tiny data: .*No such file"):
        data.provide("tiny", str(cache / "no-python"), print)
    assert sorted(path.name for path in cache.iterdir()) == ["official.lock", "tiny.lock"]
    cache.rename(cache.with_name("elsewhere"))
    cache.write_text("a file where the folder should be")
    with pytest.raises(InstallError, match="cannot write AppWorld's tiny data"):
        data.provide("tiny", "/bin/false", print)


def test_the_command_refuses_data_that_is_no_choice(capsys: pytest.CaptureFixture[str]) -> None:
    for name, asked, answer in (
        ("appworld", "huge", "expected one of official, tiny"),
        ("desk", "tiny", "it needs no data"),
        ("bfcl", "tiny", "it needs no data"),
    ):
        with pytest.raises(SystemExit) as refused:
            command.main([name, f"--data={asked}"])
        assert refused.value.code == 2
        assert answer in capsys.readouterr().err
