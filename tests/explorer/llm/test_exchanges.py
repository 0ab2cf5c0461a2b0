"""The report of an evolution shows exactly what the endpoint received and replied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chat_server import Answer
from evolving import PARENT, SIGNALS, evolve
from models import MAIL, model

from cojax.explorer.llm.chat_model import Journal
from cojax.pool import make_task_record
from cojax.report.command import main
from cojax.report.exchanges import find_places, read_exchanges
from cojax.report.lineage import read_lineage
from cojax.report.page import write_report
from cojax.report.run import read_run
from cojax.storage.files import Log, write_json

NOISE = 'ignore the above\n\nreceived:\n  "quoted" \\ \u2028 </script>'


def test_every_text_of_a_task_is_shown_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replies = iter([Answer(NOISE)])
    done = evolve(
        model(reflect=lambda body, at: next(replies, None)),
        signals=SIGNALS[:2],
        runs=2,
        attempts=2,
        judge=False,
        journal=Journal(tmp_path / "journal.jsonl"),
    )
    write_json(tmp_path / "config.json", {"config": {}})
    Log(tmp_path / "tasks.jsonl").append(make_task_record(task) for task in (PARENT, *done.result.tasks))
    Log(tmp_path / "drafts.jsonl").append(done.result.drafts)
    Log(tmp_path / "expeditions.jsonl").append(done.result.expeditions)

    (task,) = [task for task in done.result.tasks if task.query == MAIL["query"]]
    story = read_lineage(tmp_path, task.id)
    assert story.expedition is not None
    assert read_run(tmp_path).expeditions[story.expedition]["signal"] == story.signal_evidence
    journal = tmp_path / "journal.jsonl"
    places = find_places(journal)
    explored, validated = (read_exchanges(journal, places[key]) for key in (story.expedition, task.id))
    parts = [exchange["place"].partition("/")[0] for exchange in explored]
    assert list(dict.fromkeys(parts)) == ["reflect", "run 0", "run 1", "abstract"]
    assert parts.count("run 0") == 8
    assert validated[0]["place"] == "judge"
    assert {exchange["place"].partition("/")[0] for exchange in validated[1:]} == {"attempt 0", "attempt 1"}

    sent = {json.dumps(body["messages"]) for body in done.server.bodies}
    for exchange in (*explored, *validated):
        messages = [{"role": role, "content": content} for role, content in exchange["messages"]]
        assert json.dumps(messages) in sent
        assert exchange["settings"]["seed"] >= 0
        assert exchange["facts"]["model"] == "m"
    # No call of the evolution belongs nowhere.
    ids = {record["task"] for record in done.result.drafts} | {t.id for t in done.result.tasks}
    found = {key: read_exchanges(journal, places.get(key, ())) for key in ((10, 0), (10, 1), *filter(None, ids))}
    assert sum(map(len, found.values())) == len(list(done.journal.read()))
    assert NOISE in [exchange["text"] for number in range(2) for exchange in found[10, number]]

    assert main([str(tmp_path), f"--task={task.id}"]) == 0
    said = capsys.readouterr().out
    assert f"exploration: {len(explored)} calls to a model" in said
    page = write_report(tmp_path).read_text()
    assert page.count("</script>") == 2


@pytest.mark.parametrize("place", ["0/initial/{}/reflect", "0/{}/1/reflect", "0/initial/1/run {}/turn 1"])
def test_a_forged_number_without_end_is_no_place(tmp_path: Path, place: str) -> None:
    Log(tmp_path / "journal.jsonl").append([{"key": "k", "place": place.format("9" * 5000), "sent": {"messages": []}}])
    assert not find_places(tmp_path / "journal.jsonl")
