"""Every word of the office, by kind. The kinds share no word, so a word alone determines its kind."""

from __future__ import annotations

_LISTS = {
    "file": "report budget invoice contract resume recipe thesis photo logo song map roster survey manual script chart "
    "form ticket letter poster sketch table video essay",
    "folder": "archive drafts projects finance travel taxes legal music school health designs backup",
    "note": "memo todo ideas shopping goals quotes diary agenda wishes gifts chores books films hints",
    "person": "ana bob carl dina emil fay gus hana ivan jana kurt lena max nora otto paul quin rosa sam tina uma vera "
    "walt zoe",
    "address": " ".join(f"box{number}" for number in range(11, 35)),
    "event": "standup lunch review party demo training interview launch retreat workshop picnic concert seminar audit "
    "hike dinner",
    "day": "monday tuesday wednesday thursday friday saturday sunday",
    "text": "amber apple bread bronze cedar cloud coral daisy ember falcon ginger honey ivory jade lemon maple mint "
    "olive onyx pearl pepper plum quartz raven ruby sage silver tulip velvet willow",
}

WORDS: dict[str, tuple[str, ...]] = {kind: tuple(words.split()) for kind, words in _LISTS.items()}


def kind(slot: str) -> str:
    """The kind of word a slot takes: `new_note` and `note2` take notes, a `sender` is a person."""
    name = slot.rstrip("0123456789").removeprefix("new_")
    return "person" if name == "sender" else name
