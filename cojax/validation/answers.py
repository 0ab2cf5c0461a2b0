"""Checks the answer of a solution: an action must have shown it, the query must ask for it and not give it away.

English words tell whether a query asks for an answer: plainly, perhaps, or not at all. What else the solution does
explains some of these words: a file may be called report, and a tool may say, show or list.
"""

import base64
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cojax.drafts import DraftRefused
from cojax.explorer.answers import answer_objections, answer_values, states_value, written_answers
from cojax.types import Triplet, normalise
from cojax.validation.consistency import Documents, action_words, documentation_words
from cojax.validation.decodings import ALPHABET, CIPHERS, MORSE, MORSE_MARKS, WORD, finder, plain_letters, readings
from cojax.validation.decodings import words as words_alike
from cojax.validation.mention import ENGLISH, NUMBERS_IN_WORDS, Mentions, fold, patterns, sentences, stem, words

# Answers to a yes-or-no question: the query may contain them.
_TRUTHS = frozenset({"true", "false", "yes", "no"})
_SHORT = 60  # characters of an answer in a line of evidence

_ASKING = patterns("asking")
_SENDING = frozenset(map(stem, ENGLISH["sending"].split()))
_LETTING = re.compile(r"\b(?:let|have|make)\b")
_SENTENCE_ENDS = ".!?;"

# Fewest letters of an answer that is searched for taken apart or encoded, and backwards or in a cipher.
_FEWEST, _FEWEST_TURNED = 3, 4
# Most letters of an answer that are searched for, and most places where they are compared with the edges of words.
_MOST, _PLACES = 200, 100
_SPELLING, _OTHERWISE = ENGLISH["spelling"]["letters"].split(), ENGLISH["spelling"]["otherwise"]
# Words between letters that are spelled one by one.
_BETWEEN = re.compile(r"\b(?:and|then|followed|by|next|letters?|dash|dot|space)\b|(?<=\w)'s\b")
_HEX = re.compile(r"\b0x|\\x")
_NUMBER = re.compile(r"[\d\W_]+")


def check_answer(
    query: str, steps: Sequence[Triplet], end: Mapping[str, Any], ending: str, document: Mapping[str, Any]
) -> str:
    """The evidence for the answer that these steps give; "" if they give none. Raises DraftRefused for a faulty one.

    `end` is the last state, which holds the answer under "answer" if the environment keeps one. `ending` is the tool
    that ends an episode; the first parameter of its `document` carries the answer. An answer that is not a literal in
    the code counts as worked out. The query must not contain it either, unless it is a number, perhaps by chance.
    """
    parameter = next(iter(document.get("parameters", {}).get("properties", {})), None)
    if against := answer_objections(steps, ending, parameter):
        raise DraftRefused(against[0])
    literals = [value for value in written_answers(steps, ending, parameter) if value is not None]
    results = [value for value in answer_values(end.get("answer")) if value not in (None, "") and value not in literals]
    for value in (*literals, *(value for value in results if isinstance(value, str) and not _is_number(value))):
        if (answer := str(value).strip()).lower() in _TRUTHS:
            continue
        if states_value(query, value):
            raise DraftRefused(f"the query holds the answer {str(value)!r:.{_SHORT}}")
        if how := hint(query, answer):
            raise DraftRefused(f"the query gives the answer {str(value)!r:.{_SHORT}} away: {how}")
    if literals:
        return f"the answer {str(literals[0])!r:.{_SHORT}} is shown by an action, and not in the query"
    if results:
        text = f"{str(results[0])!r:.{_SHORT}}"
        return f"the answer {text} is worked out in code: whether it was shown cannot be told"
    return ""


def takes_answer(end: Mapping[str, Any], ending: str, document: Mapping[str, Any]) -> bool:
    """Whether an episode with this last state can end with an answer."""
    return bool(document.get("parameters", {}).get("properties")) if ending else "answer" in end


def asking_flaw(
    query: str, steps: Sequence[Triplet], changes: Collection[int], bare: str | None, answer: bool, documents: Documents
) -> str:
    """Why query and answer do not fit: one is given that was not asked for, or the reverse; "" if they fit.

    `changes` are the positions of the steps that change the world, `answer` says whether the solution gives one, and
    `bare` is the environment's wording of the steps with a bare ending, None if it has none.
    """
    if answer and bare is not None and normalise(bare) == normalise(query):
        return "the solution gives an answer, and the query asks for none: the environment words it so without one"
    calls = [(place, call) for place, step in enumerate(steps[:-1]) for call in step.action.calls]
    done = {word for place in changes for word in words(action_words(documents, steps[place].action))}
    done |= {word for _, call in calls for word in words(str([*call.arguments.values()]))} | {*words(bare or "")}
    if not answer:
        request = asks(query, done, len(changes) < len(steps) - 1)
        return f"the query asks for an answer, {request!r:.{_SHORT}}, and the solution gives none" if request else ""
    lookup_texts = (documentation_words(documents, call.name) for place, call in calls if place not in changes)
    about = {word for text in lookup_texts for word in words(text)} - done
    return "" if may_ask(query, done, about) else "the solution gives an answer, and the query asks for none"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def asks(query: str, done: Collection[str], looks: bool = False) -> str:
    """The words by which the query plainly asks for an answer; "" if it does not.

    `done` are the stems of the words that the solution's actions explain. If the solution also `looks` something up, a
    question that the next sentence refers to does not ask for an answer.
    """
    texts = sentences(_ASKING["quoted"].sub(" ", query), _SENTENCE_ENDS)
    clauses = [[*_clauses(sentence)] for sentence in texts]
    other_text = " ".join(clause for own in clauses for clause in own if not _ASKING["order"].match(clause))
    # "Tell" may mean "send" if no other word of the query asks to send, and "let it say" may set a text.
    sends = not _SENDING.isdisjoint(done) and _SENDING.isdisjoint(words(other_text))
    explained_verbs = {"tell": sends, "say": bool(_LETTING.search(other_text))}
    for sentence, next_sentence, sentence_clauses in zip(texts, (*texts[1:], ""), clauses, strict=True):
        if match := _ASKING["plainly"].search(sentence):
            return match[0]
        if _ASKING["if_so"].match(next_sentence) or (looks and _ASKING["there"].search(next_sentence)):
            continue
        is_question = sentence.endswith("?")
        for number, clause in enumerate(sentence_clauses):
            if _ASKING["request"].match(clause):
                continue
            match = _ASKING["order"].match(clause)
            if match and (match["back"] or not explained_verbs.get(match[1], stem(match[1]) in done)):
                return match[0]
            if (match := _ASKING["question"].match(clause)) and (
                is_question or not (number or _ASKING["of_what_is_said"].search(sentence))
            ):
                return match[0]
            if is_question and _ASKING["yes_no"].match(clause):
                return clause
    return ""


def may_ask(query: str, done: Collection[str], about: Collection[str]) -> bool:
    """Whether the query may ask for an answer: plainly, by a question, by a word that may ask, or by one of `about`."""
    if asks(query, done) or not Mentions(query).words.isdisjoint(about):
        return True
    questions = ([*_clauses(sentence)] for sentence in sentences(query, _SENTENCE_ENDS) if sentence.endswith("?"))
    if any(clauses and not any(map(_ASKING["request"].match, clauses)) for clauses in questions):
        return True
    return any(stem(word) not in done for word in _ASKING["perhaps"].findall(fold(query)))


def _clauses(sentence: str) -> Iterator[str]:
    for clause in _ASKING["clause"].split(sentence):
        if clause := _ASKING["first"].sub("", clause.strip(), count=1).strip(" .?!"):
            yield clause


def hint(query: str, answer: str) -> str:
    """How the query gives the answer away, in words; "" if no reading of it does. A number is searched for in words.

    The query is read as it stands and in the readings of decodings.py. Each reading is searched for the forms of the
    answer as whole words, which may be taken apart. It is also searched for encodings of the answer, since those of a
    single word are too short to be decoded.
    """
    if _NUMBER.fullmatch(answer):
        word = NUMBERS_IN_WORDS.get(int(answer) if len(answer) < 3 and answer.isdecimal() else 0)
        return "in words" if word in WORD.findall(fold(query)) else ""
    if len("".join(words_alike(answer[:_MOST]))) < _FEWEST:
        return ""
    find_form = _form_finder(answer[:_MOST])
    hints = (", ".join(filter(None, (how, form))) for how, reading in readings(query) if (form := find_form(reading)))
    return next(hints, "")


def _form_finder(answer: str) -> Callable[[str], str]:
    """A function that names the form in which a text contains the answer; "" for none.

    The forms are in plain letters, with one letter for all that look alike.
    """
    answer_words = words_alike(answer)
    letters, stems = "".join(answer_words), "".join(map(stem, answer_words))
    plain = "".join(WORD.findall(plain_letters(answer)))
    cipher_forms = dict(_encipher(plain)) if len(plain) >= _FEWEST_TURNED else {}
    sorted_letters = sorted(plain) if len(plain) > _FEWEST_TURNED else []
    consonants = re.sub("[aeiou]", "", plain)
    consonants = consonants if _FEWEST <= len(consonants) < len(plain) else ""
    encodings = dict(_encode(answer))
    morse = " ".join(MORSE.get(letter, "") for letter in plain)

    def name_form(text: str) -> str:
        folded_text = fold(text)
        if morse in " ".join(folded_text.translate(MORSE_MARKS).split()) and morse.strip():
            return "Morse"
        spoken = [_OTHERWISE.get(word, word) for word in WORD.findall(_HEX.sub("", folded_text))]
        if form := _find_form(spoken, encodings):
            return encodings[form]
        text_words, reversed_letters = words_alike(text), [letters[::-1]] if len(letters) >= _FEWEST_TURNED else []
        if _find_form(text_words, [letters, *reversed_letters]):
            return "taken apart, backwards or in letters that look alike"
        content_words = words_alike(_BETWEEN.sub(" ", folded_text))
        if _find_form([*map(stem, text_words)], [stems]) or _find_form(content_words, [letters]):
            return "in the plural, or letter by letter"
        plain_words = WORD.findall(plain_letters(text))
        if any(sorted_letters == sorted(word) for word in plain_words) or consonants in plain_words:
            return "its letters mixed, or without vowels"
        return cipher_forms.get(_find_form(plain_words, cipher_forms), "")

    return name_form


def _find_form(text: Sequence[str], forms: Iterable[str]) -> str:
    """The first of the forms that these words contain; "" if they contain none."""
    holds = finder(text, _PLACES)
    return next((form for form in forms if len(form) >= _FEWEST and holds(form)), "")


def _encipher(plain: str) -> Iterator[tuple[str, str]]:
    """(form, how) for every shift of the alphabet, and for the alphabet backwards, each also read backwards."""
    for how, alphabet in CIPHERS.items():
        form = plain.translate(str.maketrans(ALPHABET, alphabet))
        if form != plain:
            yield form, how
            yield form[::-1], f"{how}, backwards"


def _encode(answer: str) -> Iterator[tuple[str, str]]:
    """(form, how) for usual encodings of the answer, reduced to lower-case letters and digits."""
    lower_text = fold(answer)
    for text in dict.fromkeys((answer, lower_text, answer.upper(), answer.title(), lower_text[::-1])):
        data = text.encode("utf-8", "replace")
        forms = {
            "base64": base64.b64encode(data).decode(),
            "base32": base64.b32encode(data).decode(),
            "hexadecimal": data.hex(),
            "binary": "".join(f"{byte:08b}" for byte in data),
            "character codes": "".join(map(str, data)),
        }
        yield from (("".join(WORD.findall(form.casefold())), how) for how, form in forms.items())
    letters = [ALPHABET.index(letter) for letter in lower_text if letter in ALPHABET]
    if len(letters) >= _FEWEST_TURNED and len(letters) == len("".join(WORD.findall(lower_text))):
        yield "".join(str(place + 1) for place in letters), "numbers for letters"
        yield "".join(_SPELLING[place] for place in letters), "words for letters"
