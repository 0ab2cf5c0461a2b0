"""Shorten a playlist, or lengthen it: the branch depends on a sum, what is removed on each row."""

import random
from typing import Any

from ..people import Person
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "test_challenge", 3
INSTRUCTION = (
    'If my Spotify playlist "{playlist}" plays for more than {minutes} minutes, remove all songs rated below {rating} '
    'from it. Otherwise add the song "{song}" to it.'
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
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


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
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


SOLUTION = (
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
