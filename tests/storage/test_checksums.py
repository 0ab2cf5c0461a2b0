"""Logs that know what they hold: the same extent however they came to it, at a cost that does not grow."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cojax.storage.checksums import CheckedLog, Checksums, add_checksum, has_valid_checksum, hash_file
from cojax.storage.files import Log, StorageError


def test_the_extent_is_that_of_the_file_however_it_was_written(tmp_path):
    log = CheckedLog(tmp_path / "log.jsonl")
    assert log.measure_extent() == (0, 0, "cae66941d9efbd404e4d88758ea67670")  # BLAKE2b of nothing
    log.append([{"a": 1}, {"b": "é"}])
    log.append([])
    log.append([{"c": None}])
    content = log.path.read_bytes()
    assert log.measure_extent() == (34, 3, hashlib.blake2b(content, digest_size=16).hexdigest())
    again = CheckedLog(log.path)
    assert again.measure_extent() == log.measure_extent()
    again.append([{"d": 2}])
    assert CheckedLog(log.path).measure_extent() == again.measure_extent()
    assert len(again.take_new_sums()) == 4
    assert again.take_new_sums() == []


def test_a_log_goes_on_from_what_was_verified(tmp_path):
    log = CheckedLog(tmp_path / "log.jsonl")
    log.append([{"a": 1}])
    extent = log.measure_extent()
    log.append([{"a": 2}])
    whole = log.measure_extent()
    again = CheckedLog(log.path)
    again.verify(extent)
    assert list(again.records()) == [{"a": 1}]
    again.cut()
    again.append([{"a": 2}])
    assert again.measure_extent() == whole


def test_somebody_else_who_writes_is_noticed(tmp_path):
    log, other = CheckedLog(tmp_path / "log.jsonl"), Log(tmp_path / "log.jsonl")
    log.append([{"a": 1}])
    other.append([{"a": 1}])
    for ask in (log.measure_extent, lambda: log.append([{"a": 2}])):
        with pytest.raises(
            StorageError, match=r"log.jsonl was changed while the run was going: found 16 bytes, expected"
        ):
            ask()
    shared = CheckedLog(tmp_path / "shared.jsonl", is_shared=True)
    Log(shared.path).append([{"a": 1}, {"a": 2}])
    assert shared.measure_extent()[1] == 2
    Log(shared.path).append([{"a": 3}])
    assert shared.measure_extent()[1] == 3
    Log(shared.path).truncate(8)
    with pytest.raises(StorageError, match="was changed while the run was going"):
        shared.measure_extent()


def test_checksums_know_the_lines_and_files_by_name(tmp_path):
    checksums, log = Checksums(tmp_path), CheckedLog(tmp_path / "log.jsonl")
    log.append([{"a": 1}, {"a": 2}])
    checksums.add_lines({"log": log.take_new_sums(), "empty": []})
    (tmp_path / "model.json").write_text("{}")
    checksums.add_file(tmp_path / "model.json")
    checksums.add_file(tmp_path / "model.json", b"[]")
    log.append([{"a": 3}])
    checksums.add_lines({"log": log.take_new_sums()})
    again = Checksums(tmp_path)
    again.verify(checksums.log.measure_extent())
    assert again.read_files() == {"model.json": f"2:{hashlib.blake2b(b'[]', digest_size=16).hexdigest()}"}
    assert again.read_files()["model.json"] != hash_file(tmp_path / "model.json")
    assert again.read_lines("log") == [hashlib.blake2b(b'{"a":%d}' % n, digest_size=8).hexdigest() for n in (1, 2, 3)]


def test_a_signed_record_is_known_by_its_content():
    record = add_checksum({"b": [1, 2.5], "a": "é"})
    assert has_valid_checksum(record)
    assert has_valid_checksum({"a": "é", "checksum": record["checksum"], "b": [1, 2.5]})
    assert not has_valid_checksum({"a": 1})
    with pytest.raises(ValueError, match="its checksum differs"):
        has_valid_checksum({**record, "a": "e"})


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads")
def test_an_append_reads_little_of_what_was_written_before(tmp_path):
    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    log = CheckedLog(tmp_path / "log.jsonl")
    log.append({"task": number, "text": "x" * 100} for number in range(100_000))
    log.take_new_sums()
    before = bytes_read()
    for _ in range(10):
        log.append([{"task": 0, "text": "x" * 100}])
        log.measure_extent()
    assert log.path.stat().st_size > 10_000_000
    assert bytes_read() - before < 2_000_000  # ten appends, each of which may read the end of the file
