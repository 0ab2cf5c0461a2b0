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
        """The person's entry in a contact book, and in a supervisor's profile."""
        field_names = ("first_name", "last_name", "email", "phone_number")
        return {field: getattr(self, field) for field in field_names}

    def password(self, app: str) -> str:
        rng = random.Random(f"{self.email} {app}")
        return "".join(rng.choice("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789+-#") for _ in range(10))


PEOPLE = tuple(Person(*row) for row in TABLES["people"])
# These people give the tasks; the others are only their contacts.
SUPERVISORS = PEOPLE[:5]


def contacts(person: Person) -> list[tuple[Person, str]]:
    """Returns the person's contacts and their relationships, in the order of the table from the person on."""
    person_index = PEOPLE.index(person)
    return list(zip((*PEOPLE[person_index + 1 :], *PEOPLE[:person_index]), TABLES["relationships"], strict=True))


def fill(models: Any) -> None:
    """Creates all rows in empty databases. `models` is the package's collection of models, with all apps loaded."""
    for person in PEOPLE:
        models.admin.MainUser.create_save(**person.contact, birthday=person.birthday, sex=person.sex)
        name_fields = {"first_name": person.first_name, "last_name": person.last_name}
        for app, login in ACCOUNTS.items():
            account = {login: getattr(person, login), "password": person.password(app), **name_fields, **_dates(400)}
            if app != "phone":
                account["verified"] = True
            models[app].User.create_save(**account)
    for seed, add_rows in enumerate((_add_music, _add_money, _add_phone_rows, _add_notes, _add_chores)):
        add_rows(models, random.Random(seed))


def _dates(age_days: float, *date_fields: str) -> dict[str, datetime.datetime]:
    """Returns the date `age_days` before NOW under each of these fields, by default as the date of creation."""
    return dict.fromkeys(date_fields or ("created_at",), NOW - datetime.timedelta(days=age_days))


def _add_music(models: Any, rng: random.Random) -> None:
    spotify = models.spotify
    artists = [
        spotify.Artist.create_save(name=artist_name, genre=GENRES[artist_index % len(GENRES)], **_dates(900))
        for artist_index, artist_name in enumerate(TABLES["artists"])
    ]
    titles = [f"{first_word} {second_word}" for first_word, second_word in itertools.product(*TABLES["titles"])]
    rng.shuffle(titles)
    play_counts = rng.sample(range(100, 1_000), len(titles))
    songs = []
    for song_index, title in enumerate(titles):
        # The first four songs of an artist make an album; the others are singles.
        artist = artists[song_index % len(artists)]
        genre = GENRES[rng.randrange(len(GENRES))]
        date = _dates(rng.randrange(100, 2_000), "release_date")
        if song_index < len(artists):
            spotify.Album.create_save(title=f"{artist.name}: Rooms", artist_ids=[artist.id], genre=artist.genre, **date)
        songs.append(
            spotify.Song.create_save(
                title=title,
                artist_ids=[artist.id],
                album_id=artist.id if song_index < 4 * len(artists) else None,
                duration=rng.randrange(120, 420),
                genre=genre,
                play_count=play_counts[song_index],
                rating=rng.randrange(20, 51) / 10,
                **date,
            )
        )
    for user in spotify.User.all():
        for song in rng.sample(songs, 23):
            added_fields = _dates(rng.randrange(20, 300))
            spotify.UserLibrarySong.create_save(user_id=user.id, song_id=song.id, **added_fields)
        for song in rng.sample(songs, 12):
            spotify.SongLike.create_save(user_id=user.id, song_id=song.id, **_dates(rng.randrange(20, 300), "liked_at"))
        for artist in rng.sample(artists, 5):
            spotify.UserArtistFollowing.create_save(user_id=user.id, artist_id=artist.id, **_dates(200))
        for title in rng.sample(TABLES["playlists"], 3):
            playlist = spotify.Playlist.create_save(title=title, user_id=user.id, **_dates(rng.randrange(20, 300)))
            for song in rng.sample(songs, rng.randrange(7, 12)):
                spotify.PlaylistSong.create_save(playlist_id=playlist.id, song_id=song.id, **_dates(15, "added_at"))
        queue_song_ids = [song.id for song in rng.sample(songs, 4)]
        spotify.MusicPlayer.create_save(user_id=user.id, queue_song_ids=queue_song_ids, cursor_position=0)


def _add_money(models: Any, rng: random.Random) -> None:
    venmo = models.venmo
    users = venmo.User.all()
    for user in users:
        user.venmo_balance = rng.randrange(600, 1_500)
        user.save()
        other_users = [other_user for other_user in users if other_user.id != user.id]
        for other_user in other_users:
            venmo.Friendship.create_save(user_id=user.id, friend_id=other_user.id, **_dates(300))
        for other_user in other_users:
            for _ in range(rng.randrange(1, 4)):
                venmo.Transaction.create_save(
                    sender_id=user.id,
                    receiver_id=other_user.id,
                    amount=rng.randrange(4, 90),
                    description=rng.choice(REASONS),
                    # At noon, 1 to 134 days ago: within this year, and spread over its months.
                    **_dates(rng.randrange(1, 135), "created_at", "updated_at"),
                )
        for other_user in rng.sample(other_users, 5):
            age_days, is_denied = rng.randrange(30, 100), rng.random() < 0.3
            venmo.PaymentRequest.create_save(
                sender_id=other_user.id,
                receiver_id=user.id,
                amount=rng.randrange(5, 60),
                description=rng.choice(REASONS),
                **_dates(age_days, "created_at", "updated_at", "denied_at" if is_denied else "approved_at"),
            )


def _add_phone_rows(models: Any, rng: random.Random) -> None:
    phone = models.phone
    user_id_by_person = {person: phone.User.find_one(phone_number=person.phone_number).id for person in PEOPLE}
    for person in PEOPLE:
        for contact, relationship in contacts(person):
            phone.Contact.create_save(
                user_id=user_id_by_person[person],
                **contact.contact,
                relationships=[relationship],
                birthday=contact.birthday,
                **_dates(350),
            )
            send_text(
                models, person.phone_number, contact.phone_number, rng.choice(TABLES["texts"]), rng.randrange(3, 60)
            )
        for alarm_time, alarm_label in TABLES["alarms"]:
            phone.Alarm.create_save(
                user_id=user_id_by_person[person],
                time=alarm_time,
                label=alarm_label,
                repeat_days=TABLES["days"],
                enabled=rng.random() < 0.6,
                snooze_minutes=rng.choice((5, 10, 15)),
                vibration=True,
                **_dates(100),
            )


def send_text(models: Any, sender: str, receiver: str, message: str, age_days: float) -> None:
    """Creates a text message, `age_days` old, for both sender and receiver."""
    user_ids = [models.phone.User.find_one(phone_number=phone_number).id for phone_number in (sender, receiver)]
    row = models.phone.GlobalTextMessage.create_save(
        sender_id=user_ids[0], receiver_id=user_ids[1], message=message, **_dates(age_days)
    )
    for user_id in user_ids:
        models.phone.UserTextMessage.create_save(global_text_message_id=row.id, user_id=user_id, **_dates(age_days))


def add_note(models: Any, email: str, title: str, content: str, age_days: float) -> None:
    """Creates a note of that user, `age_days` old."""
    user = models.simple_note.User.find_one(email=email)
    models.simple_note.Note.create_save(
        user_id=user.id, title=title, content=content, pinned=False, **_dates(age_days, "created_at", "updated_at")
    )


def _add_notes(models: Any, rng: random.Random) -> None:
    for person in PEOPLE:
        for title, content in TABLES["notes"].items():
            add_note(models, person.email, title, content, rng.randrange(5, 200))


def _add_chores(models: Any, rng: random.Random) -> None:
    """Creates projects of one user each, with tasks due from nine days ago to eight days ahead."""
    todoist = models.todoist
    for user in todoist.User.all():
        for name in ("Inbox", "Home", "Paperwork"):
            titles = rng.sample(TABLES["chores"], 5)
            project = todoist.Project.create_save(user_id=user.id, name=name, is_inbox=name == "Inbox", **_dates(150))
            todoist.ProjectCollaboratorLink.create_save(project_id=project.id, user_id=user.id, **_dates(150))
            for chore_index, title in enumerate(titles):
                due_date = NOW.replace(hour=0) + datetime.timedelta(days=rng.choice((-9, -6, -4, -2, 1, 3, 5, 8)))
                todoist.Task.create_save(
                    project_id=project.id,
                    user_id=user.id,
                    title=title,
                    description="",
                    due_date=due_date,
                    priority=rng.choice(("low", "medium", "high")),
                    is_completed=rng.random() < 0.3,
                    order_index=chore_index,
                    **_dates(20),
                )
