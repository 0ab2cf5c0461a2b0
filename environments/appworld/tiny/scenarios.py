"""The scenarios of the tiny data. scenarios.md has their instructions, solutions and evaluations; the functions below
make their tasks.

A function has its scenario's name. It may add rows for one task, and reads that task's parameters and right answer from
the databases.
"""

import dataclasses
import datetime
import hashlib
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .rows import ACCOUNTS, GENRES, NOW, REASONS, Person, contacts, note, text

# Of one task: the parameters of the instruction, the data of the evaluation, and the answer if the task asks for one.
TaskContent = tuple[Mapping[str, Any], Mapping[str, Any], str | int | float | None]
Draw = Callable[[Any, Person, int, random.Random], TaskContent]


def like_genre(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Like the songs of a genre: one kind of change, over a list of several pages."""
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    liked_ids = {like.song_id for like in user.song_likes}
    genre = GENRES[number]
    songs = [song.id for song in user.library_songs if song.genre == genre and song.id not in liked_ids]
    return {"genre": genre}, {"song_ids": sorted(songs)}, None


def shift_alarms(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Move the alarms that are on: a change computed from each row."""
    minutes, direction = ((20, "earlier"), (35, "later"), (50, "earlier"))[number]
    shift = datetime.timedelta(minutes=minutes if direction == "later" else -minutes)
    user = models.phone.User.find_one(phone_number=person.phone_number)
    alarms = user.alarms
    # At least one alarm is on and one is off, whatever the rows say.
    for alarm, is_on in ((alarms[0], True), (alarms[-1], False)):
        alarm.enabled = is_on
        alarm.save()
    times = {
        str(alarm.id): (datetime.datetime.strptime(alarm.time, "%H:%M") + shift).strftime("%H:%M")
        for alarm in models.phone.Alarm.find_all(user_id=user.id, enabled=True)
    }
    return {"minutes": minutes, "direction": direction}, {"times": times}, None


def answer_requests(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
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
    approvals = [request for request in requests if request.amount <= limit]
    return (
        {"limit": limit},
        {
            "approved": [request.id for request in approvals],
            "denied": [request.id for request in requests if request.amount > limit],
            "payments": sorted([request.sender_id, request.amount] for request in approvals),
        },
        None,
    )


def most_played(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Tell which song of a genre is played most: an answer, over two lists."""
    user = models.spotify.User.find_one(email=person.email)
    songs = {song.title: song for playlist in user.playlists for song in playlist.songs}
    genres = [genre for genre in GENRES if sum(song.genre == genre for song in songs.values()) > 1]
    genre = genres[number % len(genres)]
    titles = sorted((song.play_count, title) for title, song in songs.items() if song.genre == genre)
    return {"genre": genre}, {"titles": [title for _, title in titles]}, titles[-1][1]


def split_bill(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Ask a group for their shares: who they are is in one app, the money in another."""
    relationship = ("roommate", "coworker", "roommate")[number]
    group = [other for other, kind in contacts(person) if kind == relationship]
    share = chance.randrange(8, 60)
    purpose = ("Heating bill", "Team lunch", "New curtains")[number]
    receivers = sorted(models.venmo.User.find_one(email=other.email).id for other in group)
    return (
        {"total": share * (len(group) + 1), "purpose": purpose, "relationship": relationship},
        {"share": share, "receivers": receivers},
        None,
    )


_THINGS = (
    ("Buy wall paint", "Measure the windows", "Call the electrician", "Order shelves", "Empty the cellar"),
    ("Copy the contract", "Scan the receipts", "Ask for the invoice", "Update the address", "Renew the insurance"),
    ("Bake the cake", "Borrow chairs", "Write invitations", "Hang up lamps", "Pick up the flowers"),
)


def note_to_tasks(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Turn a note's lines into tasks: text of one app becomes rows of another, in order."""
    title, project = (("Flat", "Home"), ("Desk", "Paperwork"), ("Party", "Home"))[number]
    things = chance.sample(_THINGS[number], 4)
    urgent = chance.sample(things, 2)
    note(models, person.email, title, "\n".join(thing + "!" * (thing in urgent) for thing in things), 2)
    user = models.todoist.User.find_one(email=person.email)
    return (
        {"title": title, "project": project},
        {
            "project_id": models.todoist.Project.find_one(user_id=user.id, name=project).id,
            "titles": things,
            "priorities": ["high" if thing in urgent else "low" for thing in things],
        },
        None,
    )


def postpone(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Postpone overdue tasks: a condition on dates, open tasks only."""
    name, date = (("Home", "2023-05-22"), ("Paperwork", "2023-05-25"), ("Inbox", "2023-06-01"))[number]
    todoist = models.todoist
    user = todoist.User.find_one(email=person.email)
    project = todoist.Project.find_one(user_id=user.id, name=name)
    # At least two open tasks are overdue, and a completed one too, whatever the rows say.
    for task, is_done in zip(todoist.Task.find_all(project_id=project.id), (False, False, True), strict=False):
        task.due_date, task.is_completed = NOW.replace(day=chance.randrange(8, 17), hour=0), is_done
        task.save()
    tasks = todoist.Task.find_all(project_id=project.id, is_completed=False)
    late = [task.id for task in tasks if task.due_date.date() < NOW.date()]
    return {"project": name, "date": date}, {"task_ids": sorted(late)}, None


def pay_or_text(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Pay, or say that the money is short: each branch is right for some task, and wrong for another."""
    other, _ = contacts(person)[2 * number]
    pays = number != 1
    user = models.venmo.User.find_one(email=person.email)
    limit = int(user.venmo_balance) + (-1 if pays else 1) * chance.randrange(20, 200)
    return (
        {
            "limit": limit,
            "name": other.name,
            "amount": chance.randrange(15, 90),
            "purpose": ("Theatre", "Boat trip", "Picnic")[number],
            "message": ("Can I pay you next week?", "I will pay you on Monday.", "Short of money, sorry!")[number],
        },
        {
            "pays": pays,
            "receiver_id": models.venmo.User.find_one(email=other.email).id,
            "phone_user_id": models.phone.User.find_one(phone_number=other.phone_number).id,
        },
        None,
    )


def total_received(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Tell how much a group has sent since a day: an answer over two apps."""
    relationship, date = (("coworker", "2023-04-01"), ("roommate", "2023-02-15"), ("coworker", "2023-03-01"))[number]
    venmo = models.venmo
    group = [other for other, kind in contacts(person) if kind == relationship]
    senders = [venmo.User.find_one(email=other.email).id for other in group]
    user = venmo.User.find_one(email=person.email)
    # Each task has payments to add up, whatever the rows say.
    for sender in senders:
        amount, at = chance.randrange(10, 70), {"created_at": f"2023-05-{chance.randrange(2, 15):02}T09:30:00"}
        venmo.Transaction.create_save(sender_id=sender, receiver_id=user.id, amount=amount, description="Shared", **at)
    payments = [payment for sender in senders for payment in venmo.Transaction.find_all(sender_id=sender)]
    payments = [payment for payment in payments if payment.receiver_id == user.id]
    total = sum(payment.amount for payment in payments if payment.created_at.strftime("%Y-%m-%d") >= date)
    return (
        {"relationship": relationship, "date": date},
        {"ever": sum(payment.amount for payment in payments)},
        round(total),
    )


def songs_from_text(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Add the songs that a text message names: text of one app, rows of another, some of them there already."""
    spotify = models.spotify
    other, _ = contacts(person)[number + 3]
    user = spotify.User.find_one(email=person.email)
    playlist = chance.choice(user.playlists)
    there = [song.id for song in playlist.songs]
    new = chance.sample([song for song in spotify.Song.all() if song.id not in there], 3)
    titles = [song.title for song in [*new, spotify.Song.by_id(chance.choice(there))]]
    chance.shuffle(titles)
    text(models, other.phone_number, person.phone_number, "Songs for you: " + ", ".join(titles), 2)
    text(models, other.phone_number, person.phone_number, "Tell me which one you like best!", 1)
    return (
        {"name": other.name, "playlist": playlist.title},
        {"playlist_id": playlist.id, "song_ids": sorted(song.id for song in new)},
        None,
    )


def unfollow_artists(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Unfollow artists with few liked songs: counts over one list decide on the rows of another."""
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    artist_likes = [artist for song in user.liked_songs for artist in song.artist_ids]
    artist_ids = [row.artist_id for row in user.user_artist_followings]
    # The limit splits the artists: it includes the least liked one, but not the most liked one.
    counts = [artist_likes.count(artist) for artist in artist_ids]
    count = chance.randrange(max(1, min(counts)), max(counts))
    return {"count": count}, {"artist_ids": sorted(row for row in artist_ids if artist_likes.count(row) <= count)}, None


def trim_playlist(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Shorten a playlist, or lengthen it: a sum decides the branch, and each row whether it is removed."""
    spotify = models.spotify
    long = number != 1
    user = spotify.User.find_one(email=person.email)
    playlist = chance.choice(user.playlists)
    songs = playlist.songs
    minutes = playlist.duration // 60 + (-1 if long else 1) * chance.randrange(2, 9)
    ratings = sorted({song.rating for song in songs})
    rating = ratings[len(ratings) // 2]
    there = [song.id for song in songs]
    other = chance.choice([song for song in spotify.Song.all() if song.id not in there])
    return (
        {"playlist": playlist.title, "minutes": minutes, "rating": rating, "song": other.title},
        {
            "playlist_id": playlist.id,
            "removed": sorted(song.id for song in songs if song.rating < rating) if long else [],
            "added": [] if long else [other.id],
        },
        None,
    )


def settle_up(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Settle the debts in a note: three apps, two kinds of change, one for each kind of line."""
    title = ("Debts", "Holiday money", "Shared costs")[number]
    purpose = ("Settled", "Holiday", "Costs of May")[number]
    people = chance.sample([other for other, _ in contacts(person)], 4)
    owed = chance.sample(people, 2)
    lines: list[str] = []
    requests: list[list[int]] = []
    payments: list[list[int]] = []
    for other in people:
        amount = chance.randrange(5, 80)
        lines.append(f"{other.name} owes me {amount}" if other in owed else f"I owe {other.name} {amount}")
        receiver = models.venmo.User.find_one(email=other.email).id
        (requests if other in owed else payments).append([receiver, amount])
    note(models, person.email, title, "\n".join(lines), 1)
    return {"title": title, "purpose": purpose}, {"requests": sorted(requests), "payments": sorted(payments)}, None


def greet_older(models: Any, person: Person, number: int, chance: random.Random) -> TaskContent:
    """Text everybody born before a year: a field selects the rows, and each row makes a text."""
    year = (1990, 1991, 1989)[number]
    greeting = ("Happy reunion", "See you at the lake", "Thank you")[number]
    find = models.phone.User.find_one
    messages = [
        [find(phone_number=other.phone_number).id, f"{greeting}, {other.first_name}!"]
        for other, _ in contacts(person)
        if int(other.birthday[:4]) < year
    ]
    return {"year": year, "greeting": greeting}, {"messages": sorted(messages)}, None


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A scenario: its `difficulty` is 1 to 3, its `instruction` has {parameters}, its `solution` <parameters>.

    `evaluation` is the source of the task's evaluation.py.
    """

    name: str
    split: str
    difficulty: int
    draw: Draw
    instruction: str
    solution: tuple[str, ...]
    evaluation: str

    @property
    def id(self) -> str:
        """Seven hexadecimal digits, as AppWorld names scenarios."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:7]

    @property
    def apps(self) -> list[str]:
        """The apps that the solution uses, without the supervisor's."""
        return sorted(set(re.findall(r"apis\.(\w+)\.", "\n".join(self.solution))) - {"supervisor"})

    def blocks(self, public: Mapping[str, Any]) -> list[str]:
        """The solution of the task with these parameters."""
        return [re.sub(r"<(\w+)>", lambda name: repr(public[name[1]]), block) for block in self.solution]


_SECTION = re.compile(
    r"^## (\w+)\n\n(\w+), difficulty (\d), logged in to ([\w, ]+)\n\n((?:[^\n]+\n)+)\n(.+?)(?=^## |\Z)", re.M | re.S
)
_BLOCK = re.compile(r"^```python\n(.+?)^```$", re.M | re.S)


def _scenario(section: re.Match[str]) -> Scenario:
    name, split, difficulty, apps, instruction, code = section.groups()
    logins = "\n".join(
        f"{app} = apis.{app}.login(username=me['{ACCOUNTS[app]}'], password=passwords['{app}'])['access_token']"
        for app in apps.split(", ")
    )
    *blocks, evaluation = _BLOCK.findall(code)
    instruction, solution = " ".join(instruction.split()), (_LOGIN.replace("<logins>", logins), *blocks)
    return Scenario(name, split, int(difficulty), globals()[name], instruction, solution, evaluation)


_TEXT = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_LOGIN: str = _BLOCK.findall(_TEXT)[0]
SCENARIOS = tuple(map(_scenario, _SECTION.finditer(_TEXT)))
