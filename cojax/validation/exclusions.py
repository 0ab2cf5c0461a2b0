"""The evaluation tasks, as what must not come near the pool."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Sequence

from cojax.types import Task, content_hash, normalise, to_json
from cojax.validation.similarity import Nearest

# Said around a request without changing it.
_COURTESY = re.compile(r"^(?:(?:please|kindly|hey|hi|hello)\b\s*)+|(?:\s*\b(?:please|kindly|thanks|thank you))+$")
# Letters that show nothing: the fillers of Hangul.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0")
# A turn of an evaluated dialogue, which is only part of a task, is told by so many times as many words as a query.
_PART = 2


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
    """Refuses a query that an evaluation task has on any setup, by itself or as a turn of a dialogue, however dressed;
    the same actions on the same setup; one that holds an evaluation task's query of at least `words` words word for
    word (0: whatever it holds); and, where `similarity` is above 0, a query whose cosine with an evaluation task's, or
    with a part of it, is greater."""

    queries: frozenset[str] = frozenset()
    plans: frozenset[str] = frozenset()
    similarity: float = 0.0
    nearest: Nearest | None = None
    held: tuple[str, ...] = ()

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
        )

    def why(self, task: Task) -> str:
        """Which rule excludes the task; empty where none does."""
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
        return ""


def _plan(task: Task) -> str:
    """Setup and actions with their arguments; the text of an action counts only where it has no calls."""
    actions = [to_json(action.calls) or action.text for action in task.solution]
    return content_hash([task.environment, task.setup, actions])


def _words(text: str) -> Sequence[str]:
    """Runs of letters and digits, lower case and without accents, width or characters that show nothing."""
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    shown = (c for c in folded if unicodedata.category(c) not in ("Cf", "Mn", "Me") and c not in _BLANK)
    return re.findall(r"[^\W_]+", "".join(shown))


def _samenesses(text: str) -> set[str]:
    """What two texts share that ask for the same thing in the same words: never empty, so that nothing is not alike."""
    words = " ".join(_words(text))
    bare = _COURTESY.sub("", words) or words
    return {normalise(text), *({bare.replace(" ", "")} if bare else ())}


def _turns(text: str) -> list[str]:
    """The paragraphs, which the turns of a dialogue are as well."""
    return [piece.strip() for piece in re.split(r"\n\s*\n", text) if piece.strip()]


def _telling(text: str, words: int) -> set[str]:
    """The letters of the text and of its turns, where they have so many words that nobody says them by chance."""
    least = {text: words, **{turn: _PART * words for turn in _turns(text) if turn != text}}
    said = {part: _words(part) for part in least}
    return {"".join(found) for part, found in said.items() if len(found) >= least[part]}
