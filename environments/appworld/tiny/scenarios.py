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

from .rows import ACCOUNTS, GENRES, NOW, REASONS, Person, add_note, contacts, send_text

# Of one task: the parameters of the instruction, the data of the evaluation, and the answer if the task asks for one.
TaskContent = tuple[Mapping[str, Any], Mapping[str, Any], str | int | float | None]
ContentSampler = Callable[[Any, Person, int, random.Random], TaskContent]


def like_genre(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Like the songs of a genre: one kind of change, over a list of several pages."""
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    liked_ids = {like.song_id for like in user.song_likes}
    genre = GENRES[task_index]
    song_ids = [song.id for song in user.library_songs if song.genre == genre and song.id not in liked_ids]
    return {"genre": genre}, {"song_ids": sorted(song_ids)}, None


def shift_alarms(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Move the alarms that are on: a change computed from each row."""
    minutes, direction = ((20, "earlier"), (35, "later"), (50, "earlier"))[task_index]
    time_shift = datetime.timedelta(minutes=minutes if direction == "later" else -minutes)
    user = models.phone.User.find_one(phone_number=person.phone_number)
    alarms = user.alarms
    # At least one alarm is on and one is off, whatever the rows say.
    for alarm, is_on in ((alarms[0], True), (alarms[-1], False)):
        alarm.enabled = is_on
        alarm.save()
    new_times = {
        str(alarm.id): (datetime.datetime.strptime(alarm.time, "%H:%M") + time_shift).strftime("%H:%M")
        for alarm in models.phone.Alarm.find_all(user_id=user.id, enabled=True)
    }
    return {"minutes": minutes, "direction": direction}, {"times": new_times}, None


def answer_requests(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Approve or deny what others ask for: a condition on each row, two kinds of change."""
    venmo = models.venmo
    user = venmo.User.find_one(email=person.email)
    other_ids = [other_user.id for other_user in venmo.User.all() if other_user.id != user.id]
    amount_limit = (25, 40, 30)[task_index]
    amounts = rng.sample(range(5, amount_limit + 1), 3) + rng.sample(range(amount_limit + 1, 90), 3)
    rng.shuffle(amounts)
    requests = [
        venmo.PaymentRequest.create_save(
            sender_id=rng.choice(other_ids), receiver_id=user.id, amount=amount, description=rng.choice(REASONS)
        )
        for amount in amounts
    ]
    approvals = [request for request in requests if request.amount <= amount_limit]
    return (
        {"limit": amount_limit},
        {
            "approved": [request.id for request in approvals],
            "denied": [request.id for request in requests if request.amount > amount_limit],
            "payments": sorted([request.sender_id, request.amount] for request in approvals),
        },
        None,
    )


def most_played(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Tell which song of a genre is played most: an answer, over two lists."""
    user = models.spotify.User.find_one(email=person.email)
    song_by_title = {song.title: song for playlist in user.playlists for song in playlist.songs}
    genres = [genre for genre in GENRES if sum(song.genre == genre for song in song_by_title.values()) > 1]
    genre = genres[task_index % len(genres)]
    ranking = sorted((song.play_count, title) for title, song in song_by_title.items() if song.genre == genre)
    return {"genre": genre}, {"titles": [title for _, title in ranking]}, ranking[-1][1]


def split_bill(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Ask a group for their shares: who they are is in one app, the money in another."""
    relationship = ("roommate", "coworker", "roommate")[task_index]
    group_contacts = [contact for contact, relation in contacts(person) if relation == relationship]
    share_amount = rng.randrange(8, 60)
    purpose = ("Heating bill", "Team lunch", "New curtains")[task_index]
    receiver_ids = sorted(models.venmo.User.find_one(email=contact.email).id for contact in group_contacts)
    return (
        {"total": share_amount * (len(group_contacts) + 1), "purpose": purpose, "relationship": relationship},
        {"share": share_amount, "receivers": receiver_ids},
        None,
    )


_CHORES = (
    ("Buy wall paint", "Measure the windows", "Call the electrician", "Order shelves", "Empty the cellar"),
    ("Copy the contract", "Scan the receipts", "Ask for the invoice", "Update the address", "Renew the insurance"),
    ("Bake the cake", "Borrow chairs", "Write invitations", "Hang up lamps", "Pick up the flowers"),
)


def note_to_tasks(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Turn a note's lines into tasks: text of one app becomes rows of another, in order."""
    note_title, project_name = (("Flat", "Home"), ("Desk", "Paperwork"), ("Party", "Home"))[task_index]
    chores = rng.sample(_CHORES[task_index], 4)
    urgent_chores = rng.sample(chores, 2)
    add_note(models, person.email, note_title, "\n".join(chore + "!" * (chore in urgent_chores) for chore in chores), 2)
    user = models.todoist.User.find_one(email=person.email)
    return (
        {"title": note_title, "project": project_name},
        {
            "project_id": models.todoist.Project.find_one(user_id=user.id, name=project_name).id,
            "titles": chores,
            "priorities": ["high" if chore in urgent_chores else "low" for chore in chores],
        },
        None,
    )


def postpone(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Postpone overdue tasks: a condition on dates, open tasks only."""
    project_name, date = (("Home", "2023-05-22"), ("Paperwork", "2023-05-25"), ("Inbox", "2023-06-01"))[task_index]
    todoist = models.todoist
    user = todoist.User.find_one(email=person.email)
    project = todoist.Project.find_one(user_id=user.id, name=project_name)
    # At least two open tasks are overdue, and a completed one too, whatever the rows say.
    for task, is_done in zip(todoist.Task.find_all(project_id=project.id), (False, False, True), strict=False):
        task.due_date, task.is_completed = NOW.replace(day=rng.randrange(8, 17), hour=0), is_done
        task.save()
    tasks = todoist.Task.find_all(project_id=project.id, is_completed=False)
    overdue_ids = [task.id for task in tasks if task.due_date.date() < NOW.date()]
    return {"project": project_name, "date": date}, {"task_ids": sorted(overdue_ids)}, None


def pay_or_text(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Pay, or say that the money is short: each branch is right for some task, and wrong for another."""
    contact, _ = contacts(person)[2 * task_index]
    can_pay = task_index != 1
    user = models.venmo.User.find_one(email=person.email)
    balance_limit = int(user.venmo_balance) + (-1 if can_pay else 1) * rng.randrange(20, 200)
    return (
        {
            "limit": balance_limit,
            "name": contact.name,
            "amount": rng.randrange(15, 90),
            "purpose": ("Theatre", "Boat trip", "Picnic")[task_index],
            "message": ("Can I pay you next week?", "I will pay you on Monday.", "Short of money, sorry!")[task_index],
        },
        {
            "pays": can_pay,
            "receiver_id": models.venmo.User.find_one(email=contact.email).id,
            "phone_user_id": models.phone.User.find_one(phone_number=contact.phone_number).id,
        },
        None,
    )


def total_received(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Tell how much a group has sent since a day: an answer over two apps."""
    relationship, day = (("coworker", "2023-04-01"), ("roommate", "2023-02-15"), ("coworker", "2023-03-01"))[task_index]
    venmo = models.venmo
    group_contacts = [contact for contact, relation in contacts(person) if relation == relationship]
    sender_ids = [venmo.User.find_one(email=contact.email).id for contact in group_contacts]
    user = venmo.User.find_one(email=person.email)
    # Each task has payments to add up, whatever the rows say.
    for sender in sender_ids:
        amount, at = rng.randrange(10, 70), {"created_at": f"2023-05-{rng.randrange(2, 15):02}T09:30:00"}
        venmo.Transaction.create_save(sender_id=sender, receiver_id=user.id, amount=amount, description="Shared", **at)
    payments = [payment for sender in sender_ids for payment in venmo.Transaction.find_all(sender_id=sender)]
    payments = [payment for payment in payments if payment.receiver_id == user.id]
    total = sum(payment.amount for payment in payments if payment.created_at.strftime("%Y-%m-%d") >= day)
    return (
        {"relationship": relationship, "date": day},
        {"ever": sum(payment.amount for payment in payments)},
        round(total),
    )


def songs_from_text(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Add the songs that a text message names: text of one app, rows of another, some of them there already."""
    spotify = models.spotify
    contact, _ = contacts(person)[task_index + 3]
    user = spotify.User.find_one(email=person.email)
    playlist = rng.choice(user.playlists)
    present_ids = [song.id for song in playlist.songs]
    new_songs = rng.sample([song for song in spotify.Song.all() if song.id not in present_ids], 3)
    titles = [song.title for song in [*new_songs, spotify.Song.by_id(rng.choice(present_ids))]]
    rng.shuffle(titles)
    send_text(models, contact.phone_number, person.phone_number, "Songs for you: " + ", ".join(titles), 2)
    send_text(models, contact.phone_number, person.phone_number, "Tell me which one you like best!", 1)
    return (
        {"name": contact.name, "playlist": playlist.title},
        {"playlist_id": playlist.id, "song_ids": sorted(song.id for song in new_songs)},
        None,
    )


def unfollow_artists(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Unfollow artists with few liked songs: counts over one list decide on the rows of another."""
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    artist_likes = [artist_id for song in user.liked_songs for artist_id in song.artist_ids]
    artist_ids = [following.artist_id for following in user.user_artist_followings]
    # The limit splits the artists: it includes the least liked one, but not the most liked one.
    like_counts = [artist_likes.count(artist_id) for artist_id in artist_ids]
    limit = rng.randrange(max(1, min(like_counts)), max(like_counts))
    return {"count": limit}, {"artist_ids": sorted(id for id in artist_ids if artist_likes.count(id) <= limit)}, None


def trim_playlist(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Shorten a playlist, or lengthen it: a sum decides the branch, and each row whether it is removed."""
    spotify = models.spotify
    is_long = task_index != 1
    user = spotify.User.find_one(email=person.email)
    playlist = rng.choice(user.playlists)
    songs = playlist.songs
    minute_limit = playlist.duration // 60 + (-1 if is_long else 1) * rng.randrange(2, 9)
    ratings = sorted({song.rating for song in songs})
    min_rating = ratings[len(ratings) // 2]
    present_ids = [song.id for song in songs]
    other_song = rng.choice([song for song in spotify.Song.all() if song.id not in present_ids])
    return (
        {"playlist": playlist.title, "minutes": minute_limit, "rating": min_rating, "song": other_song.title},
        {
            "playlist_id": playlist.id,
            "removed": sorted(song.id for song in songs if song.rating < min_rating) if is_long else [],
            "added": [] if is_long else [other_song.id],
        },
        None,
    )


def settle_up(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Settle the debts in a note: three apps, two kinds of change, one for each kind of line."""
    note_title = ("Debts", "Holiday money", "Shared costs")[task_index]
    purpose = ("Settled", "Holiday", "Costs of May")[task_index]
    parties = rng.sample([party for party, _ in contacts(person)], 4)
    debtors = rng.sample(parties, 2)
    note_lines: list[str] = []
    requests: list[list[int]] = []
    payments: list[list[int]] = []
    for party in parties:
        amount = rng.randrange(5, 80)
        note_lines.append(f"{party.name} owes me {amount}" if party in debtors else f"I owe {party.name} {amount}")
        receiver_id = models.venmo.User.find_one(email=party.email).id
        (requests if party in debtors else payments).append([receiver_id, amount])
    add_note(models, person.email, note_title, "\n".join(note_lines), 1)
    return {"title": note_title, "purpose": purpose}, {"requests": sorted(requests), "payments": sorted(payments)}, None


def greet_older(models: Any, person: Person, task_index: int, rng: random.Random) -> TaskContent:
    """Text everybody born before a year: a field selects the rows, and each row makes a text."""
    year_limit = (1990, 1991, 1989)[task_index]
    greeting = ("Happy reunion", "See you at the lake", "Thank you")[task_index]
    find_user = models.phone.User.find_one
    messages = [
        [find_user(phone_number=contact.phone_number).id, f"{greeting}, {contact.first_name}!"]
        for contact, _ in contacts(person)
        if int(contact.birthday[:4]) < year_limit
    ]
    return {"year": year_limit, "greeting": greeting}, {"messages": sorted(messages)}, None


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A scenario: its `difficulty` is 1 to 3, its `instruction` has {parameters}, its `solution` <parameters>.

    `evaluation` is the source of the task's evaluation.py.
    """

    name: str
    split: str
    difficulty: int
    draw: ContentSampler
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

    def blocks(self, public_data: Mapping[str, Any]) -> list[str]:
        """The solution of the task with these parameters."""
        return [re.sub(r"<(\w+)>", lambda match: repr(public_data[match[1]]), block) for block in self.solution]


_SECTION_PATTERN = re.compile(
    r"^## (\w+)\n\n(\w+), difficulty (\d), logged in to ([\w, ]+)\n\n((?:[^\n]+\n)+)\n(.+?)(?=^## |\Z)", re.M | re.S
)
_BLOCK_PATTERN = re.compile(r"^```python\n(.+?)^```$", re.M | re.S)


def _read_scenario(section: re.Match[str]) -> Scenario:
    scenario_name, split, difficulty, app_list, instruction, code_text = section.groups()
    logins = "\n".join(
        f"{app} = apis.{app}.login(username=me['{ACCOUNTS[app]}'], password=passwords['{app}'])['access_token']"
        for app in app_list.split(", ")
    )
    *blocks, evaluation = _BLOCK_PATTERN.findall(code_text)
    instruction, solution = " ".join(instruction.split()), (_LOGIN_CODE.replace("<logins>", logins), *blocks)
    return Scenario(scenario_name, split, int(difficulty), globals()[scenario_name], instruction, solution, evaluation)


_SCENARIOS_TEXT = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_LOGIN_CODE: str = _BLOCK_PATTERN.findall(_SCENARIOS_TEXT)[0]
SCENARIOS = tuple(map(_read_scenario, _SECTION_PATTERN.finditer(_SCENARIOS_TEXT)))
