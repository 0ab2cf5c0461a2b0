"""What a fork does without, which step shows it first, and what the command refuses in one line."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from records import group, task
from small_runs import finished

from cojax.pool import TaskPool
from cojax.report.comparison import build_differences, list_forks
from cojax.report.run import describe_fork, read_run
from cojax.run.changes import Change, Fork, Silent, read_fork
from cojax.run.fork import main, make_fork, read_parent
from cojax.settings.base import get_config
from cojax.signals import Rare
from cojax.storage.checksums import add_checksum
from cojax.storage.files import StorageError
from cojax.storage.run_files import verify_run
from cojax.types import Lineage, Signal, Task
from experiments import worth


def child(name: str, parent: Task, step: int, origin: str = "rare") -> Task:
    return dataclasses.replace(task(name), origin=origin, lineage=Lineage(parent=parent.id, step=step))


FIRST, SECOND = task("first"), task("second")
SON = child("son", FIRST, 10)
GRANDSON, NEPHEW = child("grandson", SON, 20, "boundary"), child("nephew", SECOND, 20)
POOL = TaskPool.of([FIRST, SECOND, SON, GRANDSON, NEPHEW], fresh_count=2)


def names(tasks) -> list[str]:
    return [task.query for task in tasks]


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (f"task:{FIRST.id}", ["first", "son", "grandson"]),
        (f"task:{SON.id}", ["son", "grandson"]),
        ("origin:rare", ["son", "nephew"]),
        ("evolution:20", ["grandson", "nephew"]),
        ("signal:rare", []),
        ("validation", []),
    ],
)
def test_what_is_gone(text: str, gone: list[str]) -> None:
    change = Change.read(text)
    assert str(change) == text
    assert names(task for task in POOL if change.covers(task, POOL)) == gone


@pytest.mark.parametrize("text", ["task", "task:", "validation:all", "evolution:last", "evolution:-1", "steps:3", ""])
def test_other_texts_are_no_change(text: str) -> None:
    with pytest.raises(ValueError, match="expected task:ID, origin:NAME, evolution:STEP, signal:KIND, validation"):
        Change.read(text)


def test_a_draw_is_the_parents_but_for_what_is_gone() -> None:
    pool = TaskPool.of([task(str(number)) for number in range(40)], fresh_count=10)
    fork = Fork((Change("task", task("7").id), Change("task", task("35").id)))
    replaced = 0
    for seed in range(200):
        for shares in ((0.0, None), (0.5, None), (0.0, lambda task_id: 1.0 + ("7" in task_id))):
            parents, own = pool.sample(8, (0, seed), *shares), fork.draw(pool, 8, (0, seed), *shares)
            assert len({task.id for task in own}) == 8
            assert not {"7", "35"} & set(names(own))
            for before, after in zip(parents, own, strict=True):
                assert before is after or before.query in ("7", "35")
                replaced += before is not after
    assert replaced == 275


def test_a_pool_of_few_is_drawn_whole_and_one_of_none_is_an_error() -> None:
    fork = Fork((Change("task", FIRST.id),))
    assert sorted(names(fork.draw(POOL, 8, (0, 1)))) == ["nephew", "second"]
    assert sorted(names(fork.draw(POOL, 2, (0, 1)))) == ["nephew", "second"]
    assert fork.draw(POOL, 0, (0, 1)) == ()
    with pytest.raises(ValueError, match="every task of the pool is gone"):
        Fork((Change("task", FIRST.id), Change("task", SECOND.id))).draw(POOL, 2, (0, 1))


def test_a_silent_detector_remembers_and_says_nothing() -> None:
    detector = Rare(minimum=1, percent=50.0)
    groups = [group(FIRST, 1.0, 0.0)]
    assert Silent(detector).init() == detector.init()
    assert Silent(detector).update(detector.init(), groups) == (detector.update(detector.init(), groups)[0], [])


def test_pending_signals_and_groups_ahead_that_are_gone_are_dropped() -> None:
    pending = (Signal("rare", FIRST.id, "e0", ""), Signal("boundary", FIRST.id, "e1", ""))
    waiting = ((group(SON, 1.0), group(SECOND, 0.0)), (group(FIRST, 1.0),))
    checkpoint = dataclasses.make_dataclass("Checkpoint", ["pending", "waiting", "pool"])(pending, waiting, POOL)
    reduced = Fork((Change("signal", "rare"), Change("task", FIRST.id))).reduce(checkpoint)
    assert (reduced.pending, reduced.waiting) == (pending[1:], (waiting[0][1:], ()))
    assert Fork().reduce(checkpoint) == checkpoint


def test_a_repeat_samples_by_its_own_seed() -> None:
    loop = dataclasses.make_dataclass("Loop", ["kinds", "detectors", "seed", "draw"])({}, {}, 3, TaskPool.sample)
    assert (Fork().apply(loop).seed, Fork((), 0).apply(loop).seed) == (3, 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps whose checkpoints 0, 2, 4, 6 are kept and whose evolutions are at steps 3 and 6."""
    folder = finished(tmp_path_factory.mktemp("forks") / "run", checkpoints_kept=9)
    config = get_config()
    config.steps = 6
    (folder / "config.json").write_text(json.dumps({"config": config.to_dict()}))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"signals": {"rare": 1, "boundary": int(row["step"] > 3)}, "dev": {"success": row["step"] / 10}}
        row |= {"evolution": {"step": row["step"]}} if row["step"] % 3 == 0 else {}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


TASKS = [f"count to {name}" for name in ("0", "1", "2", "new 3", "new 6")]


def test_the_first_step_that_shows_it(run: Path) -> None:
    parent = read_parent(run, 2)
    ids = {task.query: task.id for task in parent.pool}
    assert list(ids) == TASKS
    for text, said in (
        (f"task:{ids['count to 0']}", f"up to step 6 the fork equals {run}: no step since 2 drew what is gone"),
        (
            f"task:{ids['count to 1']}",
            f"up to step 2 the fork equals {run}; step 3 is the first that drew what is gone",
        ),
        ("signal:rare", f"up to step 3 the fork draws and learns as {run}; its evolution is the first change"),
        ("signal:boundary", f"up to step 6 the fork draws and learns as {run}; its evolution is the first change"),
        ("signal:forgetting", f"up to step 6 the fork equals {run}: no evolution since 2 used it"),
        ("validation", f"up to step 3 the fork draws and learns as {run}; its evolution is the first change"),
    ):
        assert parent.describe_first(Change.read(text)) == said


def test_episodes_no_longer_stored_are_said_to_be_unknown(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "episodes/000004.jsonl.gz").unlink()
    first = read_parent(copy, 2).describe_first(Change("origin", "nobody"))
    assert first == f"up to step 3 the fork equals {copy}; which tasks step 4 drew is no longer stored"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--at=3 --without=validation", "keeps no checkpoint of step 3; name one by --at: 0, 2, 4, 6; a larger"),
        ("--at=2 --without=nothing", "--without=nothing names nothing to do without; expected task:ID"),
        ("--at=2 --without=task:zzz", "0 tasks are task:zzz…; give an id of"),
        ("--at=2 --without=origin:sed", "has no origin:sed; it has seed"),
        ("--at=2 --without=evolution:4", "has no evolution:4; it has 3, 6"),
        ("--at=2 --without=signal:odd", "has no signal:odd; it has rare, boundary"),
        ("--at=6 --without=validation", "step 6 is the run's last; name an earlier --at, or a larger --config.steps"),
        ("--at=2 --without=origin:seed", "without origin:seed no task is left at step 2; take away less"),
    ],
)
def test_bad_input_is_one_line_and_makes_nothing(
    flags: str, said: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), *flags.split(), f"--workdir={tmp_path / 'fork'}"]) == 1
    shown = capsys.readouterr().out
    assert said in shown
    assert shown.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_places_that_would_harm_a_run_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.txt").touch()
    change = ["--at=2", "--without=validation"]
    for place in (run, run / "fork", run.parent):
        assert main([str(run), *change, f"--workdir={place}"]) == 1
        assert "lie in each other" in capsys.readouterr().out
    assert main([str(run), *change, f"--workdir={tmp_path / 'full'}"]) == 1
    assert "is there already and not this fork; choose another --workdir" in capsys.readouterr().out
    assert main([str(tmp_path / "none"), *change, f"--workdir={tmp_path / 'fork'}"]) == 1
    assert "is not a run directory" in capsys.readouterr().out
    for flag, error in (("--repeats=1", "an interval needs at least 2"), ("--evry=2", "--evry is not a flag")):
        with pytest.raises(SystemExit):
            main([str(run), *change, f"--workdir={tmp_path / 'fork'}", flag, "--config.steps=9"])
        assert error in capsys.readouterr().err


def test_a_fork_of_a_fork_does_without_both(run: Path, tmp_path: Path) -> None:
    sound = finished(tmp_path / "sound", checkpoints_kept=9)  # its logs are as its checkpoints say
    (sound / "config.json").write_text((run / "config.json").read_text())
    first, second = tmp_path / "first", tmp_path / "second"
    make_fork(read_parent(sound, 4), Change("validation"), first)
    make_fork(read_parent(first, 4), Change("signal", "rare"), second, seed=5)
    make_fork(read_parent(first, 4), Change("signal", "rare"), second, seed=5)  # is there already
    with pytest.raises(FileExistsError):
        make_fork(read_parent(first, 4), Change("signal", "boundary"), second, seed=5)
    assert read_fork(sound) == Fork()
    assert read_fork(second) == Fork((Change("validation"), Change("signal", "rare")), 5)
    assert verify_run(second).step == 4
    config = json.loads((second / "config.json").read_text())
    assert (config["config"]["validate"], config["config"]["workdir"]) == (False, str(second))
    assert config["history"] == [{"step": 4, "settings": {"validate": [True, False]}}]
    said = "fork of first at step 4 without signal:rare, itself a fork of sound at step 4 without validation"
    for folder in (sound, second):
        (folder / "drafts.jsonl").unlink()  # too short for a report
    fork = read_run(second)
    assert describe_fork(fork.fork) == f"{said}, sampling seed 5"
    assert list_forks([read_run(sound)]) == []
    assert list_forks([fork])[0] == f"second is a {said}, sampling seed 5."
    assert "One pair of runs is one draw" in str(build_differences([read_run(sound), fork]).caption)


@pytest.mark.parametrize("content", [{"forks": [{"step": 1, "without": "nothing"}], "seed": None}, {"forks": []}, []])
def test_what_no_fork_wrote_is_refused(content: object, tmp_path: Path) -> None:
    (tmp_path / "fork.json").write_text(json.dumps(content))
    with pytest.raises((StorageError, ValueError), match=r"names nothing to do without|not what cojax fork wrote"):
        read_fork(tmp_path)
    (tmp_path / "fork.json").write_text(json.dumps({**add_checksum({"forks": [], "seed": 1}), "seed": 2}))
    with pytest.raises(StorageError, match="its checksum differs"):
        read_fork(tmp_path)


def test_repeats_are_pairs_with_an_interval_over_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Differences of 1/2, 0 and 1 between pairs: mean 1/2, t₀.₉₇₅(2) · ½ / √3 = 1.2421 on either side."""
    made: list[tuple] = []
    scores = {"1": {"a": 0.0, "b": 1.0}, "2": {"a": 0.0, "b": 0.0}, "3": {"a": 1.0, "b": 1.0}}

    def final(folder: Path) -> SimpleNamespace:
        tasks = {"a": 0.0, "b": 0.0} if folder.parent.name == "controls" else scores[folder.name]
        return SimpleNamespace(final={"success": sum(tasks.values()) / 2, "tasks": tasks})

    monkeypatch.setattr("cojax.run.fork.make_fork", lambda *arguments: made.append(arguments[1:]))
    monkeypatch.setattr("cojax.run.fork.finish", lambda arguments, show: made.append((arguments[1],)))
    monkeypatch.setattr("cojax.run.fork.read_ended_run", final)
    workdir = tmp_path / "forks"
    assert main([str(run), "--at=2", "--without=evolution:3", f"--workdir={workdir}", "--repeats=3"]) == 0
    folders = [workdir / "controls/2-1", workdir / "1", workdir / "controls/2-2", workdir / "2"]
    assert [folder for _, folder, _ in made[:4]] == folders
    assert [change and str(change) for change, _, _ in made[:2]] == [None, "evolution:3"]
    seeds = [seed for _, _, seed in made[:6]]
    assert seeds[0::2] == seeds[1::2]
    assert len(set(seeds)) == 3
    assert [one for (one,) in made[6:8]] == [f"--workdir={folder}" for folder in folders[:2]]
    record = json.loads((workdir / "repeats.json").read_text())
    assert (record["parent"], record["step"], record["without"]) == ("run", 2, "evolution:3")
    assert record["mean"] == pytest.approx(0.5)
    assert record["high"] - record["mean"] == pytest.approx(1.2421, abs=1e-4)
    assert "+50.0 points, 95 % interval over 3 repeats -74.2 to +174.2" in capsys.readouterr().out
    assert list(worth.list_rows(workdir))[1:] == ["| evolution:3 | 2 | 3 | +50.0 | -74.2 to +174.2 |"]


def test_the_forks_that_say_what_tasks_were_worth(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "drafts.jsonl").unlink()  # too short for a report
    commands = list(worth.list_commands(read_run(copy)))
    assert len(commands) == 3
    assert commands[0] == (
        f"cojax fork {copy} --at=2 --without=evolution:3 --workdir=runs/forks/evolution-3 "
        "--controls=runs/forks/controls --repeats=5"
    )
