"""Make tasks of a note's lines: text of one app becomes rows of another, in order."""

import random
from typing import Any

from ..people import Person
from ..rows import note
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "train", 2
INSTRUCTION = (
    'My note "{title}" lists things to do, one a line. Add each to my Todoist project "{project}" as a task of that '
    "title, in the order of the note. A line that ends in an exclamation mark becomes a task of high priority, without "
    "the mark; the others get low priority."
)
_THINGS = (
    ("Buy wall paint", "Measure the windows", "Call the electrician", "Order shelves", "Empty the cellar"),
    ("Copy the contract", "Scan the receipts", "Ask for the invoice", "Update the address", "Renew the insurance"),
    ("Bake the cake", "Borrow chairs", "Write invitations", "Hang up lamps", "Pick up the flowers"),
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    title, project = (("Flat", "Home"), ("Desk", "Paperwork"), ("Party", "Home"))[number]
    things = chance.sample(_THINGS[number], 4)
    urgent = chance.sample(things, 2)
    note(models, person.email, title, "\n".join(thing + "!" * (thing in urgent) for thing in things), 2)
    user = models.todoist.User.find_one(email=person.email)
    return Drawn(
        {"title": title, "project": project},
        {
            "project_id": models.todoist.Project.find_one(user_id=user.id, name=project).id,
            "titles": things,
            "priorities": ["high" if thing in urgent else "low" for thing in things],
        },
    )


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("todoist.Task")
    added = sorted(added, key=lambda task: task.order_index)

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the new tasks have the titles of the note's lines, in that order"):
        test.case([task.title for task in added], "==", private_data.titles)

    with test("they have the priorities that the marks say"):
        test.case([task.priority for task in added], "==", private_data.priorities)

    with test("they are in that project"):
        test.case([task.project_id for task in added], "all ==", private_data.project_id)

    with test("nothing but new tasks has changed"):
        test.case(removed, "==", [])
        for task in updated:
            test.case(models.changed_field_names("todoist.Task", task.id), "==", {"order_index"})
        test.case(models.changed_model_names(), "==", {"todoist.Task"})


SOLUTION = (
    login("simple_note", "todoist"),
    """
found = pages(apis.simple_note.search_notes, access_token=simple_note, query=<title>)
note = next(note for note in found if note["title"] == <title>)
content = apis.simple_note.show_note(note_id=note["note_id"], access_token=simple_note)["content"]
projects = pages(apis.todoist.show_projects, access_token=todoist)
project = next(project for project in projects if project["name"] == <project>)
print(content)
""",
    """
for line in content.splitlines():
    priority = "high" if line.endswith("!") else "low"
    apis.todoist.create_task(
        project_id=project["project_id"], title=line.rstrip("!"), priority=priority, access_token=todoist
    )
apis.supervisor.complete_task()
""",
)
