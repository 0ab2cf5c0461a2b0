"""Negative controls: the solution is run without each of its parts in turn, and must then earn less.

Without a part that changes the state, the reward must be below 1. A part that only shows something must be needed; see
necessity.py.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence

from cojax.environment.replay import Replay
from cojax.types import Action, Task, Triplet
from cojax.validation import necessity
from cojax.validation.consistency import Documents, QueryMatch, action_words
from cojax.validation.necessity import Part
from cojax.validation.refusal import DraftRefused


@dataclasses.dataclass(frozen=True)
class NegativeControls:
    """The negative controls of one task, whose solution was replayed as `run`.

    `bare` is the action that ends the episode in place of the last one, or None if the last one does nothing else.
    `agreed` is the comparison of query and solution, `phrase` returns the environment's wording of steps, and `replay`
    plays other actions.
    """

    task: Task
    run: Replay
    ending: str
    bare: Action | None
    agreed: QueryMatch
    documents: Documents
    phrase: Callable[[Sequence[Triplet]], str | None]
    replay: Callable[[Task, tuple[Action, ...]], Replay]

    def examine(self, most: int | None, evidence: list[str]) -> None:
        """Leaves out each part in turn and adds a line of evidence for each.

        At most `most` of the parts that change the state are left out, drawn by the task's id; None means all. Raises
        DraftRefused for a look-up that is not needed, then for a query that does not agree with the solution, then for
        any other part that is not needed.
        """
        solution = self.task.solution
        parts = list(necessity.parts(solution, self.ending))
        together = any(part.call is not None for part in parts)
        split = self.replay(self.task, necessity.apart(solution)) if together else None
        changing = necessity.changing(parts, solution, self.run, split)
        effective = [part for part in parts if part in changing]
        if self.bare is not None:
            effective.append(Part(len(solution) - 1))
        if most is not None and most < len(effective):
            drawn = random.Random(repr(("controls", self.task.id))).sample(range(len(effective)), most)
            effective = [effective[place] for place in sorted(drawn)]
        evidence += [self._use_of_lookup(part, None) for part in parts if part not in changing]
        if self.agreed.against:
            raise DraftRefused(self.agreed.against)
        for part in effective:
            evidence += self._control(part)

    def _control(self, part: Part) -> list[str]:
        """The evidence on a part that changes the state. Raises DraftRefused where it is not needed."""
        solution = self.task.solution
        instead = (self.bare,) if self.bare is not None and part == Part(len(solution) - 1) else ()
        less = self.replay(self.task, (*part.without(solution), *instead))
        if instead and less.states[-1] == self.run.states[-1]:
            return []  # it did nothing but end the episode
        if less.trajectory.reward >= 1.0:
            raise DraftRefused(f"negative control: passes without {part.name(solution)}")
        if not instead and necessity.only_shows(part, self.run, less):
            return [self._use_of_lookup(part, less)]
        return [f"negative control: fails without {part.name(solution)}"]

    def _use_of_lookup(self, part: Part, less: Replay | None) -> str:
        """How the solution uses a part that only shows something; `less` is the replay without it, if there is one.

        Raises DraftRefused where the part is superfluous.
        """
        query, solution = self.task.query, self.task.solution
        steps, name = necessity.triplets(self.run), part.name(solution)
        if value := necessity.first_shown(part, steps, query, necessity.opening(self.run)):
            return f"look-up used: {value[:60]!r}, first shown by {name}, stands in what follows"
        asked = necessity.asked_by(part, steps, query, self.agreed.worded, self.phrase)
        if asked:
            return f"look-up asked for, as the environment words it: {name}"
        less = less or self.replay(self.task, part.without(solution))
        if not less.complete or len(less.trajectory.turns) < len(solution) - (part.call is None):
            return f"look-up needed: the rest fails without {name}"
        if not necessity.only_shows(part, self.run, less):
            return f"look-up needed: the end differs without {name}"
        if asked is None and necessity.condition(part, steps, query):
            return f"look-up asked for, as the query makes it a condition: {name}"
        about = functools.partial(action_words, self.documents)
        compared = less.trajectory.reward < 1.0  # its output counts for the reward
        if asked is None and compared and necessity.may_be_asked(part, steps, query, about, self.phrase):
            return f"look-up perhaps asked for, which cannot be told: {name}"
        raise DraftRefused(f"superfluous: nothing that it shows is used or asked for, {name}")
