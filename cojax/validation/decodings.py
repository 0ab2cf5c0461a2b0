"""Reads texts in disguise: replaces letters that look like plain ones, and undoes the usual encodings.

The table of letters is Unicode's own (UTS #39, confusables.txt), as the package confusable_homoglyphs ships it. A
letter that is not in it is read by its Unicode name: "NEGATIVE SQUARED LATIN CAPITAL LETTER A" is an A. Every decoding
takes time linear in the text.
"""

import base64
import codecs
import contextlib
import functools
import html
import itertools
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cojax.validation.mention import ENGLISH, patterns

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
# Cipher → the alphabet, enciphered.
CIPHERS = {
    **{f"letters {shift} further on": ALPHABET[shift:] + ALPHABET[:shift] for shift in range(1, 26)},
    "the alphabet backwards": ALPHABET[::-1],
}
# "LATIN … LETTER A", "… SMALL CAPITAL A", "… TURNED A", with or without "WITH HOOK"; not "LATIN LETTER ESH".
_LATIN_NAME_PATTERN = re.compile(r"\b(?:LATIN|SYMBOL) (?:[A-Z-]+ )*?([A-Z])(?: WITH [A-Z -]+)?$")
# Characters that show nothing: the fillers of Hangul and the blank Braille pattern.
BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_HIDDEN_CATEGORIES = ("Cf", "Mn", "Me", "Cc", "Cn", "Co")
# At most this many characters replace one character.
_MAX_EXPANSION = 18
# Decodings nest at most this deep, and a text has at most this many readings.
_MAX_NESTING, _MAX_READINGS = 3, 32
# Digits → the letters they stand for; letters that look alike → one of them.
_LOOKALIKE_DIGITS = str.maketrans("0123456789i", "olzeasgtbql")
# Marks → the letters they stand for; + and ! only next to a word or within one.
_LETTER_MARKS = str.maketrans("@$€£¢|", "aselcl")
_PLUS_PATTERN = re.compile(r"(?<=\w)\+|\+(?=\w)")
_BANG_PATTERN = re.compile(r"(?<=\w)!(?=\w)|(?<!\S)!(?=\w)")
WORD = re.compile(r"[^\W_]+")

_LEET_LETTERS = str.maketrans("0123456789@$€£¢+!|", "olzeasgtbqaseectil")
_OTHER_LEET_LETTERS = str.maketrans("0123456789@$€£¢+!|", "oizeasbtbgaselctil")
_UPSIDE_DOWN = str.maketrans("ɐqɔpǝɟƃɥᴉɾʞlɯuodbɹsʇnʌʍxʎzɓıɹ", ALPHABET + "gir")
MORSE = dict(zip(ENGLISH["spelling"]["morse"].split(), ALPHABET + "0123456789", strict=True))
_NUMBER_BY_WORD = {word: number for number, words in enumerate(ENGLISH["places"], 1) for word in words.split()}
_PART_MARKER = patterns("parts", PLACE="|".join(word for word in _NUMBER_BY_WORD if len(word) > 1))["marker"]
_QUOTE_PATTERN = re.compile(r"\"([^\"\n]+)\"|“([^”\n]{1,500})”|«([^»\n]{1,500})»|`([^`\n]+)`|(?<!\w)'([^'\n]+)'(?!\w)")
_BASE64_PATTERN = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}|[A-Za-z0-9+/_-]{2,7}={1,2}")
_SHORT_BASE64_PATTERN = re.compile(r"[A-Za-z0-9+/_-]{4,}={0,2}|[A-Za-z0-9+/_-]{2,3}={1,2}")
_BASE64_LINES = re.compile(r"(?<=[A-Za-z0-9+/_=-]{16})\n(?=[A-Za-z0-9+/_-]{4})")
_BASE32_PATTERN = re.compile(r"[A-Za-z2-7]{16,}={0,6}")
_BASE85_PATTERN = re.compile(r"(?:<~)?[!-z{|}~]{15,}")
_HEX_PATTERN = re.compile(r"(?:0x|\\x)?[0-9a-fA-F]{2}(?:[\s:,-]{0,2}(?:0x|\\x)?[0-9a-fA-F]{2}){5,}")
_BITS_PATTERN = re.compile(r"[01]{7,8}(?:[\s,-]{0,2}[01]{7,8}){4,}")
_CODES_PATTERN = re.compile(r"(?<!\d)\d{1,3}(?:[\s,;./-]{1,3}\d{1,3}){5,}(?!\d)")
_ESCAPES = re.compile(r"(?:\\u\{?|U\+|\\U000)([0-9a-fA-F]{4,5})\}?|\\x([0-9a-fA-F]{2})|=([0-9A-F]{2})|\\([0-7]{3})")
MORSE_MARKS = str.maketrans("·•–−—_", "..----")
_MORSE_TEXT = re.compile(r"[.\-·•–−—_/| \n]+")
_MORSE_RUN = re.compile(r"[.\-·•–−—_/| \n]{14,}")
_MARKS_BETWEEN_LETTERS = re.compile(r"(?<=\b\w)[.\-_*·|/,~](?=\w\b)")
_GAPS_BETWEEN_LETTERS = re.compile(r"(?<=\b\w)[ .\-_*·|/,~](?=\w\b)")
_LEET_WORD = re.compile(r"[a-z][0-9@$€£¢+!|][a-z]|[0-9@$€£¢|!][a-z]|[a-z][0-9$@|]", re.IGNORECASE)
_MIN_USUAL_SHARE = 0.75  # least share of ASCII letters, digits and spaces in decoded text


def to_plain(text: str) -> str:
    """The text with ASCII letters in place of all other characters that look like them.

    Marks and characters that show nothing are dropped; case, punctuation and ASCII itself stay.
    """
    return text if text.isascii() else "".join(map(_to_plain_char, text))


def to_letters(text: str) -> str:
    """The text in plain lower-case letters, which also replace marks that stand for letters."""
    letters = to_plain(text.translate(_LETTER_MARKS)).lower()
    return _BANG_PATTERN.sub("l", _PLUS_PATTERN.sub("t", letters)) if "+" in letters or "!" in letters else letters


def fold_lookalikes(letters: str) -> str:
    """Plain lower-case letters, with one letter for all that look alike."""
    return letters.replace("rn", "m").replace("vv", "w").translate(_LOOKALIKE_DIGITS)


def words(text: str) -> list[str]:
    """The words of the text, with one letter for all that look alike."""
    return WORD.findall(fold_lookalikes(to_letters(text)))


def finder(words: Sequence[str], max_positions: int | None = None) -> Callable[[str], bool]:
    """A function that says whether consecutive words, joined, make up a form, however it is taken apart.

    Only the first `max_positions` places where the form occurs are tried.
    """
    text, edges = "".join(words), frozenset(itertools.accumulate(map(len, words), initial=0))

    def contains(form: str) -> bool:
        positions = itertools.islice(_find_positions(text, form), max_positions)
        return any(position in edges and position + len(form) in edges for position in positions)

    return contains


def _find_positions(text: str, form: str) -> Iterator[int]:
    position = text.find(form)
    while position >= 0:
        yield position
        position = text.find(form, position + 1)


def readings(
    text: str, decipher: Callable[[str], Iterable[tuple[str, str]]] = lambda text: ()
) -> Iterator[tuple[str, str]]:
    """(how, reading): the text itself, then its decodings and the decodings of these; at most 32 in all.

    `decipher` gives readings of a text in addition to `decode`.
    """
    texts = {text}
    current_level = [("", text)]
    yield "", text
    for _ in range(_MAX_NESTING):
        next_level: list[tuple[str, str]] = []
        for outer_encoding, reading in current_level:
            for encoding, decoding in (*decode(reading), *decipher(reading)):
                if decoding not in texts and len(decoding) <= 2 * len(text) + 64 and len(texts) < _MAX_READINGS:
                    texts.add(decoding)
                    next_level.append((f"{outer_encoding}, {encoding}".removeprefix(", "), decoding))
                    yield next_level[-1]
        current_level = next_level


def decode(text: str) -> Iterator[tuple[str, str]]:
    """(name of the encoding, decoded text) for each encoding that the text may be in."""
    for encoding, decoder in _DECODER_BY_ENCODING.items():
        for reading in decoder(text):
            if reading.strip() and reading != text:
                yield encoding, reading


@functools.lru_cache(maxsize=1 << 16)
def _to_plain_char(char: str) -> str:
    if char.isascii():
        return char
    if char.isspace():
        return " " if char not in "\u2028\u2029\x85" else "\n"
    if char in BLANK:
        return ""
    parts = unicodedata.normalize("NFKD", char)[:_MAX_EXPANSION]
    letters = "".join(part for part in parts if unicodedata.category(part) not in _HIDDEN_CATEGORIES)
    return letters if letters.isascii() else _read_lookalikes().get(char) or "".join(map(_find_lookalike, letters))


def _find_lookalike(char: str) -> str:
    if char.isascii():
        return char
    # A letter without a lookalike may have one in its other case.
    if lookalike := next(filter(None, map(_read_lookalikes().get, (char, char.upper(), char.lower()))), None):
        return lookalike
    name_match = _LATIN_NAME_PATTERN.search(unicodedata.name(char, ""))
    return name_match[1].lower() if name_match else char


@functools.cache
def _read_lookalikes() -> Mapping[str, str]:
    """Character → the ASCII text that Unicode says it looks like, letters preferred to digits and marks."""
    # The table takes a moment to load, and only texts beyond ASCII need it.
    from confusable_homoglyphs.confusables import confusables_data

    latin_by_char: dict[str, str] = {}
    for char, entries in confusables_data.items():
        if len(char) > 1 or char.isascii():
            continue
        # The package lists pairs of a character and its prototype: two characters with one prototype look alike.
        decompositions = (unicodedata.normalize("NFKD", entry["c"]) for entry in entries)
        prototypes = ["".join(char for char in text if unicodedata.category(char) != "Mn") for text in decompositions]
        siblings = [entry["c"] for text in prototypes for entry in confusables_data.get(text, ())]
        ascii_texts = [text for text in prototypes if text.isascii()] or [text for text in siblings if text.isascii()]
        if ascii_texts:
            lookalike = min(ascii_texts, key=lambda text: (not text.isalpha(), len(text), text.swapcase()))
            latin_by_char[char] = "m" if lookalike == "rn" else lookalike
    return latin_by_char


def _to_text(data: bytes) -> str:
    """The bytes as text. Raises ValueError if they are not text."""
    text = data.decode()
    # An ordinary word that happens to be decodable becomes letters of any script, and marks.
    usual_char_count = sum(char.isascii() and (char.isalnum() or char.isspace()) for char in to_plain(text))
    is_visible = all(char.isprintable() or char.isspace() for char in text)
    if len(text) < 2 or not is_visible or usual_char_count < _MIN_USUAL_SHARE * len(text):
        raise ValueError("no text")
    return text


def _make_decoder(pattern: re.Pattern[str], *decoders: Callable[[str], str]) -> Callable[[str], Iterator[str]]:
    """A decoding of each match of the pattern, by the first decoder that does not raise ValueError.

    It yields the decoded pieces alone, then the text with each of them in its place.
    """

    def decode(text: str) -> Iterator[str]:
        decoded_parts: list[str] = []

        def replace(match: re.Match[str]) -> str:
            for decoder in decoders:
                with contextlib.suppress(ValueError):
                    decoded_parts.append(decoder(match[0]))
                    return f" {decoded_parts[-1]} "
            return match[0]

        whole_text = pattern.sub(replace, text)
        if decoded_parts:
            yield " ".join(decoded_parts)
            yield whole_text

    return decode


def _read_base64(token: str) -> str:
    bare_token = token.strip("=").replace("-", "+").replace("_", "/")
    # A single character encodes no whole byte.
    bare_token = bare_token[: len(bare_token) - (len(bare_token) % 4 == 1)]
    return _to_text(base64.b64decode(bare_token + "=" * (-len(bare_token) % 4)))


_BASE64_DECODERS = (
    _read_base64,
    lambda token: _read_base64(token[::-1]),
    lambda token: _read_base64(codecs.encode(token, "rot13")),
)


def _decode_base64(text: str) -> Iterator[str]:
    text = _BASE64_LINES.sub("", text)
    if readings := list(_make_decoder(_BASE64_PATTERN, *_BASE64_DECODERS)(text)):
        # If some words are base64, shorter ones may be too.
        yield from (*readings, *_make_decoder(_SHORT_BASE64_PATTERN, *_BASE64_DECODERS)(text))


def _read_base32(token: str) -> str:
    bare_token = token.strip("=").upper()
    return _to_text(base64.b32decode(bare_token + "=" * (-len(bare_token) % 8)))


def _read_hex(token: str, is_backwards: bool = False) -> str:
    digits = re.sub(r"0x|\\x|[^0-9a-fA-F]", "", token)[:: -1 if is_backwards else 1]
    return _to_text(bytes.fromhex(digits[: len(digits) // 2 * 2]))


def _read_bits(token: str) -> str:
    bit_groups = re.findall(r"[01]+", token)
    if len(bit_groups) == 1:
        bit_groups = re.findall(r"[01]{8}", token)
    return _to_text(bytes(int(bits, 2) for bits in bit_groups if len(bits) <= 8))


def _read_codes(token: str) -> str:
    numbers = [int(number) for number in re.findall(r"\d+", token)]
    if all(1 <= number <= 26 for number in numbers):
        return "".join(ALPHABET[number - 1] for number in numbers)
    return _to_text(bytes(numbers))


def _undo_escapes(text: str) -> Iterator[str]:
    if "%" in text:
        yield urllib.parse.unquote(text)
    if "&" in text:
        yield html.unescape(text)
    if _ESCAPES.search(text):
        yield _ESCAPES.sub(_unescape, text)


def _unescape(match: re.Match[str]) -> str:
    code_point = int(match[4], 8) if match[4] else int(match[1] or match[2] or match[3], 16)
    return match[0] if 0xD800 <= code_point < 0xE000 else chr(code_point)


def _decode_morse(text: str) -> Iterator[str]:
    if _MORSE_RUN.search(text):
        yield _MORSE_TEXT.sub(_read_morse, text)


def _read_morse(match: re.Match[str]) -> str:
    morse_text = match[0].translate(MORSE_MARKS)
    return "".join(MORSE.get(token, " ") for token in re.findall(r"[.-]+|[/|\n]", morse_text))


def _read_invisible(text: str) -> Iterator[str]:
    """Text hidden in tag characters, which are invisible, and in variation selectors, each of which may be a byte."""
    if text.isascii():
        return
    yield "".join(chr(ord(char) - 0xE0000) for char in text if 0xE0020 <= ord(char) < 0xE007F)
    codes = [ord(char) - 0xFE00 for char in text if 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF]
    with contextlib.suppress(ValueError):
        yield _to_text(bytes(code if code < 16 else code - (0xE0100 - 0xFE00) + 16 for code in codes))


def _turn_upright(text: str) -> Iterator[str]:
    if any(char in text for char in "ɐǝʇɹɥʎʍɯɔɟƃʞ"):
        yield text[::-1].lower().translate(_UPSIDE_DOWN)


def _join_letters(text: str) -> Iterator[str]:
    if len(_GAPS_BETWEEN_LETTERS.findall(text)) >= 3:
        yield _MARKS_BETWEEN_LETTERS.sub("", text)
        yield _GAPS_BETWEEN_LETTERS.sub("", text)


def _undo_leet(text: str) -> Iterator[str]:
    if _LEET_WORD.search(text):
        words_and_spaces = re.split(r"(\s+)", text)
        yield "".join(word.translate(_LEET_LETTERS) if _LEET_WORD.search(word) else word for word in words_and_spaces)
        yield text.translate(_OTHER_LEET_LETTERS)


def _order_parts(text: str) -> Iterator[str]:
    """The pieces after numbered marks, in the order of the numbers; then the quoted pieces."""
    part_marks = list(_PART_MARKER.finditer(text))
    if len(part_marks) >= 2:
        part_ends = [mark.start() for mark in part_marks[1:]] + [len(text)]
        numbers = [(mark["number"] or mark["letter"] or mark["bare"]).lower() for mark in part_marks]
        numbered_parts = [
            (_NUMBER_BY_WORD.get(number) or int(number), text[mark.end() : part_end])
            for number, mark, part_end in zip(numbers, part_marks, part_ends, strict=True)
        ]
        yield " ".join(part for _, part in sorted(numbered_parts, key=lambda pair: pair[0]))
    if quotes := ["".join(quote_groups) for quote_groups in _QUOTE_PATTERN.findall(text)]:
        yield " ".join(quotes)


_DECODER_BY_ENCODING: dict[str, Callable[[str], Iterator[str]]] = {
    "base64": _decode_base64,
    "base32": _make_decoder(_BASE32_PATTERN, _read_base32),
    "base85": _make_decoder(
        _BASE85_PATTERN,
        lambda token: _to_text(base64.b85decode(token)),
        lambda token: _to_text(base64.a85decode(token.removeprefix("<~").removesuffix("~>"))),
    ),
    "hexadecimal": _make_decoder(_HEX_PATTERN, _read_hex, functools.partial(_read_hex, is_backwards=True)),
    "binary": _make_decoder(_BITS_PATTERN, _read_bits),
    "numbers for letters": _make_decoder(_CODES_PATTERN, _read_codes),
    "escapes": _undo_escapes,
    "Morse": _decode_morse,
    "characters that show nothing": _read_invisible,
    "upside down": _turn_upright,
    "letters apart": _join_letters,
    "digits for letters": _undo_leet,
    "parts": _order_parts,
}
