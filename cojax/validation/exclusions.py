"""The evaluation tasks, as what must not come near the pool."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from cojax.environment.replay import Replay
from cojax.types import Action, Task, content_hash, normalise, to_json
from cojax.unicode_forms import normal_form
from cojax.validation.confusables import BLANK, plain
from cojax.validation.disguise import Disguises
from cojax.validation.similarity import Nearest

# Said before and after a request without changing it.
_OPENING = frozenset({"please", "kindly", "hey", "hi", "hello"})
_CLOSING = frozenset({"please", "kindly", "thanks"})
# A turn of an evaluated dialogue, which is only part of a task, is told by so many times as many words as a query.
_PART = 2
# Characters of a query that is compared; validation allows far fewer.
_LONGEST = 100_000
# In pieces, with other words in between, a query is told by so many more words.
_SCATTERED = 3
# What is decoded is compared by its wording from so many words on.
_WORDED = 4
# Evaluation tasks on one setup whose solutions are run; a benchmark has a few there.
_MOST = 20


@dataclasses.dataclass(frozen=True)
class Words:
    """A text as its letters and digits alone, of one case and width, and where its words begin and end in it.

    Neither punctuation, accents and marks nor where words are parted make another text of it.
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

    def hold(self, letters: str) -> bool:
        """Whether these letters stand in it as whole words, one after another."""
        start = self.letters.find(letters)
        while start >= 0:
            if start in self.begins and start + len(letters) in self.ends:
                return True
            start = self.letters.find(letters, start + 1)
        return False


@dataclasses.dataclass(frozen=True)
class Exclusions:
    """Refuses a query that an evaluation task has on any setup, by itself or as a turn of a dialogue, however dressed
    or disguised (disguise.py); the same actions on the same setup, or actions that come to the same end there; one that
    holds an evaluation task's query of at least `words` words word for word, or in pieces (0: whatever it holds); and,
    where `similarity` is above 0, a query whose cosine with an evaluation task's, or with a part of it, is greater."""

    queries: frozenset[str] = frozenset()
    plans: frozenset[str] = frozenset()
    similarity: float = 0.0
    nearest: Nearest | None = None
    held: tuple[str, ...] = ()
    disguises: Disguises | None = None
    planned: Mapping[str, tuple[Task, ...]] = dataclasses.field(default_factory=dict)
    # Setup → what the solutions of its evaluation tasks come to, run when it is first asked for.
    ends: dict[str, tuple[End, ...]] = dataclasses.field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, tasks: Iterable[Task], similarity: float = 0.0, words: int = 5) -> Exclusions:
        """Five words are the fewest that tell one request from others: "Start the engine" is part of many tasks, and
        refused only by itself. Raises ValueError for a similarity outside [0, 1] and for `words` below 0.
        """
        if not 0.0 <= similarity <= 1.0:
            raise ValueError(f"similarity is {similarity}; expected a cosine in [0, 1], 0 to compare nothing")
        if words < 0:
            raise ValueError(f"words is {words}; expected the fewest words of a query that none may hold, 0 for none")
        tasks = tuple(tasks)
        texts = sorted({task.query for task in tasks})
        return cls(
            frozenset(same for text in texts for same in _samenesses(text)),
            frozenset(_plan(task) for task in tasks),
            similarity,
            Nearest(texts) if similarity else None,
            tuple(sorted({held for text in texts for held in _telling(text, words)})) if words else (),
            Disguises(texts, _SCATTERED + words if words else 0),
            _by_setup(tasks),
        )

    def why(self, task: Task) -> str:
        """Which rule excludes the task; empty where none does."""
        if self.disguises is None:
            return ""
        if len(task.query) > _LONGEST:
            return f"the query has {len(task.query):,} characters; no more than {_LONGEST:,} can be compared"
        if _samenesses(task.query) & self.queries:
            return "an evaluation task has the same query"
        if _plan(task) in self.plans:
            return "an evaluation task has the same setup and actions"
        if self.nearest is not None:
            cosine, _ = self.nearest.to(task.query)
            if cosine > self.similarity:
                # Not which: drafts.jsonl must not hold what is evaluated.
                return f"an evaluation task is worded alike: similarity {cosine:.2f}, above {self.similarity:g}"
        said = Words.of(task.query)
        turns = (_samenesses(turn) for turn in _turns(task.query) if _words(turn))
        if any(said.hold(held) for held in self.held) or any(turn & self.queries for turn in turns):
            return "it holds the query of an evaluation task word for word"
        return self._disguised(task.query)

    def _disguised(self, query: str) -> str:
        assert self.disguises is not None
        for how, reading in self.disguises.readings(query):
            if found := self.disguises.why(how, reading, query):
                return f"the query of an evaluation task is hidden in it: {found}"
            said = reading if how else plain(query)
            if said == query or self.nearest is None or len(said.split()) < _WORDED:
                continue
            if self.nearest.to(said)[0] > self.similarity:
                return f"an evaluation task is worded alike: {how or 'letters that look alike'}"
        return ""

    def why_done(self, task: Task, run: Replay, again: Callable[[Task, tuple[Action, ...]], Replay]) -> str:
        """Which rule excludes what the run of the task's solution did; empty where none does.

        `again` replays actions as a task. An evaluation task on the same setup must not come to the same change of the
        world, whatever was looked up on the way; where it changes nothing, the run must not earn its full reward. Where
        an evaluation task brings no solution, or its solution does not run, nothing is known of its end.
        """
        where = _where(task)
        tasks = self.planned.get(where, ())
        if where not in self.ends:
            self.ends[where] = tuple(end for one in tasks if (end := End.of(one, again)) is not None)
        change = _change(run)
        for end in self.ends[where]:
            if end.change != change:
                continue
            if change or again(end.task, task.solution).trajectory.reward >= 1.0:
                return "an evaluation task on the same setup comes to the same end"
        return ""


@dataclasses.dataclass(frozen=True)
class End:
    """An evaluation task, and how its solution changes the world: empty where it does not."""

    task: Task
    change: str

    @classmethod
    def of(cls, task: Task, again: Callable[[Task, tuple[Action, ...]], Replay]) -> End | None:
        """None where the solution does not run to its end. Raises EnvironmentFailure where that is not known."""
        run = again(task, task.solution)
        return cls(task, _change(run)) if run.complete else None


def _change(run: Replay) -> str:
    """A hash of those parts of the world that the run left otherwise than it found them, as they are now.

    Parts of the world are the mappings of a state. What else a state holds is the account of the episode: the answer,
    what calls returned, whose turn it is.
    """
    first, last = run.states[0], run.states[-1]
    changed = {name: part for name, part in last.items() if isinstance(part, Mapping) and part != first.get(name)}
    return content_hash(changed) if changed else ""


def _by_setup(tasks: Iterable[Task]) -> dict[str, tuple[Task, ...]]:
    """Setup → the evaluation tasks on it that bring solutions, at most 20."""
    found: dict[str, tuple[Task, ...]] = {}
    for task in tasks:
        if task.solution and len(known := found.get(_where(task), ())) < _MOST:
            found[_where(task)] = (*known, task)
    return found


def _where(task: Task) -> str:
    return content_hash([task.environment, task.setup])


def _plan(task: Task) -> str:
    """Setup and actions with their arguments; the text of an action counts only where it has no calls."""
    actions = [to_json(action.calls) or action.text for action in task.solution]
    return content_hash([task.environment, task.setup, actions])


def _words(text: str) -> Sequence[str]:
    """Runs of letters and digits, lower case and without accents, width or characters that show nothing."""
    folded = normal_form("NFKD", normal_form("NFKD", text).casefold())
    shown = (c for c in folded if unicodedata.category(c) not in ("Cf", "Mn", "Me") and c not in BLANK)
    return re.findall(r"[^\W_]+", "".join(shown))


def _samenesses(text: str) -> set[str]:
    """What two texts share that ask for the same thing in the same words: never empty, so that nothing is not alike."""
    words = _words(text)
    first, last = 0, len(words)
    while first < last and words[first] in _OPENING:
        first += 1
    while last > first and (words[last - 1] in _CLOSING or words[last - 2 : last] == ["thank", "you"]):
        last -= 1 if words[last - 1] in _CLOSING else 2
    bare = "".join(words[first:last] or words)
    return {normalise(text), *({bare} if bare else ())}


def _turns(text: str) -> list[str]:
    """The paragraphs, which the turns of a dialogue are as well."""
    return [piece.strip() for piece in re.split(r"\n\s*\n", text) if piece.strip()]


def _telling(text: str, words: int) -> set[str]:
    """The letters of the text and of its turns, where they have so many words that nobody says them by chance."""
    least = {text: words, **{turn: _PART * words for turn in _turns(text) if turn != text}}
    said = {part: _words(part) for part in least}
    return {"".join(found) for part, found in said.items() if len(found) >= least[part]}
