"""The people of the tiny data, and what their apps hold before any task: rows drawn from rows.json by a fixed seed."""

import dataclasses
import datetime
import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The parts of rows, by kind: `people` are arguments of Person; `titles` are lists of first and of second words.
TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# Apps in which everybody has an account, with the user name that logs in.
ACCOUNTS: Mapping[str, str] = TABLES["accounts"]
GENRES, REASONS = TABLES["genres"], TABLES["reasons"]
# The date of every task; all rows of the apps are older.
NOW = datetime.datetime(2023, 5, 18, 12, 0)


@dataclasses.dataclass(frozen=True)
class Person:
    """Somebody with an account in each app."""

    first_name: str
    last_name: str
    phone_number: str
    birthday: str
    sex: str

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}"

    @property
    def email(self) -> str:
        return f"{self.first_name}.{self.last_name}@mailbox.example.com".lower()

    @property
    def contact(self) -> dict[str, str]:
        """The person's entry in a contact book and in the supervisor's profile."""
        names = ("first_name", "last_name", "email", "phone_number")
        return {name: getattr(self, name) for name in names}

    def password(self, app: str) -> str:
        chance = random.Random(f"{self.email} {app}")
        return "".join(chance.choice("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789+-#") for _ in range(10))


PEOPLE = tuple(Person(*row) for row in TABLES["people"])
# These people give the tasks; the others are only their contacts.
SUPERVISORS = PEOPLE[:5]


def contacts(person: Person) -> list[tuple[Person, str]]:
    """The person's contacts, in the order of the table from the person on, each with the relationship."""
    place = PEOPLE.index(person)
    return list(zip((*PEOPLE[place + 1 :], *PEOPLE[:place]), TABLES["relationships"], strict=True))


def fill(models: Any) -> None:
    """Creates all rows in empty databases. `models` is the package's collection of models, with all apps loaded."""
    for person in PEOPLE:
        models.admin.MainUser.create_save(**person.contact, birthday=person.birthday, sex=person.sex)
        fields = {"first_name": person.first_name, "last_name": person.last_name}
        for app, name in ACCOUNTS.items():
            account = {name: getattr(person, name), "password": person.password(app), **fields, **_dates(400)}
            if app != "phone":
                account["verified"] = True
            models[app].User.create_save(**account)
    for number, filler in enumerate((_music, _money, _phone, _notes, _chores)):
        filler(models, random.Random(number))


def _dates(days: float, *names: str) -> dict[str, datetime.datetime]:
    """The date `days` before NOW under each of these names, by default as the date of creation."""
    return dict.fromkeys(names or ("created_at",), NOW - datetime.timedelta(days=days))


def _music(models: Any, chance: random.Random) -> None:
    spotify = models.spotify
    artists = [
        spotify.Artist.create_save(name=name, genre=GENRES[number % len(GENRES)], **_dates(900))
        for number, name in enumerate(TABLES["artists"])
    ]
    titles = [f"{first} {second}" for first, second in itertools.product(*TABLES["titles"])]
    chance.shuffle(titles)
    plays = chance.sample(range(100, 1_000), len(titles))
    songs = []
    for number, title in enumerate(titles):
        # The first four songs of an artist make an album; the others are singles.
        artist = artists[number % len(artists)]
        genre = GENRES[chance.randrange(len(GENRES))]
        at = _dates(chance.randrange(100, 2_000), "release_date")
        if number < len(artists):
            spotify.Album.create_save(title=f"{artist.name}: Rooms", artist_ids=[artist.id], genre=artist.genre, **at)
        songs.append(
            spotify.Song.create_save(
                title=title,
                artist_ids=[artist.id],
                album_id=artist.id if number < 4 * len(artists) else None,
                duration=chance.randrange(120, 420),
                genre=genre,
                play_count=plays[number],
                rating=chance.randrange(20, 51) / 10,
                **at,
            )
        )
    for user in spotify.User.all():
        for song in chance.sample(songs, 23):
            dates = _dates(chance.randrange(20, 300))
            spotify.UserLibrarySong.create_save(user_id=user.id, song_id=song.id, **dates)
        for song in chance.sample(songs, 12):
            spotify.SongLike.create_save(
                user_id=user.id, song_id=song.id, **_dates(chance.randrange(20, 300), "liked_at")
            )
        for artist in chance.sample(artists, 5):
            spotify.UserArtistFollowing.create_save(user_id=user.id, artist_id=artist.id, **_dates(200))
        for title in chance.sample(TABLES["playlists"], 3):
            playlist = spotify.Playlist.create_save(title=title, user_id=user.id, **_dates(chance.randrange(20, 300)))
            for song in chance.sample(songs, chance.randrange(7, 12)):
                spotify.PlaylistSong.create_save(playlist_id=playlist.id, song_id=song.id, **_dates(15, "added_at"))
        queue = [song.id for song in chance.sample(songs, 4)]
        spotify.MusicPlayer.create_save(user_id=user.id, queue_song_ids=queue, cursor_position=0)


def _money(models: Any, chance: random.Random) -> None:
    venmo = models.venmo
    users = venmo.User.all()
    for user in users:
        user.venmo_balance = chance.randrange(600, 1_500)
        user.save()
        others = [other for other in users if other.id != user.id]
        for other in others:
            venmo.Friendship.create_save(user_id=user.id, friend_id=other.id, **_dates(300))
        for other in others:
            for _ in range(chance.randrange(1, 4)):
                venmo.Transaction.create_save(
                    sender_id=user.id,
                    receiver_id=other.id,
                    amount=chance.randrange(4, 90),
                    description=chance.choice(REASONS),
                    # At noon, 1 to 134 days ago: within this year, and spread over its months.
                    **_dates(chance.randrange(1, 135), "created_at", "updated_at"),
                )
        for other in chance.sample(others, 5):
            old, is_denied = chance.randrange(30, 100), chance.random() < 0.3
            venmo.PaymentRequest.create_save(
                sender_id=other.id,
                receiver_id=user.id,
                amount=chance.randrange(5, 60),
                description=chance.choice(REASONS),
                **_dates(old, "created_at", "updated_at", "denied_at" if is_denied else "approved_at"),
            )


def _phone(models: Any, chance: random.Random) -> None:
    phone = models.phone
    numbers = {person: phone.User.find_one(phone_number=person.phone_number).id for person in PEOPLE}
    for person in PEOPLE:
        for other, relationship in contacts(person):
            phone.Contact.create_save(
                user_id=numbers[person],
                **other.contact,
                relationships=[relationship],
                birthday=other.birthday,
                **_dates(350),
            )
            text(
                models, person.phone_number, other.phone_number, chance.choice(TABLES["texts"]), chance.randrange(3, 60)
            )
        for time, label in TABLES["alarms"]:
            phone.Alarm.create_save(
                user_id=numbers[person],
                time=time,
                label=label,
                repeat_days=TABLES["days"],
                enabled=chance.random() < 0.6,
                snooze_minutes=chance.choice((5, 10, 15)),
                vibration=True,
                **_dates(100),
            )


def text(models: Any, sender: str, receiver: str, message: str, days: float) -> None:
    """Creates a text message, `days` ago, for both sender and receiver."""
    users = [models.phone.User.find_one(phone_number=number).id for number in (sender, receiver)]
    row = models.phone.GlobalTextMessage.create_save(
        sender_id=users[0], receiver_id=users[1], message=message, **_dates(days)
    )
    for user in users:
        models.phone.UserTextMessage.create_save(global_text_message_id=row.id, user_id=user, **_dates(days))


def note(models: Any, email: str, title: str, content: str, days: float) -> None:
    """Creates a note of that user, `days` old."""
    user = models.simple_note.User.find_one(email=email)
    models.simple_note.Note.create_save(
        user_id=user.id, title=title, content=content, pinned=False, **_dates(days, "created_at", "updated_at")
    )


def _notes(models: Any, chance: random.Random) -> None:
    for person in PEOPLE:
        for title, content in TABLES["notes"].items():
            note(models, person.email, title, content, chance.randrange(5, 200))


def _chores(models: Any, chance: random.Random) -> None:
    """Creates projects of one user each, with tasks due from nine days ago to eight days ahead."""
    todoist = models.todoist
    for user in todoist.User.all():
        for name in ("Inbox", "Home", "Paperwork"):
            titles = chance.sample(TABLES["chores"], 5)
            project = todoist.Project.create_save(user_id=user.id, name=name, is_inbox=name == "Inbox", **_dates(150))
            todoist.ProjectCollaboratorLink.create_save(project_id=project.id, user_id=user.id, **_dates(150))
            for place, title in enumerate(titles):
                due = NOW.replace(hour=0) + datetime.timedelta(days=chance.choice((-9, -6, -4, -2, 1, 3, 5, 8)))
                todoist.Task.create_save(
                    project_id=project.id,
                    user_id=user.id,
                    title=title,
                    description="",
                    due_date=due,
                    priority=chance.choice(("low", "medium", "high")),
                    is_completed=chance.random() < 0.3,
                    order_index=place,
                    **_dates(20),
                )
