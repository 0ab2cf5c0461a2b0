"""Like the songs of a genre: one kind of change, over a list of several pages."""

import random
from typing import Any

from ..people import Person
from ..rows import GENRES
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "train", 1
INSTRUCTION = "Like every {genre} song of my Spotify song library that I have not liked yet."


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    liked = {like.song_id for like in user.song_likes}
    genre = GENRES[number]
    songs = [song.id for song in user.library_songs if song.genre == genre and song.id not in liked]
    return Drawn({"genre": genre}, {"song_ids": sorted(songs)})


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
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


SOLUTION = (
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
