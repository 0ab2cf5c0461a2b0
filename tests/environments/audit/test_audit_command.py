"""`cojax audit`: JSON lines, exit statuses, replays, accepted findings, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cojax.pool import make_task_record
from cojax.types import Action, Call, Lineage, Task
from environments.audit.__main__ import main

# All attackers that play in this process alone.
QUICK = "--attackers=null,greeting,random,solution,drop,stop,swap,shotgun,extra,order"


@pytest.fixture(autouse=True)
def _fixtures_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def audited(capsys, *arguments):
    """The exit status, the objects on stdout and what is on stderr."""
    status = main(list(arguments))
    output = capsys.readouterr()
    return status, [json.loads(line) for line in output.out.splitlines()], output.err


def test_the_desk_has_no_open_finding(capsys):
    status, objects, errors = audited(capsys, "desk", "--tasks=2", "--json")
    assert status == 0
    (summary,) = objects
    assert summary["tasks"] == 2
    assert summary["findings"] == {"critical": 0, "high": 0, "medium": 0, "low": 0}
    assert summary["floor"] == {"null": 0.0, "greeting": 0.0, "random": 0.0}
    assert summary["seed"] == 0
    assert summary["episodes"] >= sum(tally["episodes"] for tally in summary["attackers"].values()) > 200
    assert {tally["verdict"] for tally in summary["attackers"].values()} == {"holds"}
    assert summary["left_out"] == {}
    assert errors.splitlines()[-1].startswith("::notice title=cojax audit::desk: 2 tasks, ")


def test_findings_come_first_and_open_ones_decide_the_status(capsys):
    arguments = ("holed_worlds:forgetful", "--json", QUICK)
    status, objects, errors = audited(capsys, *arguments)
    assert status == 1
    *findings, summary = objects
    assert [(finding["severity"], finding["attacker"]) for finding in findings] == [
        *[("high", "drop")] * 3, *[("high", "stop")] * 3, *[("high", "swap")] * 3, *[("medium", "extra")] * 3
    ]  # fmt: skip
    first = findings[0]
    assert (first["verdict"], first["rule"]) == ("open", "ABC O.g.3; RFC 008 #28")
    assert first["id"] == f"drop/{first['task']}/2"
    assert summary["findings"] == {"critical": 0, "high": 9, "medium": 3, "low": 0}
    assert errors.splitlines()[-1].startswith("::error title=cojax audit::holed_worlds:forgetful: 3 tasks, ")
    assert audited(capsys, *arguments, "--fail-on=critical")[0] == 0
    assert audited(capsys, *arguments, "--fail-on=never")[0] == 0


def test_an_accepted_finding_is_by_design(capsys, tmp_path):
    entries = [
        f'[[accept]]\nattacker = "{attacker}"\ntask = "*"\nreason = "labels are a courtesy"\n'
        for attacker in ("drop", "stop", "swap")
    ]
    (tmp_path / "accepted.toml").write_text("".join(entries))
    accepted = f"--accepted={tmp_path / 'accepted.toml'}"
    status, objects, _ = audited(capsys, "holed_worlds:forgetful", "--json", QUICK, accepted)
    assert status == 0
    assert [finding["verdict"] for finding in objects[:9]] == ["by design"] * 9
    assert objects[0]["reason"] == "labels are a courtesy"
    assert objects[-1]["findings"] == {"critical": 0, "high": 0, "medium": 3, "low": 0}
    assert objects[-1]["by_design"] == 9
    assert audited(capsys, "holed_worlds:forgetful", "--json", QUICK, accepted, "--fail-on=medium")[0] == 1


def test_a_finding_is_played_again(capsys):
    _, objects, _ = audited(capsys, "holed_worlds:forgetful", "--json", "--attackers=drop", "--tasks=2")
    assert main(["holed_worlds:forgetful", f"--replay={objects[1]['id']}"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{objects[1]['id']}: ")
    assert "    'put(item=figs, amount=2)'" in lines
    assert lines.index("honest:") > lines.index("attacker:")
    with pytest.raises(SystemExit) as exit_of:
        main(["holed_worlds:forgetful", "--replay=drop/0123456789abcdef/1"])
    assert exit_of.value.code == 2
    assert "there is no such task or attacker" in capsys.readouterr().err


def test_a_leak_that_needs_other_processes_is_played_again(capsys):
    _, objects, _ = audited(capsys, "holed_worlds:remembered", "--json", "--attackers=leak")
    assert [finding["attacker"] for finding in objects[:-1]] == ["leak", "leak"]
    assert main(["holed_worlds:remembered", f"--replay={objects[0]['id']}"]) == 1


def test_without_json_it_prints_a_table(capsys):
    assert main(["holed_worlds:solved", "--attackers=null,random", "--tasks=4"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("critical null      open      null/")
    assert lines[1] == (
        "         ABC T.10; RFC 008 #25. To mend it, let the judge ask for what the task changes, and drop tasks whose "
        "setup is their goal."
    )
    assert lines[-2].split() == ["random", "holds", "tried", "12", "times", "in", "4", "tasks"]


def test_an_attacker_of_ones_own(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_attackers.py").write_text(
        "from cojax.types import Action, Call\n"
        "from environments.audit.player import Attempt\n\n\n"
        "def label_nothing(scene):\n"
        "    put = scene.solution[0]\n"
        "    yield Attempt('puts and leaves', (put, scene.ending.bare()))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ("holed_worlds:forgetful", "--json", "--attackers=my_attackers:label_nothing")
    status, objects, _ = audited(capsys, *arguments)
    assert status == 1
    assert [(finding["attacker"], finding["severity"]) for finding in objects[:-1]] == [
        ("my_attackers:label_nothing", "high")
    ] * 3


def test_what_a_world_prints_is_no_result(capsys, tmp_path, monkeypatch):
    (tmp_path / "loud_world.py").write_text(
        "import sound_worlds\n\n\ndef make():\n    print('hello')\n    return sound_worlds.quiz()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    status, objects, errors = audited(capsys, "loud_world", "--json", QUICK)
    assert (status, len(objects)) == (0, 1)
    assert "hello" in errors


def test_a_page_is_written(capsys, tmp_path):
    page = tmp_path / "pages" / "audit.html"
    audited(capsys, "holed_worlds:forgetful", "--json", "--attackers=drop", f"--html={page}")
    text = page.read_text()
    assert text.count("<details ") == 3
    assert "put(item=rice, amount=3)" in text
    assert "{{" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no world is named; expected a name, such as desk, or --run W"),
        (("dest",), "did you mean"),
        (("desk", "--tasks=0"), "argument --tasks: is '0'; expected a whole number above 0"),
        (("desk", "--budget=-1"), "argument --budget: is '-1'; expected a number above 0"),
        (("desk", "--set", "suites"), "--set suites has no value; give it as --set KEY=VALUE"),
        (("desk", "--attackers=nul"), "attacker 'nul' not found; available: null, greeting, "),
        (("desk", "--accepted=nowhere.toml"), "No such file or directory: 'nowhere.toml'; expected a TOML file"),
        (("desk", "--splits=nowhere"), "'desk' has no task in nowhere; name its --splits"),
        (("desk", "--run=nowhere"), "nowhere is not a folder; expected the workdir of a run"),
    ],
)
def test_an_error_is_one_line_that_names_the_fix(capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_of:
        main(list(arguments))
    assert exit_of.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def _run_folder(folder, environment, tasks):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"config": {"environment": environment}}))
    (folder / "metrics.jsonl").write_text("")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(make_task_record(task)) + "\n" for task in tasks))
    return folder


def test_the_synthesized_tasks_of_a_run_are_audited(capsys, tmp_path):
    import environments

    seed_task, other = environments.load("desk").tasks("seed", 2)
    found = Task("desk", other.query, other.setup, other.solution, "boundary", Lineage(signal="boundary"))
    empty = Task("desk", "do nothing", other.setup, (Action(calls=(Call("finish"),)),), "rare", Lineage(signal="rare"))
    run = _run_folder(tmp_path / "run", {"name": "desk", "isolated": False}, [seed_task, found, empty])
    status, objects, _ = audited(capsys, f"--run={run}", "--json", QUICK)
    assert status == 1
    assert objects[-1]["tasks"] == 2
    assert [(finding["attacker"], finding["task"]) for finding in objects[:-1]] == [("null", empty.id)]


def test_a_folder_starts_no_program_that_the_command_line_does_not_name(capsys, tmp_path):
    task = Task("mcp", "query", {}, (), "rare", Lineage())
    run = _run_folder(tmp_path / "run", {"name": "mcp", "command": "rm -rf /"}, [task])
    with pytest.raises(SystemExit):
        main([f"--run={run}"])
    assert "sets command='rm -rf /'; if you mean it, add --set command=VALUE" in capsys.readouterr().err
    run = _run_folder(tmp_path / "other", {"name": "their.code:make"}, [task])
    with pytest.raises(SystemExit):
        main([f"--run={run}"])
    assert "names the world 'their.code:make', which is code" in capsys.readouterr().err
