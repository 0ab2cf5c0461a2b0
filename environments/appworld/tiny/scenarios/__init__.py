"""The scenarios."""

from ..scenario import Scenario
from . import (
    answer_requests,
    greet_older,
    like_genre,
    most_played,
    note_to_tasks,
    pay_or_text,
    postpone,
    settle_up,
    shift_alarms,
    songs_from_text,
    split_bill,
    total_received,
    trim_playlist,
    unfollow_artists,
)

_MODULES = (
    like_genre,
    shift_alarms,
    answer_requests,
    most_played,
    split_bill,
    note_to_tasks,
    postpone,
    pay_or_text,
    total_received,
    songs_from_text,
    unfollow_artists,
    trim_playlist,
    settle_up,
    greet_older,
)
SCENARIOS = tuple(
    Scenario(
        name=module.__name__.rpartition(".")[2],
        split=module.SPLIT,
        difficulty=module.DIFFICULTY,
        instruction=module.INSTRUCTION,
        draw=module.draw,
        evaluate=module.evaluate,
        solution=module.SOLUTION,
    )
    for module in _MODULES
)
