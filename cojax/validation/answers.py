"""Checks the answer of a solution: an action must have shown it, the query must ask for it and not give it away.

English words tell whether a query asks for an answer: plainly, perhaps, or not at all. What else the solution does
explains some of these words: a file may be called report, and a tool may say, show or list.
"""

import base64
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cojax.drafts import DraftRefused
from cojax.explorer.answers import find_answer_objections, list_values, list_written_answers, states_value
from cojax.types import Triplet, normalise
from cojax.validation.consistency import Documents, list_tool_words, list_words
from cojax.validation.decodings import ALPHABET, CIPHERS, MORSE, MORSE_MARKS, WORD, finder, readings, to_letters
from cojax.validation.decodings import words as words_alike
from cojax.validation.mention import ENGLISH, WORD_BY_NUMBER, Mentions, fold_text, patterns, sentences, stem_word, words

# Answers to a yes-or-no question: the query may contain them.
_TRUTH_WORDS = frozenset({"true", "false", "yes", "no"})
_WIDTH = 60  # characters of an answer in a line of evidence

_PATTERNS = patterns("asking")
_SENDING_STEMS = frozenset(map(stem_word, ENGLISH["sending"].split()))
_LETTING_PATTERN = re.compile(r"\b(?:let|have|make)\b")
_SENTENCE_ENDS = ".!?;"

# Minimum letters of an answer to search for it split up or encoded, and to search for it reversed or enciphered.
_MIN_LETTERS, _MIN_REVERSED = 3, 4
# At most this many letters of an answer are searched for, and compared with the edges of words in this many places.
_MAX_LETTERS, _MAX_PLACES = 200, 100
_LETTER_NAMES, _OTHER_SPELLINGS = ENGLISH["spelling"]["letters"].split(), ENGLISH["spelling"]["otherwise"]
# Words between letters that are spelled one by one.
_JOINING_PATTERN = re.compile(r"\b(?:and|then|followed|by|next|letters?|dash|dot|space)\b|(?<=\w)'s\b")
_HEX_PREFIX = re.compile(r"\b0x|\\x")
_DIGITS_ONLY_PATTERN = re.compile(r"[\d\W_]+")


def check_answer(
    query: str, steps: Sequence[Triplet], end_state: Mapping[str, Any], ending: str, document: Mapping[str, Any]
) -> str:
    """The evidence for the answer that these steps give; "" if they give none. Raises DraftRefused for a faulty one.

    `end_state` is the last state, which holds the answer under "answer" if the environment keeps one. `ending` is the
    tool that ends an episode; the first parameter of its `document` carries the answer. An answer that is not a literal
    in the code counts as worked out. The query must not contain it either, unless it is a number, perhaps by chance.
    """
    parameter = next(iter(document.get("parameters", {}).get("properties", {})), None)
    if objections := find_answer_objections(steps, ending, parameter):
        raise DraftRefused(objections[0])
    literals = [value for value in list_written_answers(steps, ending, parameter) if value is not None]
    results = [
        value for value in list_values(end_state.get("answer")) if value not in (None, "") and value not in literals
    ]
    for value in (*literals, *(value for value in results if isinstance(value, str) and not _is_number(value))):
        if (answer := str(value).strip()).lower() in _TRUTH_WORDS:
            continue
        if states_value(query, value):
            raise DraftRefused(f"the query holds the answer {str(value)!r:.{_WIDTH}}")
        if disclosure := find_hint(query, answer):
            raise DraftRefused(f"the query gives the answer {str(value)!r:.{_WIDTH}} away: {disclosure}")
    if literals:
        return f"the answer {str(literals[0])!r:.{_WIDTH}} is shown by an action, and not in the query"
    if results:
        shown_answer = f"{str(results[0])!r:.{_WIDTH}}"
        return f"the answer {shown_answer} is worked out in code: whether it was shown cannot be told"
    return ""


def takes_answer(end_state: Mapping[str, Any], ending: str, document: Mapping[str, Any]) -> bool:
    """Whether an episode with this last state can end with an answer."""
    return bool(document.get("parameters", {}).get("properties")) if ending else "answer" in end_state


def asking_flaw(
    query: str, steps: Sequence[Triplet], changes: Collection[int], bare: str | None, has_answer: bool, docs: Documents
) -> str:
    """Why query and answer do not fit: one is given that was not asked for, or the reverse; "" if they fit.

    `changes` are the positions of the steps that change the world. `has_answer` says whether the solution gives one.
    `bare` is the environment's wording of the steps with a bare ending, None if it has none.
    """
    if has_answer and bare is not None and normalise(bare) == normalise(query):
        return "the solution gives an answer, and the query asks for none: the environment words it so without one"
    calls = [(step_index, call) for step_index, step in enumerate(steps[:-1]) for call in step.action.calls]
    own_stems = {word for step_index in changes for word in words(list_words(docs, steps[step_index].action))}
    own_stems |= {word for _, call in calls for word in words(str([*call.arguments.values()]))} | {*words(bare or "")}
    if not has_answer:
        request = find_asking_words(query, own_stems, len(changes) < len(steps) - 1)
        return f"the query asks for an answer, {request!r:.{_WIDTH}}, and the solution gives none" if request else ""
    lookup_texts = (list_tool_words(docs, call.name) for step_index, call in calls if step_index not in changes)
    topic_stems = {word for text in lookup_texts for word in words(text)} - own_stems
    return "" if may_ask(query, own_stems, topic_stems) else "the solution gives an answer, and the query asks for none"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def find_asking_words(query: str, explained_stems: Collection[str], looks_up: bool = False) -> str:
    """The words by which the query plainly asks for an answer; "" if it does not.

    `explained_stems` are those of the words that the solution's actions explain. If it also `looks_up` something, a
    question that the next sentence refers to does not ask for an answer.
    """
    all_sentences = sentences(_PATTERNS["quoted"].sub(" ", query), _SENTENCE_ENDS)
    clauses = [[*_clauses_of(sentence)] for sentence in all_sentences]
    other_text = " ".join(clause for group in clauses for clause in group if not _PATTERNS["order"].match(clause))
    # "Tell" may mean "send" if no other word of the query asks to send, and "let it say" may set a text.
    means_send = not _SENDING_STEMS.isdisjoint(explained_stems) and _SENDING_STEMS.isdisjoint(words(other_text))
    explained_verbs = {"tell": means_send, "say": bool(_LETTING_PATTERN.search(other_text))}
    for sentence, next_sentence, sentence_clauses in zip(all_sentences, (*all_sentences[1:], ""), clauses, strict=True):
        if match := _PATTERNS["plainly"].search(sentence):
            return match[0]
        if _PATTERNS["if_so"].match(next_sentence) or (looks_up and _PATTERNS["there"].search(next_sentence)):
            continue
        is_question = sentence.endswith("?")
        for clause_index, clause in enumerate(sentence_clauses):
            if _PATTERNS["request"].match(clause):
                continue
            match = _PATTERNS["order"].match(clause)
            if match and (match["back"] or not explained_verbs.get(match[1], stem_word(match[1]) in explained_stems)):
                return match[0]
            if (match := _PATTERNS["question"].match(clause)) and (
                is_question or not (clause_index or _PATTERNS["of_what_is_said"].search(sentence))
            ):
                return match[0]
            if is_question and _PATTERNS["yes_no"].match(clause):
                return clause
    return ""


def may_ask(query: str, explained_stems: Collection[str], lookup_stems: Collection[str]) -> bool:
    """Whether the query may ask for an answer: plainly, by a question, or by a word that may ask or names a look-up."""
    if find_asking_words(query, explained_stems) or not Mentions(query).words.isdisjoint(lookup_stems):
        return True
    questions = ([*_clauses_of(sentence)] for sentence in sentences(query, _SENTENCE_ENDS) if sentence.endswith("?"))
    if any(clauses and not any(map(_PATTERNS["request"].match, clauses)) for clauses in questions):
        return True
    return any(stem_word(word) not in explained_stems for word in _PATTERNS["perhaps"].findall(fold_text(query)))


def _clauses_of(sentence: str) -> Iterator[str]:
    for clause in _PATTERNS["clause"].split(sentence):
        if clause := _PATTERNS["first"].sub("", clause.strip(), count=1).strip(" .?!"):
            yield clause


def find_hint(query: str, answer: str) -> str:
    """How the query gives the answer away, in words; "" if no reading of it does. A number is searched for in words.

    The query is read as it stands and in the readings of decodings.py. Each reading is searched for the forms of the
    answer as whole words, which may be taken apart. It is also searched for encodings of the answer, since those of a
    single word are too short to be decoded.
    """
    if _DIGITS_ONLY_PATTERN.fullmatch(answer):
        number_word = WORD_BY_NUMBER.get(int(answer) if len(answer) < 3 and answer.isdecimal() else 0)
        return "in words" if number_word in WORD.findall(fold_text(query)) else ""
    if len("".join(words_alike(answer[:_MAX_LETTERS]))) < _MIN_LETTERS:
        return ""
    find_form = _make_form_finder(answer[:_MAX_LETTERS])
    hints = (", ".join(filter(None, (how, form))) for how, reading in readings(query) if (form := find_form(reading)))
    return next(hints, "")


def _make_form_finder(answer: str) -> Callable[[str], str]:
    """A function that names the form in which a text contains the answer; "" for none.

    The forms are in plain letters, with one letter for all that look alike.
    """
    answer_words = words_alike(answer)
    letters, stem_letters = "".join(answer_words), "".join(map(stem_word, answer_words))
    plain_answer = "".join(WORD.findall(to_letters(answer)))
    cipher_by_form = dict(_encipher(plain_answer)) if len(plain_answer) >= _MIN_REVERSED else {}
    sorted_letters = sorted(plain_answer) if len(plain_answer) > _MIN_REVERSED else []
    consonants = re.sub("[aeiou]", "", plain_answer)
    consonants = consonants if _MIN_LETTERS <= len(consonants) < len(plain_answer) else ""
    encoding_by_form = dict(_encode(answer))
    morse_answer = " ".join(MORSE.get(letter, "") for letter in plain_answer)

    def name_form(text: str) -> str:
        folded_text = fold_text(text)
        if morse_answer in " ".join(folded_text.translate(MORSE_MARKS).split()) and morse_answer.strip():
            return "Morse"
        spelling_words = [_OTHER_SPELLINGS.get(word, word) for word in WORD.findall(_HEX_PREFIX.sub("", folded_text))]
        if form := _find_form(spelling_words, encoding_by_form):
            return encoding_by_form[form]
        text_words, reversed_letters = words_alike(text), [letters[::-1]] if len(letters) >= _MIN_REVERSED else []
        if _find_form(text_words, [letters, *reversed_letters]):
            return "taken apart, backwards or in letters that look alike"
        content_words = words_alike(_JOINING_PATTERN.sub(" ", folded_text))
        if _find_form([*map(stem_word, text_words)], [stem_letters]) or _find_form(content_words, [letters]):
            return "in the plural, or letter by letter"
        plain_words = WORD.findall(to_letters(text))
        if any(sorted_letters == sorted(word) for word in plain_words) or consonants in plain_words:
            return "its letters mixed, or without vowels"
        return cipher_by_form.get(_find_form(plain_words, cipher_by_form), "")

    return name_form


def _find_form(text_words: Sequence[str], forms: Iterable[str]) -> str:
    """The first of the forms that these words contain; "" if they contain none."""
    contains_form = finder(text_words, _MAX_PLACES)
    return next((form for form in forms if len(form) >= _MIN_LETTERS and contains_form(form)), "")


def _encipher(plain_answer: str) -> Iterator[tuple[str, str]]:
    """(form, how) for every shift of the alphabet, and for the alphabet backwards, each also read backwards."""
    for cipher_name, alphabet in CIPHERS.items():
        form = plain_answer.translate(str.maketrans(ALPHABET, alphabet))
        if form != plain_answer:
            yield form, cipher_name
            yield form[::-1], f"{cipher_name}, backwards"


def _encode(answer: str) -> Iterator[tuple[str, str]]:
    """(form, how) for usual encodings of the answer, reduced to lower-case letters and digits."""
    lower_text = fold_text(answer)
    for text in dict.fromkeys((answer, lower_text, answer.upper(), answer.title(), lower_text[::-1])):
        text_bytes = text.encode("utf-8", "replace")
        forms = {
            "base64": base64.b64encode(text_bytes).decode(),
            "base32": base64.b32encode(text_bytes).decode(),
            "hexadecimal": text_bytes.hex(),
            "binary": "".join(f"{byte:08b}" for byte in text_bytes),
            "character codes": "".join(map(str, text_bytes)),
        }
        yield from (("".join(WORD.findall(encoded.casefold())), encoding) for encoding, encoded in forms.items())
    letters = [ALPHABET.index(letter) for letter in lower_text if letter in ALPHABET]
    if len(letters) >= _MIN_REVERSED and len(letters) == len("".join(WORD.findall(lower_text))):
        yield "".join(str(letter_index + 1) for letter_index in letters), "numbers for letters"
        yield "".join(_LETTER_NAMES[letter_index] for letter_index in letters), "words for letters"
