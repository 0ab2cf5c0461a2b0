"""The scenarios of the training split."""

import datetime
import random
from typing import Any

from .rows import GENRES, NOW, REASONS, note
from .scenario import Drawn, Person, contacts, login, scenario


def like_genre(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Like the songs of a genre: one kind of change, over a list of several pages."""
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    liked = {like.song_id for like in user.song_likes}
    genre = GENRES[number]
    songs = [song.id for song in user.library_songs if song.genre == genre and song.id not in liked]
    return Drawn({"genre": genre}, {"song_ids": sorted(songs)})


def check_like_genre(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("spotify.SongLike")
    user = models.end.spotify.User.find_one(email=main_user.email)

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the songs newly liked are those of the genre in the library"):
        test.case(sorted(like.song_id for like in added), "==", private_data.song_ids)

    with test("it is me who likes them, and nothing I liked before is lost"):
        test.case([like.user_id for like in added], "all ==", user.id)
        test.case(updated + removed, "==", [])

    with test("nothing but likes and their counts has changed"):
        test.case(models.changed_model_names(), "==", {"spotify.SongLike", "spotify.Song"})


LIKE_GENRE = scenario(
    "train",
    1,
    like_genre,
    check_like_genre,
    "Like every {genre} song of my Spotify song library that I have not liked yet.",
    login("spotify"),
    """
library = pages(apis.spotify.show_song_library, access_token=spotify)
liked = {song["song_id"] for song in pages(apis.spotify.show_liked_songs, access_token=spotify)}
print(len(library), "songs in the library,", len(liked), "liked")
""",
    """
for row in library:
    song = apis.spotify.show_song(song_id=row["song_id"])
    if song["genre"] == <genre> and song["song_id"] not in liked:
        print(apis.spotify.like_song(song_id=song["song_id"], access_token=spotify)["message"], song["title"])
apis.supervisor.complete_task()
""",
)


def shift_alarms(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Move the alarms that are on: a change computed from each row."""
    minutes, direction = ((20, "earlier"), (35, "later"), (50, "earlier"))[number]
    shift = datetime.timedelta(minutes=minutes if direction == "later" else -minutes)
    user = models.phone.User.find_one(phone_number=person.phone_number)
    alarms = user.alarms
    # Some are on and some are off, whatever the rows say.
    for alarm, enabled in ((alarms[0], True), (alarms[-1], False)):
        alarm.enabled = enabled
        alarm.save()
    times = {
        str(alarm.id): (datetime.datetime.strptime(alarm.time, "%H:%M") + shift).strftime("%H:%M")
        for alarm in models.phone.Alarm.find_all(user_id=user.id, enabled=True)
    }
    return Drawn({"minutes": minutes, "direction": direction}, {"times": times})


def check_shift_alarms(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("phone.Alarm")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("those that are on, and no others, have changed"):
        test.case(sorted(str(alarm.id) for alarm in updated), "==", sorted(private_data.times))

    with test("each of them rings at the new time"):
        end = models.end.phone.Alarm
        for number, time in private_data.times.items():
            test.case(end.by_id(int(number)).time, "==", time)

    with test("nothing but the time of alarms has changed"):
        test.case(added + removed, "==", [])
        for alarm in updated:
            test.case(models.changed_field_names("phone.Alarm", alarm.id), "==", {"time"})
        test.case(models.changed_model_names(), "==", {"phone.Alarm"})


SHIFT_ALARMS = scenario(
    "train",
    1,
    shift_alarms,
    check_shift_alarms,
    "Set every alarm on my phone that is switched on {minutes} minutes {direction}. Leave the others alone.",
    login("phone"),
    """
alarms = [alarm for alarm in pages(apis.phone.show_alarms, access_token=phone) if alarm["enabled"]]
print([(alarm["label"], alarm["time"]) for alarm in alarms])
""",
    """
shift = <minutes> if <direction> == "later" else -<minutes>
for alarm in alarms:
    hours, minutes = alarm["time"].split(":")
    total = 60 * int(hours) + int(minutes) + shift
    apis.phone.update_alarm(alarm_id=alarm["alarm_id"], time=f"{total // 60:02}:{total % 60:02}", access_token=phone)
apis.supervisor.complete_task()
""",
)


def answer_requests(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Approve or deny what others ask for: a condition on each row, two kinds of change."""
    venmo = models.venmo
    user = venmo.User.find_one(email=person.email)
    others = [other.id for other in venmo.User.all() if other.id != user.id]
    limit = (25, 40, 30)[number]
    amounts = chance.sample(range(5, limit + 1), 3) + chance.sample(range(limit + 1, 90), 3)
    chance.shuffle(amounts)
    requests = [
        venmo.PaymentRequest.create_save(
            sender_id=chance.choice(others), receiver_id=user.id, amount=amount, description=chance.choice(REASONS)
        )
        for amount in amounts
    ]
    approved = [request for request in requests if request.amount <= limit]
    return Drawn(
        {"limit": limit},
        {
            "approved": [request.id for request in approved],
            "denied": [request.id for request in requests if request.amount > limit],
            "payments": sorted([request.sender_id, request.amount] for request in approved),
        },
    )


def check_answer_requests(test, public_data, private_data, main_user, models, ground_truth_answer):
    _, requests, _ = models.changed_records("venmo.PaymentRequest")
    payments, _, _ = models.changed_records("venmo.Transaction")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the small requests are approved"):
        test.case(sorted(request.id for request in requests if request.approved), "==", private_data.approved)

    with test("the large requests are denied"):
        test.case(sorted(request.id for request in requests if request.denied), "==", private_data.denied)

    with test("the money of the approved requests, and no other, is sent"):
        sent = sorted([payment.receiver_id, payment.amount] for payment in payments)
        test.case(sent, "==", private_data.payments)

    with test("nothing but requests, payments, balances and notifications has changed"):
        changed = {"venmo.PaymentRequest", "venmo.Transaction", "venmo.User", "venmo.Notification"}
        test.case(models.changed_model_names(), "==", changed)


ANSWER_REQUESTS = scenario(
    "train",
    2,
    answer_requests,
    check_answer_requests,
    "Go through the Venmo payment requests that are waiting for me: approve each one of ${limit} or less "
    "from my Venmo balance, and deny the others.",
    login("venmo"),
    """
waiting = pages(apis.venmo.show_received_payment_requests, access_token=venmo, status="pending")
for request in waiting:
    print(request["payment_request_id"], request["sender"]["name"], request["amount"])
""",
    """
for request in waiting:
    if request["amount"] <= <limit>:
        apis.venmo.approve_payment_request(payment_request_id=request["payment_request_id"], access_token=venmo)
    else:
        apis.venmo.deny_payment_request(payment_request_id=request["payment_request_id"], access_token=venmo)
apis.supervisor.complete_task()
""",
)


def most_played(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Which song of a genre is played most: an answer, over two lists."""
    user = models.spotify.User.find_one(email=person.email)
    songs = {song.title: song for playlist in user.playlists for song in playlist.songs}
    genres = [genre for genre in GENRES if sum(song.genre == genre for song in songs.values()) > 1]
    genre = genres[number % len(genres)]
    titles = sorted((song.play_count, title) for title, song in songs.items() if song.genre == genre)
    return Drawn({"genre": genre}, {"titles": [title for _, title in titles]}, titles[-1][1])


def check_most_played(test, public_data, private_data, main_user, models, ground_truth_answer):
    answer = models.end.supervisor.Task.first().answer.strip('"')

    with test("the answer is a song of that genre in one of my playlists"):
        test.case(answer.lower(), "in", [title.lower() for title in private_data.titles])

    with test("the answer is the one played most"):
        test.answer(answer, ground_truth_answer)

    with test("no data of any app has changed"):
        test.case(models.changed_model_names(), "==", set())


MOST_PLAYED = scenario(
    "train",
    1,
    most_played,
    check_most_played,
    "Which {genre} song in the Spotify playlists I made has been played most often? Answer with its title.",
    login("spotify"),
    """
playlists = pages(apis.spotify.show_playlist_library, access_token=spotify)
songs = [apis.spotify.show_song(song_id=song) for playlist in playlists for song in playlist["song_ids"]]
songs = [song for song in songs if song["genre"] == <genre>]
print([(song["title"], song["play_count"]) for song in songs])
""",
    """
most = max(songs, key=lambda song: song["play_count"])
apis.supervisor.complete_task(answer=most["title"])
""",
)


def split_bill(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Ask a group for their shares: who they are is in one app, the money in another."""
    relationship = ("roommate", "coworker", "roommate")[number]
    group = [other for other, kind in contacts(person) if kind == relationship]
    share = chance.randrange(8, 60)
    purpose = ("Heating bill", "Team lunch", "New curtains")[number]
    receivers = sorted(models.venmo.User.find_one(email=other.email).id for other in group)
    return Drawn(
        {"total": share * (len(group) + 1), "purpose": purpose, "relationship": relationship},
        {"share": share, "receivers": receivers},
    )


def check_split_bill(test, public_data, private_data, main_user, models, ground_truth_answer):
    requests, updated, removed = models.changed_records("venmo.PaymentRequest")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("one request goes to each of the group, from me"):
        user = models.end.venmo.User.find_one(email=main_user.email)
        test.case([request.sender_id for request in requests], "all ==", user.id)
        test.case(sorted(request.receiver_id for request in requests), "==", private_data.receivers)

    with test("each is for an equal share"):
        test.case([request.amount for request in requests], "all ==", private_data.share)

    with test("each has the description"):
        test.case([request.description for request in requests], "all ==", public_data.purpose)

    with test("nothing but new requests and their notifications has changed"):
        test.case(updated + removed, "==", [])
        test.case(models.changed_model_names(), "==", {"venmo.PaymentRequest", "venmo.Notification"})


SPLIT_BILL = scenario(
    "train",
    2,
    split_bill,
    check_split_bill,
    'I paid ${total} for "{purpose}", for my {relationship}s and me. Send each {relationship} in my phone contacts a '
    'Venmo payment request for an equal share, mine included in the count, with "{purpose}" as the description.',
    login("phone", "venmo"),
    """
group = pages(apis.phone.search_contacts, access_token=phone, relationship=<relationship>)
print([(contact["first_name"], contact["email"], contact["relationships"]) for contact in group])
""",
    """
share = <total> / (len(group) + 1)
for contact in group:
    made = apis.venmo.create_payment_request(
        user_email=contact["email"], amount=share, description=<purpose>, access_token=venmo
    )
    print(made["message"], share)
apis.supervisor.complete_task()
""",
)


_THINGS = (
    ("Buy wall paint", "Measure the windows", "Call the electrician", "Order shelves", "Empty the cellar"),
    ("Copy the contract", "Scan the receipts", "Ask for the invoice", "Update the address", "Renew the insurance"),
    ("Bake the cake", "Borrow chairs", "Write invitations", "Hang up lamps", "Pick up the flowers"),
)


def note_to_tasks(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Make tasks of a note's lines: text of one app becomes rows of another, in order."""
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


def check_note_to_tasks(test, public_data, private_data, main_user, models, ground_truth_answer):
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


NOTE_TO_TASKS = scenario(
    "train",
    2,
    note_to_tasks,
    check_note_to_tasks,
    'My note "{title}" lists things to do, one a line. Add each to my Todoist project "{project}" as a task of that '
    "title, in the order of the note. A line that ends in an exclamation mark becomes a task of high priority, without "
    "the mark; the others get low priority.",
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


def postpone(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Postpone what is overdue: a condition on dates, open tasks only."""
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


def check_postpone(test, public_data, private_data, main_user, models, ground_truth_answer):
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


POSTPONE = scenario(
    "train",
    2,
    postpone,
    check_postpone,
    'In my Todoist project "{project}", give every task that is not completed and was due before today the due date '
    "{date}. Change nothing else.",
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

TRAIN = (LIKE_GENRE, SHIFT_ALARMS, ANSWER_REQUESTS, MOST_PLAYED, SPLIT_BILL, NOTE_TO_TASKS, POSTPONE)
