"""Keeps evaluation tasks out of the pool: refuses a draft that repeats one, in its words, its actions or its end.

It also recognises a query in disguise: in letters that look alike, in a cipher or an encoding, reversed, or in parts.
"""

import collections
import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cojax.environment.replay import Replay
from cojax.settings.tree import Settings
from cojax.similarity import make_nearest
from cojax.types import Action, Task, content_hash, normalise, setup_hash, to_json
from cojax.unicode_forms import normalise_form
from cojax.validation.decodings import ALPHABET, BLANK, CIPHERS, WORD, finder, fold_lookalikes, to_letters, to_plain
from cojax.validation.decodings import readings as readings_of
from cojax.validation.decodings import words as words_of
from cojax.validation.mention import ENGLISH

# Courtesies before and after a request, which do not change it.
_OPENING_WORDS = frozenset({"please", "kindly", "hey", "hi", "hello"})
_CLOSING_WORDS = frozenset({"please", "kindly", "thanks"})
# A turn of a dialogue is only part of a task: to be distinctive it needs this many times the words of a whole query.
_TURN_FACTOR = 2
# A query of more characters is not compared; validation allows far fewer.
_MAX_QUERY_LENGTH = 100_000
# A query scattered among other words needs this many more words to be distinctive.
_EXTRA_IF_SCATTERED = 3
# The wording of a decoded text is compared only if it has at least this many words.
_MIN_DECODED_WORDS = 4
# The solutions of at most this many evaluation tasks on one setup are run; benchmarks have a few on each.
_MAX_TASKS_PER_SETUP = 20
# A query is recognised inside a longer reading only if it has at least this many words and letters.
_MIN_WORDS, _MIN_LETTERS = 3, 12
# Words that no query contains count as filler only if there are at least this many queries.
_MIN_REPRESENTATIVE_COUNT = 100
# Of a query with other words in between, the least share of neighbouring words that must still be neighbours.
_NEIGHBOURS = 0.6
# At most this many words of a text are tried with each cipher, and at most this many ciphers are followed up.
_MAX_WORDS_TRIED, _MAX_CIPHERS = 100, 2
_CLAUSE_END_PATTERN = re.compile(r"[.,;:!?…()\[\]\"“”\n]|\s[-–—]\s")
# Words around the parts of a request that do not belong to it.
_FILLER_WORDS = frozenset(map(fold_lookalikes, ENGLISH["around"].split()))
# Cipher → the table that undoes it.
_CIPHER_TABLES = {name: str.maketrans(alphabet, ALPHABET) for name, alphabet in CIPHERS.items()}


@dataclasses.dataclass(frozen=True)
class Exclusions:
    """The rules that exclude a task because of an evaluation task. A task is refused when

    - its query, or a paragraph of it, is the query of an evaluation task on any setup, also in disguise (`Disguises`);
    - its query contains the query of an evaluation task, word for word or scattered, if that is long enough;
    - the cosine of its query with that of an evaluation task, or with a part of it, is above `similarity` (0: not
      compared);
    - its actions are those of an evaluation task on the same setup, or have the same end (`find_end_rule`);
    - it begins on a setup in `closed`, the setups of evaluation tasks that were set apart by setup.
    """

    queries: frozenset[str] = frozenset()  # keys of the evaluation queries, see `_make_query_keys`
    plans: frozenset[str] = frozenset()  # hashes of setup and actions
    similarity: float = 0.0
    nearest: Callable[[str], tuple[float, str]] | None = None
    distinctive: tuple[str, ...] = ()  # letters of queries and turns that no other query may contain
    disguises: "Disguises | None" = None
    by_setup: Mapping[str, tuple[Task, ...]] = dataclasses.field(default_factory=dict)
    closed: frozenset[str] = frozenset()  # hashes of setups
    # Setup → its evaluation tasks whose solution runs, each with a hash of how it changes the world. A setup is added
    # when it is first asked about.
    ends: dict[str, tuple[tuple[Task, str], ...]] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        tasks: Iterable[Task],
        similarity: float = 0.0,
        min_words: int = Settings.validation.evaluation_words,
        closed: Iterable[Task] = (),
    ) -> "Exclusions":
        """The rules for these evaluation tasks. No other task may begin on the setup of a task in `closed`.

        No query may contain an evaluation query of at least `min_words` words; 0 allows all. Five is the fewest that
        makes a request distinctive: "Start the engine" is part of many tasks, and is refused only as a whole query or
        paragraph. Raises ValueError for a similarity outside [0, 1] and for `min_words` below 0.
        """
        if not 0.0 <= similarity <= 1.0:
            raise ValueError(f"similarity is {similarity}; expected a cosine in [0, 1], 0 to compare nothing")
        if min_words < 0:
            raise ValueError(
                f"words is {min_words}; expected the fewest words of a query that no other may contain, 0 for none"
            )
        tasks = tuple(tasks)
        query_texts = sorted({task.query for task in tasks})
        by_setup: dict[str, tuple[Task, ...]] = {}
        for task in tasks:
            if task.solution and len(earlier_tasks := by_setup.get(setup_hash(task), ())) < _MAX_TASKS_PER_SETUP:
                by_setup[setup_hash(task)] = (*earlier_tasks, task)
        return cls(
            frozenset(query_key for text in query_texts for query_key in _make_query_keys(text)),
            frozenset(_hash_plan(task) for task in tasks),
            similarity,
            make_nearest(query_texts) if similarity else None,
            tuple(sorted({part for text in query_texts for part in _find_distinctive(text, min_words)}))
            if min_words
            else (),
            Disguises(query_texts, _EXTRA_IF_SCATTERED + min_words if min_words else 0),
            by_setup,
            frozenset(map(setup_hash, closed)),
        )

    def find_rule(self, task: Task) -> str:
        """The rule that excludes the task; empty if none does."""
        if self.disguises is None:
            return ""
        if setup_hash(task) in self.closed:
            return "an evaluation task begins on the same setup"
        if len(task.query) > _MAX_QUERY_LENGTH:
            return f"the query has {len(task.query):,} characters; no more than {_MAX_QUERY_LENGTH:,} can be compared"
        if _make_query_keys(task.query) & self.queries:
            return "an evaluation task has the same query"
        if _hash_plan(task) in self.plans:
            return "an evaluation task has the same setup and actions"
        if (cosine := self._measure_cosine(task.query)) > self.similarity:
            # The task is not named: drafts.jsonl must not hold evaluation tasks.
            return f"an evaluation task is worded alike: similarity {cosine:.2f}, above {self.similarity:g}"
        turns = (_make_query_keys(turn) for turn in _split_turns(task.query) if _split_words(turn))
        if any(map(finder(_split_words(task.query)), self.distinctive)) or any(keys & self.queries for keys in turns):
            return "it holds the query of an evaluation task word for word"
        for encoding, reading in self.disguises.list_readings(task.query):
            if disguise := self.disguises.find_disguise(encoding, reading, task.query):
                return f"the query of an evaluation task is hidden in it: {disguise}"
            wording = reading if encoding else to_plain(task.query)
            if wording == task.query or len(wording.split()) < _MIN_DECODED_WORDS:
                continue
            if self._measure_cosine(wording) > self.similarity:
                return f"an evaluation task is worded alike: {encoding or 'letters that look alike'}"
        return ""

    def _measure_cosine(self, text: str) -> float:
        """The cosine with the nearest evaluation query; 0 if wording is not compared."""
        return self.nearest(text)[0] if self.nearest is not None else 0.0

    def find_end_rule(self, task: Task, run: Replay, replay: Callable[[Task, tuple[Action, ...]], Replay]) -> str:
        """The rule that excludes the task by the end of its solution, replayed as `run`; empty if none does.

        The run must not change the world in the same way as the solution of an evaluation task on the same setup;
        look-ups do not count. If that solution changes nothing, the run must not earn full reward on that task.
        Evaluation tasks without a solution, or whose solution does not run, are not compared. `replay` replays actions
        on a task, and raises EnvironmentFailure if the environment failed.
        """
        setup = setup_hash(task)
        if setup not in self.ends:
            runs = [(peer, replay(peer, peer.solution)) for peer in self.by_setup.get(setup, ())]
            self.ends[setup] = tuple((peer, _hash_changes(other_run)) for peer, other_run in runs if other_run.complete)
        change_hash = _hash_changes(run)
        for peer, peer_hash in self.ends[setup]:
            if peer_hash == change_hash and (change_hash or replay(peer, task.solution).trajectory.reward >= 1.0):
                return "an evaluation task on the same setup comes to the same end"
        return ""


class Disguises:
    """Finds queries that are disguised in other texts."""

    def __init__(self, queries: Iterable[str], min_words: int = 0):
        """Queries of at least `min_words` words are also found with other words in between; 0 turns this off."""
        queries = sorted(set(queries))
        self._whole: set[str] = set()
        self._bare: set[str] = set()
        self._queries_by_start: dict[str, set[str]] = {}
        self._spellings: dict[str, set[str]] = {}  # query in one letter for all that look alike → in its own letters
        self._words: set[str] = set()
        self._backward_words: set[str] = set()
        for query in queries:
            self._add_query(query)
        self._is_representative = len(queries) >= _MIN_REPRESENTATIVE_COUNT
        self._queries_by_word: dict[str, list[list[str]]] = {}  # the rarest word of a query → its words
        if min_words:
            parts = [words_of(part) for query in queries for part in {query, *_split_paragraphs(query)}]
            counts = collections.Counter(word for part in parts for word in set(part))
            for part in parts:
                if len(part) >= min_words:
                    self._queries_by_word.setdefault(min(part, key=lambda word: (counts[word], word)), []).append(part)

    def _add_query(self, query: str) -> None:
        words = words_of(query)
        self._words.update(words)
        self._backward_words.update(fold_lookalikes(word[::-1]) for word in words)
        if len(words) > 1:
            self._bare.add(_drop_filler(words))
        for letters in filter(None, _list_orders(query)):
            self._whole.add(fold_lookalikes(letters))
        # A single turn of a dialogue may be disguised too.
        for passage in {query, *_split_paragraphs(query)}:
            if len(WORD.findall(to_letters(passage))) >= _MIN_WORDS:
                for letters in _list_orders(passage):
                    if len(query_key := fold_lookalikes(letters)) >= _MIN_LETTERS:
                        self._queries_by_start.setdefault(query_key[:_MIN_LETTERS], set()).add(query_key)
                        self._spellings.setdefault(query_key, set()).add(letters)

    def list_readings(self, text: str) -> Iterator[tuple[str, str]]:
        """(how, reading) of the text, as in `decodings.readings`, and by ciphers that turn it into known words."""
        return readings_of(text, self._decipher)

    def find_disguise(self, encoding: str, reading: str, text: str) -> str:
        """The disguise in which a reading of the text is, or contains, a query; empty if there is none.

        `encoding` names the decodings of the reading. A query that the text contains openly is not disguised.
        """
        for passage in (reading, *_split_paragraphs(reading)):
            if not (words := words_of(passage)):
                continue
            if fold_lookalikes("".join(words)) in self._whole or (len(words) > 1 and self._is_enciphered(passage)):
                return encoding or "letters that look alike, moved on or reversed"
            if self._is_whole(words):
                return encoding or "words around its parts"
            if any(self._is_whole(core) for core in self._list_cores(passage, words, _MIN_WORDS - bool(encoding))):
                return encoding or "other words between its parts"
        words = words_of(reading)
        if queries := self._find_queries(fold_lookalikes("".join(words))):
            open_letters = "".join(WORD.findall(text.casefold()))
            if not all(any(spelling in open_letters for spelling in self._spellings[query]) for query in queries):
                return encoding or "letters that look alike or stand in reverse"
        return (encoding or "other words between its parts") if self._is_scattered(words) else ""

    def _is_whole(self, words: Sequence[str]) -> bool:
        return len(words) > 1 and (fold_lookalikes("".join(words)) in self._whole or _drop_filler(words) in self._bare)

    def _list_cores(self, text: str, words: Sequence[str], fewest: int) -> Iterator[list[str]]:
        """The words that some query contains, then the words of clauses that consist mostly of such words."""
        # If few queries are known, a word that none contains may matter.
        if not self._is_representative or self._words.issuperset(words):
            return
        clauses = [words_of(clause) for clause in _CLAUSE_END_PATTERN.split(text)]
        familiar = [word for clause in clauses if 2 * self._count_known(clause) > len(clause) for word in clause]
        yield from (core for core in ([word for word in words if word in self._words], familiar) if len(core) >= fewest)

    def _count_known(self, words: Sequence[str]) -> int:
        return sum(word in self._words for word in words)

    def _is_scattered(self, words: Sequence[str]) -> bool:
        """Whether these words contain all words of a query in order, most of them right after the one before."""
        word_set, word_pairs = set(words), set(itertools.pairwise(words))
        likely_queries = (query for word in word_set for query in self._queries_by_word.get(word, ()))
        return any(word_set.issuperset(query) and _are_in_order(query, words, word_pairs) for query in likely_queries)

    def _is_enciphered(self, text: str) -> bool:
        letters = "".join(WORD.findall(to_letters(text)))
        return len(letters) >= 6 and any(
            fold_lookalikes(letters.translate(cipher_table)) in self._whole for cipher_table in _CIPHER_TABLES.values()
        )

    def _find_queries(self, letters: str) -> set[str]:
        """The queries, as letters, that the letters contain."""
        return {
            query
            for start in range(len(letters) - _MIN_LETTERS + 1)
            for query in self._queries_by_start.get(letters[start : start + _MIN_LETTERS], ())
            if letters.startswith(query, start)
        }

    def _decipher(self, text: str) -> Iterator[tuple[str, str]]:
        """(cipher, reading) for the ciphers, or spelling backwards, that turn most words into known ones."""
        small_letters = to_letters(text)
        unknown_words = [
            word
            for word in dict.fromkeys(WORD.findall(small_letters))
            if len(word) > 2 and fold_lookalikes(word) not in self._words
        ]
        if not unknown_words:
            return
        unknown_words = unknown_words[:: -(-len(unknown_words) // _MAX_WORDS_TRIED)]
        score_table: list[tuple[int, str, bool]] = []
        for cipher, cipher_table in {"": {}, **_CIPHER_TABLES}.items():
            candidates = [fold_lookalikes(word.translate(cipher_table)) for word in unknown_words]
            if cipher:
                score_table.append((self._count_known(candidates), cipher, False))
            score_table.append((sum(word in self._backward_words for word in candidates), cipher, True))
        min_score = min(2, len(unknown_words))
        for score, cipher, backwards in sorted(score_table, key=lambda entry: -entry[0])[:_MAX_CIPHERS]:
            if score >= min_score:
                reading = small_letters.translate(_CIPHER_TABLES.get(cipher, {}))
                how = ", ".join(filter(None, (cipher, "backwards" if backwards else "")))
                yield how, reading[::-1] if backwards else reading


def _list_orders(text: str) -> list[str]:
    """The letters of the text, forwards and backwards, with its words in either order."""
    tokens = ["".join(WORD.findall(token)) for token in to_letters(text).split()]
    letters, reversed_words = "".join(tokens), "".join(tokens[::-1])
    return [letters, letters[::-1], reversed_words, reversed_words[::-1]]


def _drop_filler(words: Sequence[str]) -> str:
    """The words without filler, joined; all of them if all are filler."""
    return "".join(word for word in words if word not in _FILLER_WORDS) or "".join(words)


def _are_in_order(query_words: Sequence[str], words: Sequence[str], word_pairs: set[tuple[str, str]]) -> bool:
    neighbour_count = sum(word_pair in word_pairs for word_pair in itertools.pairwise(query_words))
    words_left = iter(words)
    return neighbour_count >= _NEIGHBOURS * (len(query_words) - 1) and all(word in words_left for word in query_words)


def _hash_changes(run: Replay) -> str:
    """A hash of the parts of the world that the run changed, in their final state; "" if it changed none.

    The mappings in a state are the parts of the world. The other values describe the episode: the answer, the outputs
    of calls, whose turn it is.
    """
    start, end = run.states[0], run.states[-1]
    changed_parts = {name: part for name, part in end.items() if isinstance(part, Mapping) and part != start.get(name)}
    return content_hash(changed_parts) if changed_parts else ""


def _hash_plan(task: Task) -> str:
    """A hash of setup and actions with their arguments; the text of an action counts only if it has no calls."""
    actions = [to_json(action.calls) or action.text for action in task.solution]
    return content_hash([task.environment, task.setup, actions])


def _split_words(text: str) -> list[str]:
    """The runs of letters and digits, in lower case and usual width, without accents and invisible characters."""
    chars = normalise_form("NFKD", normalise_form("NFKD", text).casefold())
    letters = (char for char in chars if unicodedata.category(char) not in ("Cf", "Mn", "Me") and char not in BLANK)
    return WORD.findall("".join(letters))


def _make_query_keys(text: str) -> set[str]:
    """Keys of a query: two queries that share a key ask for the same thing in the same words.

    The set is never empty, but an empty string is a key only of a query without any text.
    """
    words = _split_words(text)
    request_words = [*itertools.dropwhile(_OPENING_WORDS.__contains__, words)]
    while request_words and (request_words[-1] in _CLOSING_WORDS or request_words[-2:] == ["thank", "you"]):
        request_words = request_words[: -1 if request_words[-1] in _CLOSING_WORDS else -2]
    request_letters = "".join(request_words or words)
    return {normalise(text), *({request_letters} if request_letters else ())}


def _split_turns(text: str) -> list[str]:
    """The paragraphs of a query; in a dialogue, each is a turn of the user."""
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def _split_paragraphs(text: str) -> list[str]:
    """The paragraphs of a text that has several."""
    return turns if len(turns := _split_turns(text)) > 1 else []


def _find_distinctive(text: str, fewest: int) -> set[str]:
    """The letters of the query and of its turns, each only if it has enough words not to match by chance."""
    min_by_part = {text: fewest, **{turn: _TURN_FACTOR * fewest for turn in _split_turns(text) if turn != text}}
    tokens_by_part = {paragraph: _split_words(paragraph) for paragraph in min_by_part}
    return {"".join(tokens) for paragraph, tokens in tokens_by_part.items() if len(tokens) >= min_by_part[paragraph]}
