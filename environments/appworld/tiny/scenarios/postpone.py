"""Postpone what is overdue: a condition on dates, open tasks only."""

import random
from typing import Any

from ..people import Person
from ..rows import NOW
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "train", 2
INSTRUCTION = (
    'In my Todoist project "{project}", give every task that is not completed and was due before today the due date '
    "{date}. Change nothing else."
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    name, date = (("Home", "2023-05-22"), ("Paperwork", "2023-05-25"), ("Inbox", "2023-06-01"))[number]
    todoist = models.todoist
    user = todoist.User.find_one(email=person.email)
    project = todoist.Project.find_one(user_id=user.id, name=name)
    # Two are overdue at least, and one more but for being completed, whatever the rows say.
    for task, completed in zip(todoist.Task.find_all(project_id=project.id), (False, False, True), strict=False):
        task.due_date, task.is_completed = NOW.replace(day=chance.randrange(8, 17), hour=0), completed
        task.save()
    tasks = todoist.Task.find_all(project_id=project.id, is_completed=False)
    late = [task.id for task in tasks if task.due_date.date() < NOW.date()]
    return Drawn({"project": name, "date": date}, {"task_ids": sorted(late)})


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("todoist.Task")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the overdue open tasks of the project, and no others, have changed"):
        test.case(sorted(task.id for task in updated), "==", private_data.task_ids)

    with test("their due date is the new one"):
        test.case([task.due_date.strftime("%Y-%m-%d") for task in updated], "all ==", public_data.date)

    with test("nothing but due dates of tasks has changed"):
        test.case(added + removed, "==", [])
        for task in updated:
            test.case(models.changed_field_names("todoist.Task", task.id), "==", {"due_date"})
        test.case(models.changed_model_names(), "==", {"todoist.Task"})


SOLUTION = (
    login("todoist"),
    """
projects = pages(apis.todoist.show_projects, access_token=todoist)
project = next(project for project in projects if project["name"] == <project>)
listed = apis.todoist.show_tasks(project_id=project["project_id"], is_completed=False, access_token=todoist)
tasks = listed["no_section_tasks"] + [task for section in listed["sections"] for task in section["tasks"]]
today = datetime.datetime.strptime(apis.phone.get_current_date_and_time()["date"], "%A, %B %d, %Y")
today = today.strftime("%Y-%m-%d")
print(today, [(task["title"], task["due_date"]) for task in tasks])
""",
    """
for task in tasks:
    if task["due_date"] is not None and task["due_date"][:10] < today:
        apis.todoist.update_task(task_id=task["task_id"], due_date=<date>, access_token=todoist)
apis.supervisor.complete_task()
""",
)
