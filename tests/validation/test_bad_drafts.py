"""Bad drafts by kind, at the desk and in a to-do list without prefixes: the structural ones are refused, the others
counted; and good drafts of the same shapes, which pass."""

from __future__ import annotations

import base64
import codecs
import functools
from collections import Counter

import pytest
from records import DESK

import environments
from cojax.environment import Environment
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Action, Call, TaskDraft, Verdict
from cojax.validation import Validation
from environments.tools import ToolEnvironment

ITEMS = {
    "bread": {"day": "monday", "done": False},
    "milk": {"day": "friday", "done": True},
    "tea": {"day": "sunday", "done": False},
}


def todo() -> Environment:
    def add(world: dict, title: str, day: str) -> None:
        """Add an item to the list."""
        world["items"][title] = {"day": day, "done": False}

    def move(world: dict, title: str, day: str) -> None:
        """Move an item to another day."""
        world["items"][title]["day"] = day

    def tick(world: dict, title: str) -> None:
        """Mark an item as done."""
        world["items"][title]["done"] = True

    def drop(world: dict, title: str) -> None:
        """Take an item off the list."""
        del world["items"][title]

    def show(world: dict, title: str) -> str:
        """Show the day of an item."""
        return world["items"][title]["day"]

    return ToolEnvironment("todo", [add, move, tick, drop, show], open=dict, setups=[{"items": ITEMS}])


@functools.cache
def world(name: str) -> tuple[Environment, dict, dict[str, list[str]]]:
    """The environment, a setup, and the parameters of each tool."""
    environment = environments.load("desk") if name == "desk" else todo()
    documents = [one["function"] for one in environment.tools()]
    return (
        environment,
        DESK if name == "desk" else {"items": ITEMS},
        {one["name"]: list(one["parameters"]["properties"]) for one in documents},
    )


def examined(name: str, query: str, solution: str) -> Verdict:
    """The verdict on a draft whose solution is written as calls with their values, apart by semicolons."""
    environment, setup, parameters = world(name)
    actions = []
    for said in solution.split(";"):
        tool, *values = said.split()
        actions.append(Action(calls=(Call(tool, dict(zip(parameters[tool], values, strict=False))),)))
    draft = TaskDraft(environment.name, setup, "by hand", query, tuple(actions), "")
    return Validation(environment)(draft, lambda id: False, ScriptedExplorer())[0]


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


READ, MOVE = "files_read report; finish amber", "files_move report taxes; finish"
LOOK_AND_MOVE = "files_move report taxes; files_read report; finish amber"
DAY = "show milk; finish friday"
# Kind of a structural fault, world, solution, queries.
STRUCTURAL: list[tuple[str, str, str, list[str]]] = [
    ("unasked", "desk", LOOK_AND_MOVE, [
        "move report to taxes",
        "Please put the report into the taxes folder.",
        "Could you move report to taxes?",
        "I want report to be in taxes from now on.",
    ]),
    ("unasked", "desk", "calendar_day lunch; calendar_cancel lunch; finish friday", [
        "Call off lunch, please: cancel it",
    ]),
    ("unasked", "desk", "files_read report; notes_add todo amber; finish amber", [
        "note text of report as todo",
        "Write what the report says into a new note, todo",
    ]),
    ("unasked", "desk", "contacts_find ana; mail_send box11 plum; finish box11", ["mail plum to ana"]),
    ("unasked", "desk", "files_read report; files_rename report invoice; finish amber", [
        "Give report the name invoice",
    ]),
    ("unasked", "todo", "tick bread; show bread; finish monday", ["tick bread", "Would you mark bread as done?"]),
    ("unasked", "todo", "show tea; drop tea; finish sunday", ["Take tea off the list"]),
    ("not given", "desk", MOVE, [
        "move report to taxes, then tell the text of report",
        "Move report to taxes and tell me what it says.",
        "What does memo say? And move report to taxes.",
        "Move report to taxes, then let me know its text",
        "Move report to taxes. How many notes are there?",
        "I'd like to know what the memo says; also, report goes to taxes.",
        "Move report to taxes. Is lunch on friday?", "Move report to taxes and report back what it says.",
        "Move report to taxes and show the day of lunch", "Move report to taxes. Answer: the text of memo",
    ]),
    ("not given", "desk", "contacts_find ana; mail_send box11 plum; finish", [
        "mail plum to ana, then tell the day of lunch",
    ]),
    ("not given", "todo", "tick bread; finish", [
        "tick bread, then tell what show with title milk says",
        "Tick bread and tell me the day of milk",
        "Tick bread. When is milk due?",
    ]),
    ("hinted", "desk", READ, [
        f"tell the text of report, {hint}"
        for hint in (
            "rebma backwards", "a-m-b-e-r", "A M B E R", "which is a, m, b, e and r", "am ber", "аmbеr", "4mb3r",
            "ambers", "(AMBER)", f"base64 {coded('amber')}", f"{coded('Amber').rstrip('=')}",
            coded("the text is amber"),
            f"rot13 {codecs.encode('amber', 'rot13')}", "dpehu", "616d626572", "1-13-2-5-18",
            "97 109 98 101 114", ".- -- -... . .-.", "alfa mike bravo echo romeo",
            "%61%6D%62%65%72", coded("rebma"),
            "mbr without its vowels", "ebmar, mixed", "0x61 0x6d 0x62 0x65 0x72",
            "znvyore, that is nzore", "a.m.b.e.r", "ɹǝqɯɐ",
        )
    ]),
    ("hinted", "todo", DAY, [
        "On which day is milk, yadirf?", "What day is milk due: f r i d a y?", "The day of milk, please, is it fridays",
        "Tell me the day of milk (sevqnl)", f"Tell me the day of milk ({coded('friday')})",
    ]),
    ("raw calls", "desk", MOVE, [
        "files_move(file=report, folder=taxes)",
        'Do this: {"name": "files_move", "arguments": {"file": "report", "folder": "taxes"}}',
        "desk.move('report', 'taxes')",
        "Please call files_move with report and taxes.",
        "Run ```files.move(report, taxes)```",
        "move(report, taxes)",
        "Move with file=report and folder=taxes",
        'To do: move {"file": "report", "folder": "taxes"}',
        '<function=files_move>{"file": "report"} to taxes',
        "Use FilesMove on report, taxes",
        "move[report, taxes]", "Do `move report taxes`", "move file:report folder:taxes",
        "1. files-move report taxes 2. finish()",
    ]),
    ("raw calls", "todo", "move bread friday; finish", [
        'move(title="bread", day="friday")', "move (bread, friday)",
        '{"tool": "move", "title": "bread", "day": "friday"}',
        "move --title bread --day friday", "world.move(bread, friday)",
    ]),
    ("another tool", "todo", "move bread friday; finish", ["tick bread on friday", "drop bread on friday"]),
    ("another tool", "todo", "drop tea; finish", ["tick tea", "Please show tea!", "Could you tick off tea?"]),
    ("another tool", "todo", "tick bread; finish", ["move bread", "Please drop bread"]),
    ("another tool", "desk", MOVE, ["delete report in taxes"]),
    ("false condition", "desk", "calendar_cancel lunch; finish", [
        "If lunch is on monday, cancel it", "cancel lunch if it is on monday", "Unless lunch is on friday, cancel it",
        "If lunch is not on friday, cancel it.", "In case there are more than 5 mails, cancel lunch",
        "if lunch is on monday cancel it otherwise postpone it to sunday",
    ]),
    ("false condition", "desk", "files_delete report; finish", [
        "If the report says plum, delete it.", "If there are more than 5 mails, delete report",
        "Delete report if it is in taxes",
        "If there are no notes, delete report", "Delete report if there are at least three contacts.",
        "If there is a file called thesis, delete report", "If the text of report is plum, delete it",
        "Delete report if the number of mails is more than 5", "If the folder taxes does not exist, delete report",
        "Delete report if budget is not a file", "Should report be in taxes, delete it",
        "delete report if it says amber and budget says plum", "Delete report unless there are notes",
    ]),
    ("false condition", "todo", "tick bread; finish", [
        "If milk is on monday, tick bread", "Tick bread if there are more than ten items",
        "If tea is done, tick bread too",
    ]),
]  # fmt: skip
ROWS = [(kind, name, solution, query) for kind, name, solution, queries in STRUCTURAL for query in queries]

GOOD = [
    ("desk", LOOK_AND_MOVE, "Move report to taxes and tell me what it says"),
    ("desk", LOOK_AND_MOVE, "What does the report say? Afterwards, move it to taxes."),
    ("desk", "files_move report taxes; files_read report; finish amber", "Move report to taxes; read it, too."),
    ("desk", READ, "tell the text of report"),
    ("desk", READ, "The text of the report, please"),
    ("desk", MOVE, "Could you move report to taxes?"),
    ("desk", MOVE, "Would you please move the report (the old one) to taxes? Let me know when it is done."),
    ("desk", MOVE, "report: to the folder taxes, please move it there"),
    ("desk", MOVE, "Move report to taxes, do you mind?"),
    ("desk", MOVE, "Move report to taxes. Thanks! Tell me if anything goes wrong."),
    ("desk", MOVE, "Move report (not budget) to taxes"),
    ("desk", MOVE, "file: report; new folder: taxes"),
    ("desk", "files_find budget; files_move report archive; finish", "Where is budget? Put report there too."),
    ("desk", "files_find report; files_delete report; finish",
     "if report is in drafts delete it otherwise move it to taxes"),
    ("desk", "contacts_find ana; mail_send box11 plum; finish", "Could you show ana the word plum, in a mail?"),
    ("desk", "notes_read memo; contacts_find bob; mail_send box12 pearl; finish", "Tell bob what the memo says"),
    ("desk", "calendar_cancel lunch; finish", "If lunch is too early, cancel it"),
    ("desk", "contacts_find ana; mail_send box11 plum; finish", "Tell ana plum, by mail"),
    ("desk", "files_read report; notes_add todo amber; finish", "Let a new note, todo, say what the report says"),
    ("desk", "files_read report; notes_add todo amber; finish", "What report says should be in a new note todo"),
    ("desk", "calendar_day lunch; calendar_cancel lunch; finish", "If lunch is on friday, cancel it"),
    ("desk", "calendar_day lunch; calendar_cancel lunch; finish", "Is lunch on friday? If so, cancel it."),
    ("desk", "calendar_day lunch; calendar_move lunch sunday; finish",
     "If lunch is on friday move it to sunday, otherwise cancel it"),
    ("desk", "calendar_cancel lunch; finish", "If there are fewer than 5 mails, cancel lunch"),
    ("desk", "calendar_cancel lunch; finish", "Cancel lunch unless it is on monday"),
    ("desk", "calendar_cancel lunch; finish", "cancel lunch"),
    ("todo", "tick bread; show bread; finish monday", "Tick bread, and on which day was it?"),
    ("todo", DAY, "What is the day of milk?"),
    ("todo", "tick bread; finish", "Please mark bread as done"),
    ("todo", "move bread friday; finish", "Could bread be moved to friday?"),
    ("todo", "move bread friday; finish", "Put bread on friday instead"),
    ("todo", "add jam tuesday; finish", "I need jam on tuesday, add it"),
    ("todo", "drop tea; finish", "If tea is not done, drop it"),
    ("todo", "drop tea; finish", "Take tea off the list"),
]  # fmt: skip

# What words alone do not settle: a judge and attempts on the query alone are left for it.
BY_DESIGN: dict[str, list[tuple[str, str, str]]] = {
    "negation": [
        ("desk", MOVE, "Do not move report to taxes"),
        ("desk", "files_delete report; finish", "Whatever you do, never delete report"),
        ("todo", "tick bread; finish", "Do not tick bread"),
    ],
    "more asked than done": [
        ("desk", MOVE, "move report to taxes, then delete note memo"),
        ("todo", "tick bread; finish", "Tick bread and drop tea"),
    ],
    "other verbs": [
        ("desk", MOVE, "Shred report, then frame taxes"),
        ("desk", "calendar_cancel lunch; finish", "Enjoy lunch at the calendar"),
        ("todo", "tick bread; finish", "Eat the item bread"),
    ],
}
# How many of these are accepted.
ACCEPTED = {"negation": 3, "more asked than done": 2, "other verbs": 3}


@pytest.mark.parametrize(("kind", "name", "solution", "query"), ROWS)
def test_a_structural_fault_is_refused(kind: str, name: str, solution: str, query: str) -> None:
    verdict = examined(name, query, solution)
    assert verdict.status == "discarded", verdict
    assert not any(line.startswith("run fails") for line in verdict.evidence), verdict


@pytest.mark.parametrize(("name", "solution", "query"), GOOD)
def test_good_drafts_of_the_same_shapes_pass(name: str, solution: str, query: str) -> None:
    verdict = examined(name, query, solution)
    assert verdict.status == "accepted", verdict


def test_what_stays_is_counted() -> None:
    found = {
        kind: sum(examined(name, query, solution).status == "accepted" for name, solution, query in rows)
        for kind, rows in BY_DESIGN.items()
    }
    assert found == ACCEPTED


def test_there_are_enough_of_each() -> None:
    counts = Counter(name for _, name, _, _ in ROWS)
    assert counts["desk"] >= 42
    assert counts["todo"] >= 14
