"""Keeps evaluation tasks out of the pool: refuses a draft that repeats one, in its words, its actions or its end."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from cojax.environment.replay import Replay
from cojax.settings.tree import ValidationSettings
from cojax.types import Action, Task, content_hash, normalise, to_json
from cojax.unicode_forms import normal_form
from cojax.validation.confusables import BLANK, plain
from cojax.validation.disguise import Disguises
from cojax.validation.similarity import Nearest, setup_hash

# Courtesies before and after a request, which do not change it.
_OPENING = frozenset({"please", "kindly", "hey", "hi", "hello"})
_CLOSING = frozenset({"please", "kindly", "thanks"})
# A turn of a dialogue is only part of a task: to be distinctive it needs this many times the words of a whole query.
_TURN_FACTOR = 2
# Most characters of a query that is compared; validation allows far fewer.
_LONGEST = 100_000
# A query scattered among other words needs this many more words to be distinctive.
_SCATTERED_MORE = 3
# Fewest words of a decoded text whose wording is compared.
_FEWEST_DECODED = 4
# Most evaluation tasks on one setup whose solutions are run; benchmarks have a few on each.
_MOST_PER_SETUP = 20


@dataclasses.dataclass(frozen=True)
class Words:
    """The letters and digits of a text in one case and width, with the places in them where words begin and end.

    Texts that differ only in punctuation, accents, marks or the splitting of words have the same letters.
    """

    letters: str
    begins: frozenset[int]
    ends: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Words:
        words = _words(text)
        ends = [0]
        for word in words:
            ends.append(ends[-1] + len(word))
        return cls("".join(words), frozenset(ends[:-1]), frozenset(ends[1:]))

    def contain(self, letters: str) -> bool:
        """Whether these letters are consecutive whole words of the text."""
        start = self.letters.find(letters)
        while start >= 0:
            if start in self.begins and start + len(letters) in self.ends:
                return True
            start = self.letters.find(letters, start + 1)
        return False


@dataclasses.dataclass(frozen=True)
class Exclusions:
    """The rules that exclude a task because of an evaluation task. A task is refused when

    - its query, or a paragraph of it, is the query of an evaluation task on any setup, also in disguise (disguise.py);
    - its query contains the query of an evaluation task, word for word or scattered, if that is long enough;
    - the cosine of its query with that of an evaluation task, or with a part of it, is above `similarity` (0: not
      compared);
    - its actions are those of an evaluation task on the same setup, or have the same end (`why_done`);
    - it begins on a setup of `closed`, which are those of evaluation tasks that were set apart by their setups.
    """

    queries: frozenset[str] = frozenset()  # keys of the evaluation queries, see `_query_keys`
    plans: frozenset[str] = frozenset()  # hashes of setup and actions
    similarity: float = 0.0
    nearest: Nearest | None = None
    distinctive: tuple[str, ...] = ()  # letters of queries and turns that no other query may contain
    disguises: Disguises | None = None
    by_setup: Mapping[str, tuple[Task, ...]] = dataclasses.field(default_factory=dict)
    closed: frozenset[str] = frozenset()  # hashes of setups
    # Setup → the ends of its evaluation tasks' solutions, which are run when they are first asked for.
    ends: dict[str, tuple[End, ...]] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        tasks: Iterable[Task],
        similarity: float = 0.0,
        words: int = ValidationSettings.evaluation_words,
        closed: Iterable[Task] = (),
    ) -> Exclusions:
        """The rules for these evaluation tasks. No other task may begin on the setup of a task in `closed`.

        No query may contain an evaluation query of at least `words` words; 0 allows all. Five is the fewest that makes
        a request distinctive: "Start the engine" is part of many tasks, and is refused only as a whole query or
        paragraph. Raises ValueError for a similarity outside [0, 1] and for `words` below 0.
        """
        if not 0.0 <= similarity <= 1.0:
            raise ValueError(f"similarity is {similarity}; expected a cosine in [0, 1], 0 to compare nothing")
        if words < 0:
            raise ValueError(
                f"words is {words}; expected the fewest words of a query that no other may contain, 0 for none"
            )
        tasks = tuple(tasks)
        texts = sorted({task.query for task in tasks})
        return cls(
            frozenset(key for text in texts for key in _query_keys(text)),
            frozenset(_plan(task) for task in tasks),
            similarity,
            Nearest(texts) if similarity else None,
            tuple(sorted({part for text in texts for part in _distinctive_parts(text, words)})) if words else (),
            Disguises(texts, _SCATTERED_MORE + words if words else 0),
            _group_by_setup(tasks),
            frozenset(map(setup_hash, closed)),
        )

    def why(self, task: Task) -> str:
        """The rule that excludes the task; empty where none does."""
        if self.disguises is None:
            return ""
        if setup_hash(task) in self.closed:
            return "an evaluation task begins on the same setup"
        if len(task.query) > _LONGEST:
            return f"the query has {len(task.query):,} characters; no more than {_LONGEST:,} can be compared"
        if _query_keys(task.query) & self.queries:
            return "an evaluation task has the same query"
        if _plan(task) in self.plans:
            return "an evaluation task has the same setup and actions"
        if self.nearest is not None:
            cosine, _ = self.nearest.to(task.query)
            if cosine > self.similarity:
                # The task is not named: drafts.jsonl must not hold evaluation tasks.
                return f"an evaluation task is worded alike: similarity {cosine:.2f}, above {self.similarity:g}"
        words = Words.of(task.query)
        turns = (_query_keys(turn) for turn in _turns(task.query) if _words(turn))
        if any(words.contain(part) for part in self.distinctive) or any(turn & self.queries for turn in turns):
            return "it holds the query of an evaluation task word for word"
        return self._disguised(task.query)

    def _disguised(self, query: str) -> str:
        """Why the query contains an evaluation task's query in disguise; empty where it does not."""
        assert self.disguises is not None
        for how, reading in self.disguises.readings(query):
            if found := self.disguises.why(how, reading, query):
                return f"the query of an evaluation task is hidden in it: {found}"
            wording = reading if how else plain(query)
            if wording == query or self.nearest is None or len(wording.split()) < _FEWEST_DECODED:
                continue
            if self.nearest.to(wording)[0] > self.similarity:
                return f"an evaluation task is worded alike: {how or 'letters that look alike'}"
        return ""

    def why_done(self, task: Task, run: Replay, again: Callable[[Task, tuple[Action, ...]], Replay]) -> str:
        """The rule that excludes the task by the end of its solution, replayed as `run`; empty where none does.

        The run must not change the world in the same way as the solution of an evaluation task on the same setup;
        look-ups do not count. If that solution changes nothing, the run must not earn full reward on that task.
        Evaluation tasks without a solution, or whose solution does not run, are not compared. `again` replays actions
        on a task.
        """
        setup = setup_hash(task)
        tasks = self.by_setup.get(setup, ())
        if setup not in self.ends:
            self.ends[setup] = tuple(end for one in tasks if (end := End.of(one, again)) is not None)
        change = _change(run)
        for end in self.ends[setup]:
            if end.change != change:
                continue
            if change or again(end.task, task.solution).trajectory.reward >= 1.0:
                return "an evaluation task on the same setup comes to the same end"
        return ""


@dataclasses.dataclass(frozen=True)
class End:
    """An evaluation task, and a hash of how its solution changes the world, "" if it changes nothing."""

    task: Task
    change: str

    @classmethod
    def of(cls, task: Task, again: Callable[[Task, tuple[Action, ...]], Replay]) -> End | None:
        """The end of a task's solution, None if the solution does not run to its end.

        Raises EnvironmentFailure if the environment failed.
        """
        run = again(task, task.solution)
        return cls(task, _change(run)) if run.complete else None


def _change(run: Replay) -> str:
    """A hash of the parts of the world that the run changed, in their final state; "" if it changed none.

    The mappings in a state are the parts of the world. The other values describe the episode: the answer, the outputs
    of calls, whose turn it is.
    """
    first, last = run.states[0], run.states[-1]
    changed = {name: part for name, part in last.items() if isinstance(part, Mapping) and part != first.get(name)}
    return content_hash(changed) if changed else ""


def _group_by_setup(tasks: Iterable[Task]) -> dict[str, tuple[Task, ...]]:
    """Setup → the evaluation tasks on it that have a solution, at most 20."""
    found: dict[str, tuple[Task, ...]] = {}
    for task in tasks:
        if task.solution and len(known := found.get(setup_hash(task), ())) < _MOST_PER_SETUP:
            found[setup_hash(task)] = (*known, task)
    return found


def _plan(task: Task) -> str:
    """A hash of setup and actions with their arguments; the text of an action counts only where it has no calls."""
    actions = [to_json(action.calls) or action.text for action in task.solution]
    return content_hash([task.environment, task.setup, actions])


def _words(text: str) -> Sequence[str]:
    """The runs of letters and digits in lower case, without accents, width and invisible characters."""
    folded = normal_form("NFKD", normal_form("NFKD", text).casefold())
    shown = (c for c in folded if unicodedata.category(c) not in ("Cf", "Mn", "Me") and c not in BLANK)
    return re.findall(r"[^\W_]+", "".join(shown))


def _query_keys(text: str) -> set[str]:
    """Keys of a query: two queries that share one ask for the same thing in the same words.

    The set is never empty, but an empty string is a key only of a query without any text.
    """
    words = _words(text)
    first, last = 0, len(words)
    while first < last and words[first] in _OPENING:
        first += 1
    while last > first and (words[last - 1] in _CLOSING or words[last - 2 : last] == ["thank", "you"]):
        last -= 1 if words[last - 1] in _CLOSING else 2
    bare = "".join(words[first:last] or words)
    return {normalise(text), *({bare} if bare else ())}


def _turns(text: str) -> list[str]:
    """The paragraphs of a query; in a dialogue, each is a turn of the user."""
    return [piece.strip() for piece in re.split(r"\n\s*\n", text) if piece.strip()]


def _distinctive_parts(text: str, words: int) -> set[str]:
    """The letters of the query and of its turns, of those with enough words not to agree by chance."""
    least = {text: words, **{turn: _TURN_FACTOR * words for turn in _turns(text) if turn != text}}
    spelled = {part: _words(part) for part in least}
    return {"".join(found) for part, found in spelled.items() if len(found) >= least[part]}
