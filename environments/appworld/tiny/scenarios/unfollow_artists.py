"""Unfollow artists that are hardly liked: counting over one list decides on another."""

import random
from typing import Any

from ..people import Person
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "test_normal", 2
INSTRUCTION = "On Spotify, stop following every artist of whose songs I have liked no more than {count}."


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    spotify = models.spotify
    user = spotify.User.find_one(email=person.email)
    liked = [artist for song in user.liked_songs for artist in song.artist_ids]
    followed = [row.artist_id for row in user.user_artist_followings]
    # Some of both kinds: from the least liked of those followed on, but less than the most liked.
    counts = [liked.count(artist) for artist in followed]
    count = chance.randrange(max(1, min(counts)), max(counts))
    return Drawn({"count": count}, {"artist_ids": sorted(row for row in followed if liked.count(row) <= count)})


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
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


SOLUTION = (
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
