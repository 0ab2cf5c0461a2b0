"""Logs, episodes and JSON files: what is on disk after a crash, a full disk, or a resume."""

import gzip
import json
import os
import resource
import signal

import pytest

from cojax.storage import files
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, StorageError, explain, write_json


@pytest.fixture
def file_limit():
    """Files of at most 4096 bytes: the kernel refuses to grow them, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(on):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if on else soft, hard))

    yield limit
    limit(False)
    signal.signal(signal.SIGXFSZ, previous)


def test_append_returns_the_length_in_bytes_and_read_gives_the_records_back(tmp_path):
    log = Log(tmp_path / "new" / "tasks.jsonl")
    assert log.length == 0
    assert list(log.read()) == []
    assert log.append([{"a": 1}]) == 8
    assert log.append([{"b": "é"}, {"c": None}]) == 8 + 15 + 11
    assert log.length == 34
    assert (tmp_path / "new" / "tasks.jsonl").read_bytes() == b'{"a":1}\n{"b":"\\u00e9"}\n{"c":null}\n'
    assert list(log.read()) == [{"a": 1}, {"b": "é"}, {"c": None}]


def test_truncate_goes_back_to_an_earlier_length(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    length = log.append([{"step": 1}])
    log.append([{"step": 2}, {"step": 3}])
    log.truncate(length)
    assert list(log.read()) == [{"step": 1}]
    log.append([{"step": 2}])
    assert list(log.read()) == [{"step": 1}, {"step": 2}]


def test_truncate_refuses_a_log_that_lost_records(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log.append([{"a": 1}])
    with pytest.raises(StorageError, match=r"log.jsonl holds 8 bytes; the checkpoint expects 9\. Records were lost"):
        log.truncate(9)


@pytest.mark.parametrize("torn", [b"{", b'{"a":', b'{"a":2}', b"\xff" * 70_000])
def test_a_torn_last_line_is_neither_read_nor_appended_to(tmp_path, torn):
    log = Log(tmp_path / "log.jsonl")
    log.append([{"a": 1}])
    with open(log.path, "ab") as file:
        file.write(torn)
    assert list(log.read()) == [{"a": 1}]
    assert log.append([{"a": 3}]) == 16
    assert list(log.read()) == [{"a": 1}, {"a": 3}]


def test_a_broken_earlier_line_is_an_error_with_its_number(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"a":1}\n{"a"\n{"a":3}\n')
    with pytest.raises(StorageError, match=r"log.jsonl, line 2: .*expected one JSON object a line"):
        list(Log(tmp_path / "log.jsonl").read())


def test_a_value_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path):
    log = Log(tmp_path / "log.jsonl")
    log.append([{"a": 1}])
    with pytest.raises(ValueError, match=r"log.jsonl: a record is not strict JSON"):
        log.append([{"a": 2}, {"a": float("nan")}])
    with pytest.raises(ValueError, match="not strict JSON"):
        log.append([{"a": object()}])
    assert list(log.read()) == [{"a": 1}]


def test_an_append_that_does_not_fit_leaves_the_log_as_it_was(tmp_path, file_limit):
    log = Log(tmp_path / "log.jsonl")
    log.append([{"a": 1}])
    file_limit(True)
    with pytest.raises(StorageError, match=r"cannot write .*log.jsonl: File too large\. .* raise it"):
        log.append([{"a": "x" * 9000}])
    file_limit(False)
    assert log.path.read_bytes() == b'{"a":1}\n'


def test_a_full_disk_is_named_with_the_fix(tmp_path):
    error = explain(OSError(28, "No space left on device"), tmp_path / "metrics.jsonl")
    assert isinstance(error, OSError)
    assert error.errno == 28
    assert str(error).endswith(
        "No space left on device. The disk is full: free space, then run the same command again."
    )


def test_a_folder_in_the_place_of_a_file_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="A part of the path is a file: choose another workdir"):
        Log(tmp_path / "file" / "log.jsonl").append([{}])
    with pytest.raises(StorageError, match="A part of the path is a file: choose another workdir"):
        write_json(tmp_path / "file" / "config.json", {})


def test_write_json_replaces_the_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "config.json"
    write_json(path, {"a": 1})
    write_json(path, {"é": [1, None]})
    assert json.loads(path.read_text()) == {"é": [1, None]}
    assert os.listdir(tmp_path) == ["config.json"]


def test_write_json_keeps_the_old_file_when_the_new_one_does_not_fit(tmp_path, file_limit):
    path = tmp_path / "config.json"
    write_json(path, {"a": 1})
    file_limit(True)
    with pytest.raises(StorageError, match="File too large"):
        write_json(path, {"a": "x" * 9000})
    file_limit(False)
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["config.json"]


def _record(episode, **fields):
    return {"episode": episode, **fields}


def test_episodes_come_back_in_order_and_equal_records_give_equal_bytes(tmp_path):
    records = [_record("12-ab-0", reward=1.0), _record("12-ab-1", reward=0.0)]
    one, two = Episodes(tmp_path / "one"), Episodes(tmp_path / "two")
    one.write(12, records)
    two.write(12, records)
    assert one.read(12) == records
    assert one.read(13) == []
    assert os.listdir(tmp_path / "one") == ["000012.jsonl.gz"]
    content = (tmp_path / "one" / "000012.jsonl.gz").read_bytes()
    assert content == (tmp_path / "two" / "000012.jsonl.gz").read_bytes()
    # Bytes 4–7 of a gzip header are the time, bit 3 of byte 3 says that a name follows (RFC 1952).
    assert content[3:8] == b"\0\0\0\0\0"


def test_retention_keeps_the_newest_and_what_is_pending(tmp_path):
    episodes = Episodes(tmp_path, kept_count=2)
    for step in range(1, 5):
        episodes.write(step, [])
        episodes.drop_before(episodes.find_first_kept(step + 1))
    assert episodes.list_steps() == [3, 4]
    for step in range(5, 9):
        episodes.write(step, [])
        episodes.drop_before(episodes.find_first_kept(4))
    assert episodes.list_steps() == [4, 5, 6, 7, 8]
    episodes.write(9, [])
    episodes.drop_before(episodes.find_first_kept(9))
    assert episodes.list_steps() == [8, 9]


def test_steps_are_ordered_as_numbers(tmp_path):
    episodes = Episodes(tmp_path, kept_count=2)
    for step in (999_999, 1_000_000, 1_000_001):
        episodes.write(step, [])
    episodes.drop_before(episodes.find_first_kept(1_000_002))
    assert episodes.list_steps() == [1_000_000, 1_000_001]


def test_keep_0_keeps_all_and_truncate_drops_the_later(tmp_path):
    episodes = Episodes(tmp_path)
    for step in range(12):
        episodes.write(step, [])
    episodes.drop(lambda step: step > 9)
    assert episodes.list_steps() == list(range(10))


def test_a_damaged_episode_file_is_a_clear_error(tmp_path):
    episodes = Episodes(tmp_path)
    episodes.write(1, [_record("1-ab-0", text="x" * 100)])
    path = tmp_path / "000001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(StorageError, match=r"000001.jsonl.gz cannot be read"):
        episodes.read(1)
    path.write_bytes(gzip.compress(b"{\n"))
    with pytest.raises(StorageError, match=r"000001.jsonl.gz cannot be read"):
        episodes.read(1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((b"{", *[b" " * 2**24] * 16, b"}\n"), "it expands to more than 268,435,456 bytes or 1,000,000 lines"),
        ((*[b"{}\n" * 125_000] * 8, b"{}\n"), "it expands to more than 268,435,456 bytes or 1,000,000 lines"),
        ((b"{", *[b" " * 2**24] * 8, b"}\n"), "it has more than 134,217,728 bytes"),
    ],
    ids=["file", "lines", "line"],
)
def test_a_small_file_that_holds_far_more_than_episodes_do(tmp_path, parts, message):
    compressed = {part: gzip.compress(part, 1) for part in {*parts}}
    (tmp_path / "000001.jsonl.gz").write_bytes(b"".join(compressed[part] for part in parts))
    with pytest.raises(StorageError, match=f"000001.jsonl.gz cannot be read: {message}"):
        Episodes(tmp_path).read(1)


def test_episodes_that_compress_well_are_read(tmp_path):
    """A policy that says one word only: 300 times as long as its file."""
    records = [_record(f"1-ab-{sample}", tokens=[5] * 20_000) for sample in range(40)]
    Episodes(tmp_path).write(1, records)
    assert Episodes(tmp_path).read(1) == records


@pytest.mark.parametrize("end", [b"}\n", b""])
def test_a_line_that_no_record_takes_is_an_error_with_its_number(tmp_path, monkeypatch, end):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2**10)
    (tmp_path / "log.jsonl").write_bytes(b"{}\n{" + b" " * 2**10 + end)
    with pytest.raises(StorageError, match=r"log.jsonl, line 2: it has more than 1,024 bytes"):
        list(Log(tmp_path / "log.jsonl").read())


def test_text_that_is_not_unicode_is_kept(tmp_path):
    """An environment may say anything, half a surrogate pair too."""
    log = Log(tmp_path / "log.jsonl")
    log.append([{"said": "\ud800"}])
    assert list(log.read()) == [{"said": "\ud800"}]
