"""Stored records of the study: one compressed file an arm, damaged files, several writers, the repository's own."""

import functools
import gzip
import json
import threading

import pytest
from patience import patience
from study_records import record

from cojax.storage.files import StorageError, lock_folder, write_json
from experiments.study import __main__ as command
from experiments.study import stored
from experiments.study.comparison import explain_mismatch
from experiments.study.tables import ARMS, TABLES, jobs


def lines(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_an_arm_has_one_file_with_a_line_for_each_seed_in_their_order(tmp_path):
    made = [record("static", seed, 0.5) for seed in (103, 101, 102)]
    for one in [*made, record("without-rare", 101, 0.75)]:
        stored.store_record(tmp_path, one)
    assert sorted(path.name for path in (tmp_path / "runs").glob("*.gz")) == [
        "static.jsonl.gz",
        "without-rare.jsonl.gz",
    ]
    assert [json.loads(line) for line in lines(stored.make_path(tmp_path, "static"))] == [made[1], made[2], made[0]]
    assert stored.read_arm(tmp_path, "static") == {one["seed"]: one for one in made}
    assert list(stored.read_all(tmp_path)) == [
        ("static", 101), ("static", 102), ("static", 103), ("without-rare", 101),
    ]  # fmt: skip
    assert stored.read_run(tmp_path, "without-rare-101")["final"] == 0.75
    assert stored.read_runs(tmp_path, jobs(["static", "feedback"], [102, 104])) == {("static", 102): made[2]}
    with pytest.raises(ValueError, match=r"no record 'static-104'.*static has the seeds 101, 102, 103$"):
        stored.read_run(tmp_path, "static-104")
    with pytest.raises(ValueError, match=r"no record 'static'.*; expected ARM-SEED, of the arms static, without-rare$"):
        stored.read_run(tmp_path, "static")


def test_records_of_a_pretrained_model_have_a_folder_of_their_own(tmp_path):
    made = record("pretrained-static", 301, 0.5)
    stored.store_record(tmp_path, made)
    assert [path.name for path in (tmp_path / "pretrained").iterdir()] == ["pretrained-static.jsonl.gz"]
    assert stored.read_all(tmp_path) == {("pretrained-static", 301): made}
    assert stored.read_run(tmp_path, "pretrained-static-301") == made


def test_a_record_takes_the_place_of_one_of_its_seed(tmp_path):
    for final in (0.25, 0.75):
        stored.store_record(tmp_path, record("static", 101, final))
    assert [json.loads(line)["final"] for line in lines(stored.make_path(tmp_path, "static"))] == [0.75]


def test_the_bytes_depend_on_the_records_alone(tmp_path):
    made = [record("static", seed, 0.5) for seed in (101, 102)]
    for folder, some in (("one", made), ("other", [record("static", 102, 0.25), *reversed(made)])):
        for one in some:
            stored.store_record(tmp_path / folder, one)
    content = stored.make_path(tmp_path / "one", "static").read_bytes()
    assert content == stored.make_path(tmp_path / "other", "static").read_bytes()
    # RFC 1952: magic, deflate, no flags (so no name), no time, slowest, unknown system.
    assert content[:10] == bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 2, 255])


def test_runs_that_end_at_once_are_all_stored(tmp_path):
    together, errors = threading.Barrier(8), []

    def end(seed):
        try:
            together.wait(patience(30))
            stored.store_record(tmp_path, record("static", seed, 0.5))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=end, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(60))
    assert errors == []
    assert list(stored.read_arm(tmp_path, "static")) == list(range(8))


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    stored.store_record(tmp_path, record("static", 101, 0.5))
    before = stored.make_path(tmp_path, "static").read_bytes()

    def full(path, content):
        raise StorageError(f"cannot write {path}")

    monkeypatch.setattr(stored, "replace_file", full)
    with pytest.raises(StorageError, match="cannot write"):
        stored.store_record(tmp_path, record("static", 102, 0.5))
    monkeypatch.undo()
    with pytest.raises(ValueError, match="a record is not strict JSON"):
        stored.store_record(tmp_path, record("static", 102, 0.5) | {"final": float("nan")})
    assert stored.make_path(tmp_path, "static").read_bytes() == before


GOOD = record("static", 101, 0.5)


def packed(content: bytes) -> bytes:
    """The same bytes whenever it is called, as tests are named by them."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no gzip", "cannot be read"),
        (packed(json.dumps(GOOD).encode())[:-9], "cannot be read"),
        (packed(b"{"), ", line 1 cannot be read"),
        (packed(b"{}"), ", line 1 .*has 'arm', which is missing"),
        (packed(b"[]"), ", line 1 .*it holds list instead of an object"),
        (packed(json.dumps({**GOOD, "config": []}).encode()), "config is \\[\\]; expected a valid dictionary"),
        (packed(json.dumps({**GOOD, "arm": "feedback"}).encode()), "it belongs to the run feedback-101"),
        (packed(2 * (json.dumps(GOOD) + "\n").encode()), ", line 2 .*seed 101 has two records"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_its_path_and_line_and_left_alone(tmp_path, content, why):
    path = stored.make_path(tmp_path, "static")
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path}.*{why}"):
        stored.read_runs(tmp_path, jobs(["static"], [101]))
    with pytest.raises(ValueError, match="restore the file, or delete it and run the study again"):
        stored.store_record(tmp_path, record("static", 102, 0.5))
    assert path.read_bytes() == content


def test_the_command_stores_a_run_as_it_ends_and_reads_it_back(tmp_path, monkeypatch, capsys):
    made = []

    def end_all(left, folder, cores, deadline, stop, on_end):
        for job in left:
            on_end(job, "", 1.0)
            made.append(job.name)

    monkeypatch.setattr(command.schedule, "run_all", end_all)
    monkeypatch.setattr(command.schedule, "run_job", lambda *given: "")
    monkeypatch.setattr(command, "try_record", lambda job, *given: (record(job.arm, job.seed, 0.5), ""))
    monkeypatch.setattr(command, "write_table", lambda *given: None)
    out = tmp_path / "out"
    given = ["--arms=static,feedback", f"--runs={tmp_path / 'runs'}", f"--out={out}"]
    assert command.main([*given, "--seeds=1"]) == 0
    assert command.main([*given, "--seeds=2"]) == 0
    assert made == ["static-101", "feedback-101", "static-102", "feedback-102"]
    assert sorted(stored.read_all(out)) == [(arm, seed) for arm in ("feedback", "static") for seed in (101, 102)]
    assert command.main(["--again=feedback-102", *given[1:]]) == 0
    monkeypatch.setattr(command, "try_record", lambda job, *given: (record(job.arm, job.seed, 0.75), ""))
    assert command.main(["--again=feedback-102", *given[1:]]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "4 runs, 2 of them stored" in said
    assert "feedback-102: stored 50.00 %, now 50.00 %: the same to the last bit" in said
    assert "feedback-102: stored 50.00 %, now 75.00 %: differs in final" in said


def test_a_smaller_table_or_one_of_another_split_does_not_replace_a_kept_one(tmp_path, monkeypatch, capsys):
    begun = []
    monkeypatch.setattr(command.schedule, "run_all", lambda left, *given: begun.append(len(left)))
    out = tmp_path / "out"
    write_json(out / "main.json", {"seeds": [101, 102, 103], "split": "eval"})
    given = [f"--runs={tmp_path / 'runs'}", f"--out={out}"]
    kept = "main.json holds a table of 3 seeds on the split 'eval', which one of "
    for flags, said in (
        (["--quick"], f"{kept}2 seeds on the split 'eval' would replace; choose another --out, or --seeds=3\n"),
        (["--development"], f"{kept}6 seeds on the split 'dev' would replace; choose another --out\n"),
    ):
        assert command.main([*given, *flags]) == 2
        assert capsys.readouterr().err.endswith(said)
    assert begun == []
    assert command.main([*given, "--seeds=3"]) == command.main([*given, "--seeds=4"]) == 0
    assert begun == [18, 24]
    (out / "main.json").write_text("{")
    assert command.main([*given, "--seeds=3"]) == 2
    assert "restore it, or delete it" in capsys.readouterr().err


def test_a_run_is_not_made_anew_in_a_folder_that_is_in_use(tmp_path, monkeypatch, capsys):
    stored.store_record(tmp_path, record("static", 101, 0.5))
    workdir = tmp_path / "runs/again/static-101"
    monkeypatch.setattr(command.schedule, "_STOP_GRACE_S", 0.0)
    with lock_folder(workdir, "--runs"):
        assert command.main(["--again=static-101", f"--runs={tmp_path / 'runs'}", f"--out={tmp_path}"]) == 2
        assert (workdir / ".lock").exists()
    assert f"another process is still running in {workdir}; wait for it" in capsys.readouterr().err


def test_a_run_that_was_not_evaluated_is_compared_too(tmp_path, monkeypatch, capsys):
    bare = record("static", 101, 0.5) | {"zero_shot": None, "final": None}
    stored.store_record(tmp_path, bare)
    monkeypatch.setattr(command.schedule, "run_job", lambda *given: "")
    monkeypatch.setattr(command, "try_record", lambda *given: (bare, ""))
    assert command.main(["--again=static-101", f"--runs={tmp_path / 'runs'}", f"--out={tmp_path}"]) == 0
    assert "stored – %, now – %: the same to the last bit" in " ".join(capsys.readouterr().out.split())


@functools.cache
def kept(folder):
    """The records that git holds there."""
    return stored.read_all(folder)


@pytest.mark.parametrize("folder", [command.RESULTS, command.RESULTS / "first"], ids=["today", "first"])
def test_the_records_of_the_repository_are_of_known_arms_and_can_be_read(folder):
    found = kept(folder)
    assert {arm for arm, _ in found} <= set(ARMS)
    # The tables kept in git name the seeds of their arms.
    pages = sorted(folder.glob("*.json"))
    assert len(pages) >= 5
    for page in pages:
        table = json.loads(page.read_text())
        for row in table["arms"]:
            finals = [found[row["arm"], seed]["final"] for seed in table["seeds"]]
            assert sum(finals) / len(finals) == pytest.approx(row["final"]["mean"], abs=1e-12), page


def test_the_stored_records_are_of_todays_settings() -> None:
    """Otherwise a table cannot be made again from them, and no new run is compared with them."""
    known = kept(command.RESULTS)
    runs = [
        job
        for table in TABLES.values()
        for job in jobs(table.arms, table.seeds, further=table.settings)
        if (job.arm, job.seed) in known
    ]
    assert {(job.arm, job.seed) for job in runs} == known.keys()
    assert {job.name: found for job in runs if (found := explain_mismatch(known[job.arm, job.seed], job.config))} == {}
