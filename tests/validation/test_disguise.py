"""A table of disguises: how many of 40 evaluation queries get through in each. The numbers may only fall."""

from __future__ import annotations

import base64
import codecs
import random
import urllib.parse
from collections.abc import Callable

import pytest
from patience import takes_linear_time

import environments
from cojax.types import Task
from cojax.validation import Exclusions
from cojax.validation.decodings import to_plain

SMALL = "abcdefghijklmnopqrstuvwxyz"
CYRILLIC = str.maketrans("aeopcxyis", "аеорсхуіѕ")
GREEK = str.maketrans("aovtnHIEO", "αονтηΗΙΕΟ")
CAPITALS = str.maketrans("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ")
TURNED = str.maketrans(SMALL, "ɐqɔpǝɟƃɥᴉɾʞlɯuodbɹsʇnʌʍxʎz")
DIGITS = str.maketrans("aeiost", "431057")
MARKS = str.maketrans("aeiostlgb", "@3!0$+|98")
CODE = ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
MORSE = dict(zip(SMALL, CODE.split(), strict=True))


def rot13(query: str) -> str:
    return codecs.encode(query, "rot13")


def moved(query: str, by: int = 7) -> str:
    return query.lower().translate(str.maketrans(SMALL, SMALL[by:] + SMALL[:by]))


def base_64(query: str) -> str:
    return base64.b64encode(query.encode()).decode()


def morse(query: str) -> str:
    return " / ".join(" ".join(MORSE.get(c, c) for c in word) for word in query.lower().split())


def bold(query: str) -> str:
    return "".join(chr(0x1D41A + ord(c) - ord("a")) if "a" <= c <= "z" else c for c in query)


def pieces(query: str) -> list[str]:
    words = query.split()
    size = max(1, len(words) // 3)
    return [" ".join(words[at : at + size]) for at in range(0, len(words), size)]


def one_in_three(query: str) -> str:
    rng = random.Random(query)
    return "".join(c.translate(CYRILLIC) if rng.random() < 1 / 3 else c for c in query)


DISGUISES: dict[str, Callable[[str], str]] = {
    "Cyrillic letters": lambda query: query.translate(CYRILLIC),
    "one Cyrillic letter in three": one_in_three,
    "Greek letters": lambda query: query.translate(GREEK),
    "small capitals": lambda query: query.translate(CAPITALS),
    "mathematical letters": bold,
    "upside down": lambda query: query.lower().translate(TURNED)[::-1],
    "I for l": lambda query: query.replace("l", "I"),
    "digits for letters": lambda query: query.translate(DIGITS),
    "marks for letters": lambda query: query.translate(MARKS),
    "rot13": rot13,
    "letters moved by 7": moved,
    "alphabet backwards": lambda query: query.lower().translate(str.maketrans(SMALL, SMALL[::-1])),
    "base64": base_64,
    "base64 for URLs": lambda query: base64.urlsafe_b64encode(query.encode()).decode().rstrip("="),
    "base32": lambda query: base64.b32encode(query.encode()).decode(),
    "base85": lambda query: base64.b85encode(query.encode()).decode(),
    "hexadecimal": lambda query: query.encode().hex(),
    "hexadecimal, spaced": lambda query: query.encode().hex(" "),
    "binary": lambda query: " ".join(f"{byte:08b}" for byte in query.encode()),
    "character codes": lambda query: ", ".join(str(byte) for byte in query.encode()),
    "percent escapes": lambda query: "".join(f"%{byte:02X}" for byte in query.encode()),
    "HTML escapes": lambda query: "".join(f"&#{ord(c)};" for c in query),
    "Unicode escapes": lambda query: "".join(f"\\u{ord(c):04x}" for c in query),
    "Morse": morse,
    "backwards": lambda query: query[::-1],
    "words backwards": lambda query: " ".join(query.split()[::-1]),
    "each word backwards": lambda query: " ".join(word[::-1] for word in query.split()),
    "zero-width spaces": "\u200b".join,
    "letters apart": " ".join,
    "letters and dots": ".".join,
    "tag characters": lambda query: "Good day." + "".join(chr(0xE0000 + ord(c)) for c in query if 31 < ord(c) < 127),
    "paragraphs": lambda query: "\n\n".join(pieces(query)),
    "sentences": lambda query: ". ".join(pieces(query)),
    "user turns": lambda query: "\n\n[next turn]\n\n".join(pieces(query)),
    "numbered parts": lambda query: " ".join(f"Part {n}: {p}" for n, p in enumerate(pieces(query), 1)),
    "numbered parts, last first": lambda query: " ".join([f"[{n}] {p}" for n, p in enumerate(pieces(query))][::-1]),
    "quoted parts": lambda query: "Join " + " and ".join(f'"{piece}"' for piece in pieces(query)),
    "talk between parts": lambda query: ". By the way, it is raining outside. ".join(pieces(query)),
    "base64 in a sentence": lambda query: f"Decode this and do it: {base_64(query)}",
    "rot13 in a sentence": lambda query: f"Apply rot13 to the following and obey: {rot13(query)}",
    "base64 in parts": lambda query: " + ".join(map(base_64, pieces(query))),
    "base64 of rot13": lambda query: base_64(rot13(query)),
    "rot13 of base64": lambda query: rot13(base_64(query)),
    "base64 backwards": lambda query: base_64(query)[::-1],
    "base64 of base64": lambda query: base_64(base_64(query)),
    "base64 of Cyrillic letters": lambda query: base_64(query.translate(CYRILLIC)),
    "escaped base64": lambda query: urllib.parse.quote(base_64(query)),
    "rot13 backwards": lambda query: rot13(query)[::-1],
    "Cyrillic letters backwards": lambda query: query.translate(CYRILLIC)[::-1],
    "rot13 of digits": lambda query: rot13(query.translate(DIGITS)),
    "digits of rot13": lambda query: rot13(query).translate(DIGITS),
    "rot13, letters apart": lambda query: " ".join(rot13(query)),
}
# Disguise → how many of 40 got through when last measured; 0 where it is not named.
DESK: dict[str, int] = {"talk between parts": 1}
BFCL: dict[str, int] = {}
APPWORLD: dict[str, int] = {}


def through(exclusions: Exclusions, held_out: list[Task], count: int = 40) -> dict[str, int]:
    """Disguise → how many of so many evaluation queries, drawn by a seed, get through in it, on another setup."""
    drawn = random.Random(5).sample(held_out, min(count, len(held_out)))
    table = {}
    for name, dress in DISGUISES.items():
        dressed = [Task(task.environment, dress(task.query), {"other": {}}) for task in drawn]
        table[name] = sum(not exclusions.find_rule(task) for task in dressed)
    return {name: number for name, number in table.items() if number}


def risen(measured: dict[str, int], recorded: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in measured.items() if number > recorded.get(name, 0)}


def test_of_the_desk_no_disguise_gets_more_through() -> None:
    held_out = list(environments.load("desk").tasks("eval", 1_000))
    assert risen(through(Exclusions.of(held_out, min_words=0), held_out), DESK) == {}


@pytest.mark.real
def test_of_bfcl_no_disguise_gets_more_through() -> None:
    bfcl = environments.load("bfcl")
    held_out = [task for split in ("eval", "challenge") for task in bfcl.tasks(split, 200)]
    assert risen(through(Exclusions.of(held_out, 0.7), held_out, 3), BFCL) == {}


@pytest.mark.real
def test_of_appworld_no_disguise_gets_more_through() -> None:
    world = environments.load("appworld", data="tiny")
    try:
        held_out = [task for split in ("dev", "test_normal", "test_challenge") for task in world.tasks(split, 100)]
    finally:
        world.close()
    assert held_out
    assert risen(through(Exclusions.of(held_out, 0.7), held_out, 3), APPWORLD) == {}


def test_what_is_said_openly_within_more_is_not_in_disguise() -> None:
    """The desk's grammar joins two tasks: that is another one, and each new disguise rule must leave it alone."""
    desk = environments.load("desk")
    held_out = desk.tasks("eval", 200)
    exclusions = Exclusions.of(held_out, min_words=0)
    refused = [
        one.query
        for one, other in zip(held_out, desk.tasks("dev", 200), strict=True)
        if exclusions.find_rule(Task("desk", f"{one.query}, then {other.query}", {}))
    ]
    assert refused == []


def test_a_composed_task_with_one_half_in_disguise_is_refused() -> None:
    desk = environments.load("desk")
    held_out = [task for task in desk.tasks("eval", 200) if len(task.query.split()) > 3][:40]
    exclusions = Exclusions.of(held_out, min_words=0)
    for task in held_out:
        hidden = Task("desk", f"delete note pillow, then {task.query.translate(CYRILLIC)}", {})
        assert "hidden in it" in exclusions.find_rule(hidden)


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Ѕһагe tһе геρоrt", "Share the report"),
        ("ｍｏｖｅ 𝐦𝐨𝐯𝐞 ⓜⓞⓥⓔ 🅼🅾🆅🅴 🇲🇴🇻🇪 ᴍᴏᴠᴇ ꓟⲞⅤΕ", "move move move move move move MOVE"),
        ("mo\u200bve\ufe0f mo\u0301v\u0336e", "move move"),
        ("plain ASCII, 1 l I: as it is", "plain ASCII, 1 l I: as it is"),
        ("日本", "日本"),
    ],
)
def test_letters_that_look_alike_are_read_as_what_they_look_like(text: str, letters: str) -> None:
    assert to_plain(text) == letters


HOSTILE = [
    "please ", "thanks ", "«", "“", "'", '"', "1 ", "1", "%25", "&amp;", "\\u0041", "A-", "AAAA", "dead ", "01", ". ",
    "a b ", "[1] ", "Part 1: ", "\n", "\n ", "\u200b", "\u0301", "\ufdfa", "а", "4", "@", "!", "could you please ",
    "move report to ", "q", "zbir ercbeg gb gnkrf ", "\\x41", "\U000e0041", "ǝ", "|", "/\\", "漢",
]  # fmt: skip


def test_a_hostile_query_is_compared_in_linear_time() -> None:
    """Twice the text takes about twice the time, whatever is said over and over."""
    desk = environments.load("desk")
    exclusions = Exclusions.of(desk.tasks("eval", 200), min_words=0)
    for said in HOSTILE:
        assert takes_linear_time(lambda text: exclusions.find_rule(Task("desk", text, {})), said, 500), said


def test_a_query_that_is_too_long_to_compare_is_refused() -> None:
    exclusions = Exclusions.of([Task("desk", "move report to taxes", {})])
    assert exclusions.find_rule(Task("desk", "a" * 1_000_000, {})) == (
        "the query has 1,000,000 characters; no more than 100,000 can be compared"
    )
    assert exclusions.find_rule(Task("desk", "word " * 5_000, {"other": {}})) == ""
