import dataclasses
import json

import pytest
from records import call, task

from cojax.pool import TaskPool, make_task_record, read_task_record
from cojax.types import Lineage, Task


def tasks(first: int, last: int) -> tuple[Task, ...]:
    return tuple(task(f"task {number}") for number in range(first, last))


def test_adding_drops_known_ids_and_leaves_the_old_pool_as_it_was() -> None:
    old = TaskPool.of(tasks(0, 3))
    new = old.add((*tasks(2, 5), *tasks(4, 5)))
    assert [t.query for t in old] == ["task 0", "task 1", "task 2"]
    assert [t.query for t in new] == ["task 0", "task 1", "task 2", "task 3", "task 4"]
    assert [t.query for t in new.fresh] == ["task 3", "task 4"]
    assert task("task 4").id in new
    assert task("task 4").id not in old
    with pytest.raises(KeyError, match="not among the 3 tasks"):
        old.get(task("task 4").id)
    assert new.get(task("TASK  4").id).query == "task 4"  # case and spaces do not make another query


def test_two_pools_grown_from_one_do_not_see_each_other() -> None:
    root = TaskPool.of(tasks(0, 2))
    left, right = root.add(tasks(2, 4)), root.add(tasks(5, 6))
    assert [t.query for t in left] == ["task 0", "task 1", "task 2", "task 3"]
    assert [t.query for t in right] == ["task 0", "task 1", "task 5"]
    assert len(root) == 2


def test_adding_nothing_new_keeps_the_newest_addition() -> None:
    pool = TaskPool.of(tasks(0, 2)).add(tasks(2, 3)).add(()).add(tasks(0, 1))
    assert [t.query for t in pool.fresh] == ["task 2"]
    assert [t.query for t in TaskPool.of(pool, fresh_count=1).fresh] == ["task 2"]
    with pytest.raises(ValueError, match="fresh is 4; expected 0 to 3"):
        TaskPool.of(pool, fresh_count=4)


def test_a_sample_has_different_tasks_and_depends_on_its_seed_alone() -> None:
    pool = TaskPool.of(tasks(0, 50))
    drawn = pool.sample(20, (0, 3))
    assert len({t.id for t in drawn}) == 20
    assert drawn == TaskPool.of(tasks(0, 50)).sample(20, (0, 3))
    assert drawn != pool.sample(20, (0, 4))
    assert {t.id for t in pool.sample(80, (1,))} == {t.id for t in pool}


def test_the_draw_is_the_same_on_every_machine() -> None:
    assert [t.query for t in TaskPool.of(tasks(0, 6)).sample(3, (0, 1))] == ["task 5", "task 4", "task 2"]


def test_the_fresh_share_comes_from_the_newest_addition() -> None:
    pool = TaskPool.of(tasks(0, 1000)).add(tasks(1000, 1040))
    newest = {t.id for t in pool.fresh}
    drawn = pool.sample(16, (7,), fresh_fraction=0.5)
    assert len({t.id for t in drawn}) == 16
    assert 8 <= sum(t.id in newest for t in drawn) <= 11  # 8, and what the other 8 of 1,040 happen to hit
    assert all(t.id in newest for t in pool.sample(40, (7,), fresh_fraction=1.0))
    few = TaskPool.of(tasks(0, 20)).add(tasks(20, 22)).sample(10, (0,), fresh_fraction=1.0)
    assert len({t.id for t in few}) == 10


def test_an_empty_pool_and_a_wrong_share_name_the_fix() -> None:
    with pytest.raises(ValueError, match=r"pool is empty.*Raise initial_tasks"):
        TaskPool().sample(4, (0,))
    with pytest.raises(ValueError, match=r"fresh_fraction is 1\.5"):
        TaskPool.of(tasks(0, 1)).sample(1, (0,), fresh_fraction=1.5)


def test_a_record_carries_the_task_and_guards_its_content() -> None:
    original = dataclasses.replace(
        task("move report", [call("files_move", file="report", folder="taxes"), call("finish")]),
        origin="rare",
        lineage=Lineage(parent="p", signal="s", runs=(1,), verdict="accepted", evidence=("line",), step=10),
    )
    record = json.loads(json.dumps(make_task_record(original)))
    assert read_task_record(record) == original
    assert read_task_record(record).solution == original.solution
    with pytest.raises(ValueError, match=r"tasks\.jsonl line 7: id .* was edited or damaged"):
        read_task_record({**record, "query": "move budget"}, line_number=7)
    with pytest.raises(ValueError, match="line 8: not a task: Task has no field"):
        read_task_record({**record, "colour": "red"}, line_number=8)
    with pytest.raises(ValueError, match="not a task"):
        read_task_record({"id": "x"})
