"""The scenarios of dev, test_normal and test_challenge."""

import random
from typing import Any

from .rows import note, text
from .scenario import Drawn, Person, contacts, login, scenario


def pay_or_text(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Pay, or say that one cannot: either branch is right for some task, and the other wrong."""
    other, _ = contacts(person)[2 * number]
    pays = number != 1
    user = models.venmo.User.find_one(email=person.email)
    limit = int(user.venmo_balance) + (-1 if pays else 1) * chance.randrange(20, 200)
    return Drawn(
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
    )


def check_pay_or_text(test, public_data, private_data, main_user, models, ground_truth_answer):
    payments, _, _ = models.changed_records("venmo.Transaction")
    messages, _, _ = models.changed_records("phone.GlobalTextMessage")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the right one of payment and message is sent, once, and not the other"):
        test.case([len(payments), len(messages)], "==", [1, 0] if private_data.pays else [0, 1])

    with test("it goes to the right person, with the right words and amount"):
        if private_data.pays:
            sent = [[payment.receiver_id, payment.amount, payment.description] for payment in payments]
            right = [private_data.receiver_id, public_data.amount, public_data.purpose]
        else:
            sent = [[message.receiver_id, message.message] for message in messages]
            right = [private_data.phone_user_id, public_data.message]
        test.case(sent, "==", [right])

    with test("nothing that does not belong to it has changed"):
        belongs = {"venmo.Transaction", "venmo.User", "venmo.Notification"}
        if not private_data.pays:
            belongs = {"phone.GlobalTextMessage", "phone.UserTextMessage"}
        test.case(models.changed_model_names(), "==", belongs)


PAY_OR_TEXT = scenario(
    "dev",
    2,
    pay_or_text,
    check_pay_or_text,
    'If my Venmo balance is more than ${limit}, send {name} ${amount} on Venmo with the description "{purpose}". '
    'Otherwise send {name} the text message "{message}" from my phone instead.',
    login("phone", "venmo"),
    """
first_name = <name>.split()[0]
found = pages(apis.phone.search_contacts, access_token=phone, query=first_name)
contact = next(row for row in found if row["first_name"] + " " + row["last_name"] == <name>)
balance = apis.venmo.show_venmo_balance(access_token=venmo)["venmo_balance"]
print(balance, contact["email"], contact["phone_number"])
""",
    """
if balance > <limit>:
    apis.venmo.create_transaction(
        receiver_email=contact["email"], amount=<amount>, description=<purpose>, access_token=venmo
    )
else:
    apis.phone.send_text_message(phone_number=contact["phone_number"], message=<message>, access_token=phone)
apis.supervisor.complete_task()
""",
)


def total_received(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """How much a group has sent since a day: an answer over two apps."""
    relationship, date = (("coworker", "2023-04-01"), ("roommate", "2023-02-15"), ("coworker", "2023-03-01"))[number]
    venmo = models.venmo
    group = [other for other, kind in contacts(person) if kind == relationship]
    senders = [venmo.User.find_one(email=other.email).id for other in group]
    user = venmo.User.find_one(email=person.email)
    # Enough to add up in each task, whatever the rows say.
    for sender in senders:
        amount, at = chance.randrange(10, 70), {"created_at": f"2023-05-{chance.randrange(2, 15):02}T09:30:00"}
        venmo.Transaction.create_save(sender_id=sender, receiver_id=user.id, amount=amount, description="Shared", **at)
    received = [payment for sender in senders for payment in venmo.Transaction.find_all(sender_id=sender)]
    received = [payment for payment in received if payment.receiver_id == user.id]
    total = sum(payment.amount for payment in received if payment.created_at.strftime("%Y-%m-%d") >= date)
    return Drawn(
        {"relationship": relationship, "date": date},
        {"ever": sum(payment.amount for payment in received)},
        round(total),
    )


def check_total_received(test, public_data, private_data, main_user, models, ground_truth_answer):
    answer = models.end.supervisor.Task.first().answer

    with test("the answer is a number, and no more than what they sent at any time"):
        number = float(answer.strip('"'))
        test.subcases([(number, ">", 0), (number, "<=", private_data.ever)])

    with test("the answer is their sum since that day"):
        test.answer(answer, ground_truth_answer)

    with test("no data of any app has changed"):
        test.case(models.changed_model_names(), "==", set())


TOTAL_RECEIVED = scenario(
    "dev",
    2,
    total_received,
    check_total_received,
    "How many dollars have my {relationship}s sent me on Venmo since {date}, that day included? My phone contacts say "
    "who is a {relationship}. Answer with the number.",
    login("phone", "venmo"),
    """
group = pages(apis.phone.search_contacts, access_token=phone, relationship=<relationship>)
print([contact["email"] for contact in group])
""",
    """
total = 0
for contact in group:
    received = pages(
        apis.venmo.show_transactions,
        access_token=venmo,
        user_email=contact["email"],
        direction="received",
        min_created_at=<date>,
    )
    print(contact["first_name"], [(payment["created_at"], payment["amount"]) for payment in received])
    total += sum(payment["amount"] for payment in received)
apis.supervisor.complete_task(answer=round(total))
""",
)


def songs_from_text(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
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
    return Drawn(
        {"name": other.name, "playlist": playlist.title},
        {"playlist_id": playlist.id, "song_ids": sorted(song.id for song in new)},
    )


def check_songs_from_text(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("spotify.PlaylistSong")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the songs added are those named that were missing"):
        test.case(sorted(row.song_id for row in added), "==", private_data.song_ids)

    with test("they are added to that playlist"):
        test.case([row.playlist_id for row in added], "all ==", private_data.playlist_id)

    with test("nothing but songs of playlists has changed"):
        test.case(updated + removed, "==", [])
        test.case(models.changed_model_names(), "==", {"spotify.PlaylistSong"})


SONGS_FROM_TEXT = scenario(
    "test_normal",
    3,
    songs_from_text,
    check_songs_from_text,
    '{name} has sent me a text message that begins with "Songs for you:". Add the songs it names to my Spotify '
    'playlist "{playlist}", but for those that are in it already.',
    login("phone", "spotify"),
    """
found = pages(apis.phone.search_contacts, access_token=phone, query=<name>.split()[0])
contact = next(row for row in found if row["first_name"] + " " + row["last_name"] == <name>)
messages = pages(apis.phone.search_text_messages, access_token=phone, phone_number=contact["phone_number"])
message = next(row["message"] for row in messages if row["message"].startswith("Songs for you:"))
titles = [title.strip() for title in message.removeprefix("Songs for you:").split(",")]
print(titles)
""",
    """
library = pages(apis.spotify.show_playlist_library, access_token=spotify)
playlist = next(row for row in library if row["title"] == <playlist>)
for title in titles:
    songs = pages(apis.spotify.search_songs, query=title)
    song = next(song for song in songs if song["title"] == title)
    if song["song_id"] not in playlist["song_ids"]:
        apis.spotify.add_song_to_playlist(
            playlist_id=playlist["playlist_id"], song_id=song["song_id"], access_token=spotify
        )
        print("added", title)
apis.supervisor.complete_task()
""",
)


def unfollow_artists(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Unfollow artists that are hardly liked: counting over one list decides on another."""
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    liked = [artist for song in user.liked_songs for artist in song.artist_ids]
    followed = [row.artist_id for row in user.user_artist_followings]
    # Some of both kinds: from the least liked of those followed on, but less than the most liked.
    counts = [liked.count(artist) for artist in followed]
    count = chance.randrange(max(1, min(counts)), max(counts))
    return Drawn({"count": count}, {"artist_ids": sorted(row for row in followed if liked.count(row) <= count)})


def check_unfollow_artists(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("spotify.UserArtistFollowing")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the artists no longer followed are those liked too little"):
        test.case(sorted(row.artist_id for row in removed), "==", private_data.artist_ids)

    with test("it is me who no longer follows them"):
        user = models.start.spotify.User.find_one(email=main_user.email)
        test.case([row.user_id for row in removed], "all ==", user.id)

    with test("nothing but artists followed has changed, and none is new"):
        test.case(added + updated, "==", [])
        test.case(models.changed_model_names(), "==", {"spotify.UserArtistFollowing"})


UNFOLLOW_ARTISTS = scenario(
    "test_normal",
    2,
    unfollow_artists,
    check_unfollow_artists,
    "On Spotify, stop following every artist of whose songs I have liked no more than {count}.",
    login("spotify"),
    """
liked = {}
for song in pages(apis.spotify.show_liked_songs, access_token=spotify):
    for artist in song["artists"]:
        liked[artist["id"]] = liked.get(artist["id"], 0) + 1
followed = pages(apis.spotify.show_following_artists, access_token=spotify)
print([(artist["name"], liked.get(artist["artist_id"], 0)) for artist in followed])
""",
    """
for artist in followed:
    if liked.get(artist["artist_id"], 0) <= <count>:
        apis.spotify.unfollow_artist(artist_id=artist["artist_id"], access_token=spotify)
apis.supervisor.complete_task()
""",
)


def trim_playlist(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Shorten a playlist, or lengthen it: the branch depends on a sum, what is removed on each row."""
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
    return Drawn(
        {"playlist": playlist.title, "minutes": minutes, "rating": rating, "song": other.title},
        {
            "playlist_id": playlist.id,
            "removed": sorted(song.id for song in songs if song.rating < rating) if long else [],
            "added": [] if long else [other.id],
        },
    )


def check_trim_playlist(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("spotify.PlaylistSong")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("songs are removed if the playlist is too long, and one is added if it is not"):
        test.case([bool(added), bool(removed)], "==", [bool(private_data.added), bool(private_data.removed)])

    with test("they are the right songs"):
        songs = [sorted(row.song_id for row in rows) for rows in (added, removed)]
        test.case(songs, "==", [private_data.added, private_data.removed])

    with test("it is the right playlist"):
        test.case([row.playlist_id for row in added + removed], "all ==", private_data.playlist_id)

    with test("nothing but songs of playlists has changed"):
        test.case(updated, "==", [])
        test.case(models.changed_model_names(), "==", {"spotify.PlaylistSong"})


TRIM_PLAYLIST = scenario(
    "test_challenge",
    3,
    trim_playlist,
    check_trim_playlist,
    'If my Spotify playlist "{playlist}" plays for more than {minutes} minutes, remove all songs rated below {rating} '
    'from it. Otherwise add the song "{song}" to it.',
    login("spotify"),
    """
library = pages(apis.spotify.show_playlist_library, access_token=spotify)
playlist = next(row for row in library if row["title"] == <playlist>)
songs = [apis.spotify.show_song(song_id=song) for song in playlist["song_ids"]]
seconds = sum(song["duration"] for song in songs)
print(seconds / 60, [(song["title"], song["rating"]) for song in songs])
""",
    """
if seconds > 60 * <minutes>:
    for song in songs:
        if song["rating"] < <rating>:
            apis.spotify.remove_song_from_playlist(
                playlist_id=playlist["playlist_id"], song_id=song["song_id"], access_token=spotify
            )
else:
    found = pages(apis.spotify.search_songs, query=<song>)
    song = next(song for song in found if song["title"] == <song>)
    apis.spotify.add_song_to_playlist(
        playlist_id=playlist["playlist_id"], song_id=song["song_id"], access_token=spotify
    )
apis.supervisor.complete_task()
""",
)


def settle_up(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Settle what a note says: three apps, two kinds of change, one for each kind of line."""
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
    return Drawn({"title": title, "purpose": purpose}, {"requests": sorted(requests), "payments": sorted(payments)})


def check_settle_up(test, public_data, private_data, main_user, models, ground_truth_answer):
    payments, _, _ = models.changed_records("venmo.Transaction")
    requests, updated, removed = models.changed_records("venmo.PaymentRequest")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("what I owe is sent to those I owe it"):
        test.case(sorted([row.receiver_id, int(row.amount)] for row in payments), "==", private_data.payments)

    with test("what I am owed is requested from those who owe it"):
        test.case(sorted([row.receiver_id, int(row.amount)] for row in requests), "==", private_data.requests)

    with test("both have the description"):
        test.case([row.description for row in payments + requests], "all ==", public_data.purpose)

    with test("nothing but payments, requests, balances and notifications has changed"):
        test.case(updated + removed, "==", [])
        changed = {"venmo.Transaction", "venmo.PaymentRequest", "venmo.User", "venmo.Notification"}
        test.case(models.changed_model_names(), "==", changed)


SETTLE_UP = scenario(
    "test_challenge",
    3,
    settle_up,
    check_settle_up,
    'My note "{title}" says who owes whom how many dollars. Settle all of it on Venmo: send what I owe, and request '
    'what I am owed, each with the description "{purpose}". My phone contacts have the email addresses.',
    login("simple_note", "phone", "venmo"),
    """
found = pages(apis.simple_note.search_notes, access_token=simple_note, query=<title>)
note = next(note for note in found if note["title"] == <title>)
content = apis.simple_note.show_note(note_id=note["note_id"], access_token=simple_note)["content"]
contacts = pages(apis.phone.search_contacts, access_token=phone)
emails = {row["first_name"] + " " + row["last_name"]: row["email"] for row in contacts}
print(content)
""",
    """
for line in content.splitlines():
    name = next(name for name in emails if name in line)
    amount = float(line.split()[-1])
    if line.startswith("I owe"):
        apis.venmo.create_transaction(
            receiver_email=emails[name], amount=amount, description=<purpose>, access_token=venmo
        )
    else:
        apis.venmo.create_payment_request(
            user_email=emails[name], amount=amount, description=<purpose>, access_token=venmo
        )
apis.supervisor.complete_task()
""",
)


def greet_older(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    """Text everybody born before a year: rows chosen by a field, a text made from each."""
    year = (1990, 1991, 1989)[number]
    greeting = ("Happy reunion", "See you at the lake", "Thank you")[number]
    find = models.phone.User.find_one
    sent = [
        [find(phone_number=other.phone_number).id, f"{greeting}, {other.first_name}!"]
        for other, _ in contacts(person)
        if int(other.birthday[:4]) < year
    ]
    return Drawn({"year": year, "greeting": greeting}, {"messages": sorted(sent)})


def check_greet_older(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("phone.GlobalTextMessage")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("one message goes to each of them, and to nobody else"):
        receivers = [receiver for receiver, _ in private_data.messages]
        test.case(sorted(message.receiver_id for message in added), "==", receivers)

    with test("each has its own words"):
        sent = sorted([message.receiver_id, message.message] for message in added)
        test.case(sent, "==", [list(message) for message in private_data.messages])

    with test("nothing but text messages has changed"):
        test.case(updated + removed, "==", [])
        test.case(models.changed_model_names(), "==", {"phone.GlobalTextMessage", "phone.UserTextMessage"})


GREET_OLDER = scenario(
    "test_challenge",
    2,
    greet_older,
    check_greet_older,
    "Send a text message to everyone in my phone contacts who was born before {year}. It should read "
    '"{greeting}, NAME!" with their first name in the place of NAME.',
    login("phone"),
    """
contacts = pages(apis.phone.search_contacts, access_token=phone)
older = [row for row in contacts if int(row["birthday"][:4]) < <year>]
print([(row["first_name"], row["birthday"]) for row in older])
""",
    """
for row in older:
    message = <greeting> + ", " + row["first_name"] + "!"
    apis.phone.send_text_message(phone_number=row["phone_number"], message=message, access_token=phone)
apis.supervisor.complete_task()
""",
)

HELD_OUT = (PAY_OR_TEXT, TOTAL_RECEIVED, SONGS_FROM_TEXT, UNFOLLOW_ARTISTS, TRIM_PLAYLIST, SETTLE_UP, GREET_OLDER)
