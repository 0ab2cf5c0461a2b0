"""Who lives in the tiny data, in ONE table, and what their apps hold before any task: rows drawn by a fixed seed."""

import dataclasses
import datetime
import random
from collections.abc import Callable, Sequence
from typing import Any

# Apps in which everybody has an account, with the user name that logs in.
ACCOUNTS = {
    "spotify": "email",
    "venmo": "email",
    "phone": "phone_number",
    "simple_note": "email",
    "todoist": "email",
    "gmail": "email",
}


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
        """What a contact book and the supervisor's profile say."""
        names = ("first_name", "last_name", "email", "phone_number")
        return {name: getattr(self, name) for name in names}

    def password(self, app: str) -> str:
        chance = random.Random(f"{self.email} {app}")
        return "".join(chance.choice("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789+-#") for _ in range(10))


PEOPLE = (
    Person("Nora", "Lindqvist", "5550142071", "1991-03-14", "female"),
    Person("Tomas", "Okafor", "5550142072", "1988-11-02", "male"),
    Person("Ines", "Moreau", "5550142073", "1994-07-27", "female"),
    Person("Ravi", "Castellano", "5550142074", "1990-01-19", "male"),
    Person("Hana", "Whitfield", "5550142075", "1986-09-08", "female"),
    Person("Emil", "Sorensen", "5550142076", "1993-05-30", "male"),
    Person("Leila", "Abbott", "5550142077", "1989-12-11", "female"),
    Person("Jonas", "Petrov", "5550142078", "1995-04-03", "male"),
)
# These give the tasks; the others are their contacts only.
SUPERVISORS = PEOPLE[:5]
# Going round the table, the people 1, 2, … places further are:
_RELATIONSHIPS = ("roommate", "roommate", "coworker", "coworker", "coworker", "sibling", "friend")


def contacts(person: Person) -> list[tuple[Person, str]]:
    """Everybody else in the person's contact book, and the relationship."""
    place = PEOPLE.index(person)
    return [
        (PEOPLE[(place + further) % len(PEOPLE)], relationship)
        for further, relationship in enumerate(_RELATIONSHIPS, start=1)
    ]


# The day of every task; what the apps hold is older.
NOW = datetime.datetime(2023, 5, 18, 12, 0)

GENRES = ("folk", "jazz", "electronic", "soul")
ARTISTS = ("Harbor Lights", "Mira Solberg", "The Quiet Mile", "Anton Reyes", "Glass Orchard", "Juno Park", "Old Tram")
_FIRST = ("Paper", "Winter", "Golden", "Hollow", "Silver", "Distant", "Crooked", "Velvet", "Morning")
_SECOND = ("Lanterns", "River", "Staircase", "Signals", "Orchard", "Avenue")
REASONS = (
    "Dinner",
    "Groceries",
    "Cab ride",
    "Concert tickets",
    "Utilities",
    "Coffee",
    "Birthday gift",
    "Museum",
    "Lunch",
)
_TEXTS = (
    "Are you around this weekend?",
    "Running ten minutes late.",
    "Thanks again for yesterday!",
    "Did you see the new cafe on the corner?",
    "Call me when you can.",
    "The package has arrived.",
)
_ALARMS = (("06:30", "Run"), ("07:15", "Wake up"), ("08:40", "Leave for work"), ("13:05", "Stretch"), ("21:50", "Read"))
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday"]
NOTES = {
    "Bike repair": "Chain from the shop on Mill Street, brake pads next month.",
    "Book ideas": "A history of maps. Something by the sea. A cook book for one pot.",
    "Gift ideas": "Scarf, concert tickets, board game.",
    "House rules": "Quiet after ten. Bins on Tuesday. Plants on Friday.",
    "Recipes": "Lentil soup, lemon pasta, plum cake.",
    "Travel plans": "Night train in August, return by boat.",
}
_CHORES = (
    "Water the plants",
    "Renew the passport",
    "Book the dentist",
    "Clean the oven",
    "Sort old photos",
    "Fix the lamp",
    "Return library books",
    "Compare phone plans",
    "Wash the curtains",
    "Write to the landlord",
)

Filler = Callable[[Any, random.Random], None]


def fill(models: Any) -> None:
    """Creates all rows, in databases that are empty. `models`: the package's collection of models, all apps loaded."""
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
    """So many days before now, by default as the date of creation."""
    return dict.fromkeys(names or ("created_at",), NOW - datetime.timedelta(days=days))


def _music(models: Any, chance: random.Random) -> None:
    spotify = models.spotify
    artists = [
        spotify.Artist.create_save(name=name, genre=GENRES[number % len(GENRES)], **_dates(900))
        for number, name in enumerate(ARTISTS)
    ]
    titles = [f"{first} {second}" for first in _FIRST for second in _SECOND]
    chance.shuffle(titles)
    plays = chance.sample(range(100, 1_000), len(titles))
    songs = []
    for number, title in enumerate(titles):
        # Four songs of an artist make an album; those after are singles.
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
            added = _dates(chance.randrange(20, 300))
            spotify.UserLibrarySong.create_save(user_id=user.id, song_id=song.id, **added)
        for song in chance.sample(songs, 12):
            spotify.SongLike.create_save(
                user_id=user.id, song_id=song.id, **_dates(chance.randrange(20, 300), "liked_at")
            )
        for artist in chance.sample(artists, 5):
            spotify.UserArtistFollowing.create_save(user_id=user.id, artist_id=artist.id, **_dates(200))
        for title in chance.sample(("Sunday Slow", "Long Drive", "Kitchen Radio", "Deep Focus", "Evening Run"), 3):
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
                    # At noon of days 1 to 135 before: this year and no month is empty, none holds all.
                    **_dates(chance.randrange(1, 135), "created_at", "updated_at"),
                )
        for other in chance.sample(others, 5):
            old, denied = chance.randrange(30, 100), chance.random() < 0.3
            venmo.PaymentRequest.create_save(
                sender_id=other.id,
                receiver_id=user.id,
                amount=chance.randrange(5, 60),
                description=chance.choice(REASONS),
                **_dates(old, "created_at", "updated_at", "denied_at" if denied else "approved_at"),
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
            text(models, person.phone_number, other.phone_number, chance.choice(_TEXTS), chance.randrange(3, 60))
        for time, label in _ALARMS:
            phone.Alarm.create_save(
                user_id=numbers[person],
                time=time,
                label=label,
                repeat_days=_DAYS,
                enabled=chance.random() < 0.6,
                snooze_minutes=chance.choice((5, 10, 15)),
                vibration=True,
                **_dates(100),
            )


def text(models: Any, sender: str, receiver: str, message: str, days: float) -> None:
    """A text message, so many days ago, with both who take part in it."""
    users = [models.phone.User.find_one(phone_number=number).id for number in (sender, receiver)]
    shared = models.phone.GlobalTextMessage.create_save(
        sender_id=users[0], receiver_id=users[1], message=message, **_dates(days)
    )
    for user in users:
        models.phone.UserTextMessage.create_save(global_text_message_id=shared.id, user_id=user, **_dates(days))


def note(models: Any, email: str, title: str, content: str, days: float) -> None:
    """A note of that user, so many days old."""
    user = models.simple_note.User.find_one(email=email)
    models.simple_note.Note.create_save(
        user_id=user.id, title=title, content=content, pinned=False, **_dates(days, "created_at", "updated_at")
    )


def _notes(models: Any, chance: random.Random) -> None:
    for person in PEOPLE:
        for title, content in NOTES.items():
            note(models, person.email, title, content, chance.randrange(5, 200))


def _chores(models: Any, chance: random.Random) -> None:
    for user in models.todoist.User.all():
        for name in ("Inbox", "Home", "Paperwork"):
            project(models, user.email, name, chance.sample(_CHORES, 5), chance)


def project(models: Any, email: str, name: str, titles: Sequence[str], chance: random.Random) -> Any:
    """A project of that user alone, with tasks that are due from ten days ago to ten ahead; the project's row."""
    todoist = models.todoist
    user = todoist.User.find_one(email=email)
    made = todoist.Project.create_save(user_id=user.id, name=name, is_inbox=name == "Inbox", **_dates(150))
    todoist.ProjectCollaboratorLink.create_save(project_id=made.id, user_id=user.id, **_dates(150))
    for place, title in enumerate(titles):
        due = NOW.replace(hour=0) + datetime.timedelta(days=chance.choice((-9, -6, -4, -2, 1, 3, 5, 8)))
        todoist.Task.create_save(
            project_id=made.id,
            user_id=user.id,
            title=title,
            description="",
            due_date=due,
            priority=chance.choice(("low", "medium", "high")),
            is_completed=chance.random() < 0.3,
            order_index=place,
            **_dates(20),
        )
    return made
