"""Reads whether a query asks for an answer, by English words: plainly, perhaps, or not at all.

What the solution does besides accounts for some words: a file may be called report, and a tool may say, show or list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from cojax.validation.mention import Mentions, fold, stem, words

_AUXILIARY = r"(?:is|are|was|were|does|do|did|has|have|had|will|would|can|could|should)"
_WHAT = r"(?:what|which|who|whom|whose|when|where|why|how|whether)"
_ITS = r"(?:the|its|his|her|their|this|these|those|all|every|each|any|\w+'s)"
# A request in the form of a question.
_REQUEST = re.compile(
    r"(?:(?:can|could|would|will|may|might|shall|won't|can't|couldn't|wouldn't)\b|(?:do|are|have) (?:you|we|i)\b"
    r"|is (?:it|that|this|there an?y?)\b.* (?:possible|ok|okay|alright|fine|chance|way)\b"
    r"|(?:what|how) about \w+ing\b|what if\b|why (?:not|don't)\b)"
)
_FIRST = re.compile(
    r"(?:(?:so|and|but|also|then|now|next|please|finally|first|afterwards|hey|hi|hello|ok|okay|too)\b[ ,]*)+"
)
# What begins a question, and what begins a yes-or-no question where a question mark follows.
_QUESTION = re.compile(
    rf"(?:(?:on|in|at|to|for|from|by|with|of|under|about) )?(?:(?:what|who|when|where|why|how)(?:'s| {_AUXILIARY})\b"
    rf"|(?:what|which|whose|how)(?: [\w'-]+){{1,4}}? {_AUXILIARY}\b|how (?:many|much)\b|what about\b)"
)
_YES_NO = re.compile(r"(?:is|are|was|were|does|do|did|has|have|had)(?:n't)? \w")
# What is said of what a query has said before is no question.
_OF_WHAT_IS_SAID = re.compile(r"\b(?:should|must|ought|goes|go|belongs?|becomes?|needs? to|has to|into)\b")
_IF_SO = re.compile(r"(?:if|then|in that case|otherwise|unless)\b")
_THERE = re.compile(r"\b(?:there|then|it|that|this|same|so)\b")
_PLAINLY = re.compile(
    rf"\b(?:(?:(?:tell|inform|remind|show|read|list|name) (?:me|us)|let (?:me|us) know"
    r"|(?:reply|answer|report) to (?:me|us)"
    rf"|give me (?:back )?{_ITS}|(?:want|need|like|love|wish|have) to (?:know|hear|learn|be told)"
    r"|wonder(?:ing)?|curious|(?:your|final) answer|as (?:the|an|your|my) answer|answer (?:with|should|is|must))\b"
    r"|answer ?:)"
    # "Let me know when it is done" asks for no answer.
    r"(?! (?:that|when|once|as soon as|after|if) (?:it|this|that|you|all|there|they|done|finished|any\w*|every\w*)\b)"
)
# Verbs that ask at the beginning of a clause, where they are none of what the solution does.
_ORDER = re.compile(
    r"(tell|say|answer|report|state|return|output|print|display|name|list|show|count)"
    rf"(?P<back> back)? (?:{_ITS}|(?:(?:on|in|at|to|for|from) )?{_WHAT}|with)\b"
)
_SENDS = "send mail message text email notify sms post share reply comment write"
_SENDING = frozenset(map(stem, _SENDS.split()))
_LETTING = re.compile(r"\b(?:let|have|make)\b")
# Words that may ask, where they are none of what the solution does.
_PERHAPS = re.compile(
    r"\b(?:tell|inform|answer|know|wonder|curious|let me|bring me|say|reply|respond|show|find|look|check|read|list"
    r"|count|compute|calculate|determine|identify|retrieve|fetch|provide|print|display|output|return|report|state|mention"
    r"|describe|explain|specify|confirm|see|learn|remind|repeat|quote|recall|summari[sz]e|total|number|sum|average"
    r"|amount)\b"
)
# What a message is to say asks for nothing.
_QUOTED = re.compile(r"(?<!\w)[\"“'‘](?=[^\"“”\n]{1,200}\?)[^\"“”\n]{1,200}[\"”'’](?!\w)")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_CLAUSE = re.compile(r"[,;:()\"“”]|\s[-–—]\s|\b(?:and|then|but)\b")


def asks(query: str, done: Collection[str], looks: bool = False) -> str:
    """The words by which the query plainly asks for an answer; "" if it does not.

    `done` are the stems of the words that what the solution does accounts for. If it also `looks` something up, a
    question that the next sentence refers to is no request for an answer.
    """
    sentences = [fold(sentence) for sentence in _SENTENCE.split(_QUOTED.sub(" ", query)) if sentence.strip()]
    clauses = [[*_clauses(sentence)] for sentence in sentences]
    rest = " ".join(clause for found in clauses for clause in found if not _ORDER.match(clause))
    # To tell may be to send, where no other words of the query ask to send; and something may be let say something.
    sends = not _SENDING.isdisjoint(done) and _SENDING.isdisjoint(words(rest))
    does = {"tell": sends, "say": bool(_LETTING.search(rest))}
    for place, sentence in enumerate(sentences):
        if found := _PLAINLY.search(sentence):
            return found[0]
        after = "".join(sentences[place + 1 : place + 2])
        if _IF_SO.match(after) or (looks and _THERE.search(after)):
            continue
        asked = sentence.endswith("?")
        for number, clause in enumerate(clauses[place]):
            if _REQUEST.match(clause):
                continue
            found = _ORDER.match(clause)
            if found and (found["back"] or not does.get(found[1], stem(found[1]) in done)):
                return found[0]
            if (found := _QUESTION.match(clause)) and (asked or not (number or _OF_WHAT_IS_SAID.search(sentence))):
                return found[0]
            if asked and _YES_NO.match(clause):
                return clause
    return ""


def may_ask(query: str, done: Collection[str], about: Collection[str]) -> bool:
    """Whether the query may ask for an answer: plainly, by a question, a word that perhaps asks, or one of `about`."""
    if asks(query, done) or not Mentions(query).words.isdisjoint(about):
        return True
    sentences = [[*_clauses(fold(sentence))] for sentence in _SENTENCE.split(query) if sentence.strip().endswith("?")]
    if any(clauses and not any(map(_REQUEST.match, clauses)) for clauses in sentences):
        return True
    return any(stem(word) not in done for word in _PERHAPS.findall(fold(query)))


def _clauses(sentence: str) -> Iterator[str]:
    for clause in _CLAUSE.split(sentence):
        if clause := _FIRST.sub("", clause.strip(), count=1).strip(" .?!"):
            yield clause
