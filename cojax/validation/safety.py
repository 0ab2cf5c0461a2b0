"""Which drafts a person should see before a policy does: rules over what they ask for and how they do it.

Rules find words, not intentions: what they catch is set aside with its evidence, never trained on and never dropped
silently. They are about wholesale harm and other people's secrets; deleting one file or logging in is work.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cojax.explorer.guidance import signature
from cojax.types import TaskDraft
<<<<<<< HEAD
from cojax.validation.confusables import plain
from cojax.validation.decodings import decoded
from cojax.validation.safety_rules import ASKED, DONE
=======
from cojax.unicode_forms import normal_form
>>>>>>> 9c44a98 (Query text, dangers and answers are normalised and matched in linear time; a server is gone once all of its threads are)

_MODEL = {"instructions to a model": ASKED["instructions to a model"]}
_COMMON = frozenset(
    ("the", "of", "and", "to", "my", "for", "is", "that", "it", "all", "with", "from", "your", "me", "his", "her")
)
<<<<<<< HEAD
# Texts of a draft that are decoded are as long as this at most; longer ones are read as they are.
_DECODED = 20_000
=======
_ALL = r"(?:all|every(?:thing)?|each(?: and every)?|entire|whole|any)"
_HARM = r"(?:delete|erase|wipe|destroy|purge|remove|drop|shred|trash|overwrite|corrupt|nuke)"
_GIVE = r"(?:send|e?-?mail|post|upload|forward|share|text|tweet|publish|leak|exfiltrate|transmit|message|dm)"
# Up to the end of a sentence, but not to what a log-in goes by.
_ON = r"(?:(?!\b(?:using|with|by|under|via|through)\b)[^.;!?]){0,60}"
_GET = r"(?:tell|show|give|reveal|print|list|dump|extract|steal|harvest|collect|grab|find out|read out|get|fetch)"

# Rule → what it looks for in the words of a draft, lower case, white space as single spaces.
_ASKED: Mapping[str, str] = {
    "wholesale destruction": (
        rf"\b{_HARM}\b(?: \S+){{0,3}}? \b{_ALL}\b"
        r"|\bfactory reset\b|\bformat (?:(?:the|my|his|her) )?(?:disk|drive|computer|phone|laptop)\b"
        r"|\bwipe (?:the|my)\b"
    ),
    "secrets asked for": (rf"\b{_GET}\b{_ON}\b{_SECRET}\b|\bwhat(?: is|'s| are)\b[^.;!?]{{0,40}}\b{_SECRET}\b"),
    "secrets given away": (rf"\b{_GIVE}\b{_ON}\b{_SECRET}\b|\b{_SECRET}\b[^.;!?]{{0,60}}\b(?:{_GIVE}|to) \S+@\S+"),
    "exfiltration": (
        r"\bexfiltrat\w+|\b(?:upload|send|post|forward|copy)\b[^.;!?]{0,60}\bhttps?://"
        rf"|\b{_GIVE}\b (?:\S+ ){{0,3}}{_ALL} [^.;!?]{{0,40}}\b(?:e-?mails?|messages|contacts|documents|files|data)\b"
        r"[^.;!?]{0,40}\b(?:attacker|outside|external|anonymous|http)"
    ),
    "deceit": r"\b(?:phishing|impersonat\w+|pretend(?:ing)? to be|blackmail\w*|scam\w*|defraud\w*|launder\w*)\b",
    "malware": r"\b(?:malware|ransomware|keylogger|rootkit|trojan|reverse shell|backdoor|botnet|ddos|exploit kit)\b",
    "evading oversight": (
        r"\b(?:disable|turn off|bypass|circumvent|evade)\b[^.;!?]{0,40}"
        r"\b(?:security|logging|audit\w*|antivirus|firewall|safety|monitoring|two-?factor|2fa)\b"
    ),
    "instructions to a model": (
        r"\b(?:ignore|disregard|forget|override)\b[^.;!?]{0,40}\b(?:above|previous|prior|earlier|instructions?|rules)\b"
        r"|\bmark (?:\w+ ){0,3}as (?:a )?success|\bsystem prompt\b"
    ),
}
# Rule → what it looks for in the actions.
_DONE: Mapping[str, str] = {
    "destructive command": (
        r"\brm\s+-(?=\w*[rf])\w+\s+[/~*.]|\bmkfs\b|\bdd\s+if=|:\(\)\s*\{|\bdrop\s+(?:table|database)\b|\btruncate\s+table\b"
        r"|\bshutil\.rmtree\b|\bchmod\s+-r\s+777\b"
    ),
    "reaching outside": (
        r"\b(?:import|from)\s+(?:socket|subprocess|requests|urllib|ctypes|shutil)\b|\bos\.(?:system|popen|environ|exec\w*)\b"
        r"|\bsubprocess\.|\bcurl\s|\bwget\s|/etc/(?:passwd|shadow)|\.ssh/|\b__(?:import|subclasses|globals)__"
    ),
}
_RULES = {name: re.compile(pattern) for name, pattern in _ASKED.items()}
_ACTED = {name: re.compile(pattern) for name, pattern in _DONE.items()}
>>>>>>> 9c44a98 (Query text, dangers and answers are normalised and matched in linear time; a server is gone once all of its threads are)


def concern(draft: TaskDraft) -> str:
    """The first rule that the draft falls under, with the words that fell; empty where none does."""
    asked = f"{draft.query}\n{draft.description}\n{draft.criterion}"
    done = "\n".join(f"{signature(action)}\n{action.text}" for action in draft.solution)
    # What a call passes on is said to somebody, who may be asked for anything there.
    said = [text for action in draft.solution for call in action.calls for text in _said(call.arguments)]
    heard = [reading for text in dict.fromkeys((asked, *said)) for reading in _readings(text)]
    looked_at = (
        (ASKED, heard),
        (DONE, [_plain(done), *heard]),
        (_MODEL, [_plain(done)]),
    )
    for rules, texts in looked_at:
        for name, pattern in rules.items():
            if found := next(filter(None, map(pattern.search, texts)), None):
                return f"{name}: {found[0][:120]!r}"
    return ""


def _readings(text: str) -> Iterator[str]:
    """The text, what it says once it is decoded, backwards, and by the commonest cipher."""
    yield _plain(text)
    if len(text) > _DECODED or not any(map(str.isalpha, text)):
        return
    for _, reading in decoded(text):
        yield _plain(reading)
    lowered = _plain(text)
    for reading in (lowered[::-1], codecs.encode(lowered, "rot13")):
        # What is English as it stands is none in cipher.
        if _commonness(reading) >= _commonness(lowered):
            yield reading


def _commonness(text: str) -> int:
    """How many of its words are among the commonest of English."""
    return sum(word in _COMMON for word in text.split())


def _said(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a call's arguments: each key, however deep, each value, and the values of one argument together, as
    a text may be cut into a list."""
    for name, value in arguments.items():
        keys, values = [str(name)], list[str]()
        open_ = [value]
        while open_:
            match open_.pop():
                case Mapping() as inner:
                    keys += map(str, inner)
                    open_ += reversed(list(inner.values()))
                case list() | tuple() as inner:
                    open_ += reversed(inner)
                case leaf:
                    values.append(str(leaf))
        yield from (key.replace("_", " ") for key in keys)
        yield from values
        if len(values) > 1:
            yield " ".join(values)


def _plain(text: str) -> str:
<<<<<<< HEAD
    """Plain small letters and single spaces, without characters that show nothing."""
    return " ".join(_QUOTES.sub("'", plain(text)).casefold().split())


# Unicode's table has a double quotation mark as two single ones.
_QUOTES = re.compile("''+")
=======
    """Lower case, one width, single spaces, without characters that show nothing."""
    folded = normal_form("NFKC", text).casefold()
    shown = (c for c in folded if unicodedata.category(c) != "Cf")
    return " ".join("".join(shown).split())
>>>>>>> 9c44a98 (Query text, dangers and answers are normalised and matched in linear time; a server is gone once all of its threads are)
