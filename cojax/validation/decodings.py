"""Undoes common encodings of text: base64, Morse code, leetspeak and others, each in time linear in the text."""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import urllib.parse
from collections.abc import Callable, Iterator

from cojax.validation.confusables import plain

_LEET = str.maketrans("0123456789@$€£¢+!|", "olzeasgtbqaseectil")
_LEET_SECOND = str.maketrans("0123456789@$€£¢+!|", "oizeasbtbgaselctil")
_LEET_DRAWN = {
    "|\\/|": "m", "/\\/\\": "m", "\\/\\/": "w", "|\\|": "n", "/\\/": "n", "|-|": "h", "|_|": "u", "\\/": "v",
    "/\\": "a", "|<": "k", "|)": "d", "|>": "p", "|2": "r", "|_": "l", "()": "o", "><": "x", "ph": "f",
}  # fmt: skip
_TURNED = str.maketrans("ɐqɔpǝɟƃɥᴉɾʞlɯuodbɹsʇnʌʍxʎzɓıɹ", "abcdefghijklmnopqrstuvwxyzgir")
_CODE = """
.- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --..
----- .---- ..--- ...-- ....- ..... -.... --... ---.. ----.
"""
MORSE = dict(zip(_CODE.split(), "abcdefghijklmnopqrstuvwxyz0123456789", strict=True))
_NUMBERS = {
    word: number
    for number, words in enumerate(
        ("one first a", "two second b", "three third c", "four fourth d", "five fifth", "six sixth", "last final"), 1
    )
    for word in words.split()
}
_PART = r"(?:part|piece|step|section|chunk|half|bit|fragment|line)"
_NUMBER = rf"(?:\d{{1,2}}|{'|'.join(word for word in _NUMBERS if len(word) > 1)})"
# "Part 2 of 3:", "[2]", "(2/3)", "2.", "second half -"
_MARKER = re.compile(
    rf"(?<![\w.])(?:[\[(#]?(?:{_PART} ?#?)?(?P<number>{_NUMBER})(?:(?: of |/)\d{{1,2}})?(?: {_PART})?[\])]?[:.)\]-]"
    rf"|{_PART} (?P<letter>[a-d])[:.)-]|[\[(](?P<bare>\d{{1,2}})[\])])(?!\d)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"\"([^\"\n]+)\"|“([^”\n]{1,500})”|«([^»\n]{1,500})»|`([^`\n]+)`|(?<!\w)'([^'\n]+)'(?!\w)")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}|[A-Za-z0-9+/_-]{2,7}={1,2}")
_BASE64_SHORT = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}|[A-Za-z0-9+/_-]{2,3}={1,2}")
_BASE64_LINES = re.compile(r"(?<=[A-Za-z0-9+/_=-]{16})\n(?=[A-Za-z0-9+/_-]{4})")
_BASE32 = re.compile(r"[A-Za-z2-7]{16,}={0,6}")
_BASE85 = re.compile(r"(?:<~)?[!-z{|}~]{15,}")
_HEX = re.compile(r"(?:0x|\\x)?[0-9a-fA-F]{2}(?:[\s:,-]{0,2}(?:0x|\\x)?[0-9a-fA-F]{2}){5,}")
_BITS = re.compile(r"[01]{7,8}(?:[\s,-]{0,2}[01]{7,8}){4,}")
_CODES = re.compile(r"(?<!\d)\d{1,3}(?:[\s,;./-]{1,3}\d{1,3}){5,}(?!\d)")
_ESCAPES = re.compile(r"(?:\\u\{?|U\+|\\U000)([0-9a-fA-F]{4,5})\}?|\\x([0-9a-fA-F]{2})|=([0-9A-F]{2})|\\([0-7]{3})")
MORSE_MARKS = str.maketrans("·•–−—_", "..----")
_DOTS = re.compile(r"[.\-·•–−—_/| \n]+")
_DOTTED = re.compile(r"[.\-·•–−—_/| \n]{14,}")
_MARKED = re.compile(r"(?<=\b\w)[.\-_*·|/,~](?=\w\b)")
_SPACED = re.compile(r"(?<=\b\w)[ .\-_*·|/,~](?=\w\b)")
_MIXED = re.compile(r"[a-z][0-9@$€£¢+!|][a-z]|[0-9@$€£¢|!][a-z]|[a-z][0-9$@|]", re.IGNORECASE)
_USUAL = 0.75  # least share of ASCII letters, digits and spaces in decoded text


def decodings(text: str) -> Iterator[tuple[str, str]]:
    """(name of the encoding, decoded text) for each encoding that the text may be in."""
    for name, decode in _DECODINGS.items():
        for reading in decode(text):
            if reading.strip() and reading != text:
                yield name, reading


def decode_leetspeak(text: str) -> str:
    """The text with letters in place of the digits and marks that stand for them within words."""
    words = re.split(r"(\s+)", text)
    return "".join(word.translate(_LEET) if _MIXED.search(word) else word for word in words)


def _as_text(data: bytes) -> str | None:
    """The bytes as text; None where they are not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    # An ordinary word that happens to be decodable gives letters of any script, and marks.
    usual = sum(char.isascii() and (char.isalnum() or char.isspace()) for char in plain(text))
    shown = all(char.isprintable() or char.isspace() for char in text)
    return text if len(text) >= 2 and shown and usual >= _USUAL * len(text) else None


def _in_place(text: str, pattern: re.Pattern[str], decode: Callable[[str], str | None]) -> Iterator[str]:
    """The decoded pieces alone, then the text with each of them in its place."""
    found: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        reading = decode(match[0])
        if reading is None:
            return match[0]
        found.append(reading)
        return f" {reading} "

    whole = pattern.sub(replaced, text)
    if found:
        yield " ".join(found)
        yield whole


def _from_base64(token: str) -> str | None:
    for form in (token, token[::-1], codecs.encode(token, "rot13")):
        bare = form.strip("=").replace("-", "+").replace("_", "/")
        # A single character encodes no whole byte.
        bare = bare[: len(bare) - (len(bare) % 4 == 1)]
        if (reading := _as_text(base64.b64decode(bare + "=" * (-len(bare) % 4)))) is not None:
            return reading
    return None


def _base64(text: str) -> Iterator[str]:
    text = _BASE64_LINES.sub("", text)
    if readings := list(_in_place(text, _BASE64, _from_base64)):
        # Where some words are base64, shorter ones may be too.
        yield from (*readings, *_in_place(text, _BASE64_SHORT, _from_base64))


def _from_base32(token: str) -> str | None:
    bare = token.strip("=").upper()
    try:
        return _as_text(base64.b32decode(bare + "=" * (-len(bare) % 8)))
    except binascii.Error:
        return None


def _from_base85(token: str) -> str | None:
    for decode, form in ((base64.b85decode, token), (base64.a85decode, token.removeprefix("<~").removesuffix("~>"))):
        try:
            if (reading := _as_text(decode(form))) is not None:
                return reading
        except ValueError:
            continue
    return None


def _from_hex(token: str) -> str | None:
    digits = re.sub(r"0x|\\x|[^0-9a-fA-F]", "", token)
    whole = len(digits) // 2 * 2
    return _as_text(bytes.fromhex(digits[:whole])) or _as_text(bytes.fromhex(digits[::-1][:whole]))


def _from_bits(token: str) -> str | None:
    groups = re.findall(r"[01]+", token)
    if len(groups) == 1:
        groups = re.findall(r"[01]{8}", token)
    return _as_text(bytes(int(group, 2) for group in groups if len(group) <= 8))


def _from_codes(token: str) -> str | None:
    numbers = [int(number) for number in re.findall(r"\d+", token)]
    if all(1 <= number <= 26 for number in numbers):
        return "".join(chr(96 + number) for number in numbers)
    return _as_text(bytes(numbers)) if all(9 <= number < 256 for number in numbers) else None


def _escapes(text: str) -> Iterator[str]:
    if "%" in text:
        yield urllib.parse.unquote(text)
    if "&" in text:
        yield html.unescape(text)
    if _ESCAPES.search(text):
        yield _ESCAPES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = int(match[4], 8) if match[4] else int(match[1] or match[2] or match[3], 16)
    return match[0] if 0xD800 <= code < 0xE000 else chr(code)


def _morse(text: str) -> Iterator[str]:
    if _DOTTED.search(text):
        yield _DOTS.sub(_from_morse, text)


def _from_morse(match: re.Match[str]) -> str:
    run = match[0].translate(MORSE_MARKS)
    return "".join(MORSE.get(token, " ") for token in re.findall(r"[.-]+|[/|\n]", run))


def _invisible(text: str) -> Iterator[str]:
    """Text hidden in tag characters, which are invisible, and in variation selectors, each of which may be a byte."""
    if text.isascii():
        return
    yield "".join(chr(ord(char) - 0xE0000) for char in text if 0xE0020 <= ord(char) < 0xE007F)
    hidden = [ord(char) - 0xFE00 for char in text if 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF]
    yield _as_text(bytes(code if code < 16 else code - (0xE0100 - 0xFE00) + 16 for code in hidden)) or ""


def _upside_down(text: str) -> Iterator[str]:
    if any(char in text for char in "ɐǝʇɹɥʎʍɯɔɟƃʞ"):
        yield text[::-1].lower().translate(_TURNED)


def _spaced(text: str) -> Iterator[str]:
    if len(_SPACED.findall(text)) >= 3:
        yield _MARKED.sub("", text)
        yield _SPACED.sub("", text)


def _leet(text: str) -> Iterator[str]:
    if _MIXED.search(text):
        yield decode_leetspeak(text)
        yield text.translate(_LEET_SECOND)
    drawn = text.lower()
    for strokes, letter in _LEET_DRAWN.items():
        drawn = drawn.replace(strokes, letter)
    if drawn != text.lower():
        yield drawn.translate(_LEET)


def _parts(text: str) -> Iterator[str]:
    """The pieces after numbered marks, in the order of the numbers; then the quoted pieces."""
    marks = list(_MARKER.finditer(text))
    if len(marks) >= 2:
        stops = [mark.start() for mark in marks[1:]] + [len(text)]
        pieces = [
            (_number(mark["number"] or mark["letter"] or mark["bare"]), text[mark.end() : stop])
            for mark, stop in zip(marks, stops, strict=True)
        ]
        yield " ".join(piece for _, piece in sorted(pieces, key=lambda piece: piece[0]))
    if quoted := ["".join(filter(None, groups)) for groups in _QUOTED.findall(text)]:
        yield " ".join(quoted)


def _number(word: str) -> int:
    return int(word) if word.isdigit() else _NUMBERS[word.lower()]


_DECODINGS: dict[str, Callable[[str], Iterator[str]]] = {
    "base64": _base64,
    "base32": lambda text: _in_place(text, _BASE32, _from_base32),
    "base85": lambda text: _in_place(text, _BASE85, _from_base85),
    "hexadecimal": lambda text: _in_place(text, _HEX, _from_hex),
    "binary": lambda text: _in_place(text, _BITS, _from_bits),
    "numbers for letters": lambda text: _in_place(text, _CODES, _from_codes),
    "escapes": _escapes,
    "Morse": _morse,
    "characters that show nothing": _invisible,
    "upside down": _upside_down,
    "letters apart": _spaced,
    "digits for letters": _leet,
    "parts": _parts,
}
