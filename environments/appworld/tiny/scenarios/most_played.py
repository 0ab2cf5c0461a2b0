"""Which song of a genre is played most: an answer, over two lists."""

import random
from typing import Any

from ..people import Person
from ..rows import GENRES
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "train", 1
INSTRUCTION = "Which {genre} song in the Spotify playlists I made has been played most often? Answer with its title."


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    user = models.spotify.User.find_one(email=person.email)
    songs = {song.title: song for playlist in user.playlists for song in playlist.songs}
    genres = [genre for genre in GENRES if sum(song.genre == genre for song in songs.values()) > 1]
    genre = genres[number % len(genres)]
    titles = sorted((song.play_count, title) for title, song in songs.items() if song.genre == genre)
    return Drawn({"genre": genre}, {"titles": [title for _, title in titles]}, titles[-1][1])


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    answer = models.end.supervisor.Task.first().answer.strip('"')

    with test("the answer is a song of that genre in one of my playlists"):
        test.case(answer.lower(), "in", [title.lower() for title in private_data.titles])

    with test("the answer is the one played most"):
        test.answer(answer, ground_truth_answer)

    with test("no data of any app has changed"):
        test.case(models.changed_model_names(), "==", set())


SOLUTION = (
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
