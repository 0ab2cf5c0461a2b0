"""Add the songs that a text message names: text of one app, rows of another, some of them there already."""

import random
from typing import Any

from ..people import Person, contacts
from ..rows import text
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "test_normal", 3
INSTRUCTION = (
    '{name} has sent me a text message that begins with "Songs for you:". Add the songs it names to my Spotify '
    'playlist "{playlist}", but for those that are in it already.'
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
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


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
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


SOLUTION = (
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
