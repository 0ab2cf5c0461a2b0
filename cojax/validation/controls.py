"""Negative controls: the solution without one part of it, for each part, must be worth less.

What changes the world must be missed by the verdict. What only shows something must be of use; see necessity.py.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence

from cojax.environment.replay import Replay
from cojax.types import Action, Task, Triplet
from cojax.validation import necessity
from cojax.validation.consistency import Accord, Documents, described
from cojax.validation.necessity import Part
from cojax.validation.refusal import DraftRefused


@dataclasses.dataclass(frozen=True)
class Controls:
    """The controls of one task, whose replay `run` is.

    `bare` ends the episode in place of the last action, None where that merely ends; `agreed` is how the query
    stands to the solution, `phrase` the environment's wording of steps; `replay` plays other actions.
    """

    task: Task
    run: Replay
    ending: str
    bare: Action | None
    agreed: Accord
    documents: Documents
    phrase: Callable[[Sequence[Triplet]], str | None]
    replay: Callable[[Task, tuple[Action, ...]], Replay]

    def examine(self, most: int | None, evidence: list[str]) -> None:
        """Leaves out every part in turn, of those that change something at most `most`, drawn by the task; None is all.

        Raises DraftRefused for a part that is not needed, look-ups first, and then for what the query does not ask for.
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
        evidence += [self._use(part, None) for part in parts if part not in changing]
        if self.agreed.against:
            raise DraftRefused(self.agreed.against)
        for part in effective:
            evidence += self._control(part)

    def _control(self, part: Part) -> list[str]:
        """The line on a part that changes something."""
        solution = self.task.solution
        instead = (self.bare,) if self.bare is not None and part == Part(len(solution) - 1) else ()
        less = self.replay(self.task, (*part.without(solution), *instead))
        if instead and less.states[-1] == self.run.states[-1]:
            return []  # besides ending it did nothing
        if less.trajectory.reward >= 1.0:
            raise DraftRefused(f"negative control: passes without {part.named(solution)}")
        if not instead and necessity.only_shows(part, self.run, less):
            return [self._use(part, less)]
        return [f"negative control: fails without {part.named(solution)}"]

    def _use(self, part: Part, less: Replay | None) -> str:
        """What the solution has of a part that only shows something; `less` is the replay without it, if it was made.

        Raises DraftRefused where the part is superfluous.
        """
        query, solution = self.task.query, self.task.solution
        steps, name = necessity.triplets(self.run), part.named(solution)
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
        about = functools.partial(described, self.documents)
        compared = less.trajectory.reward < 1.0  # what it showed is part of the verdict
        if asked is None and compared and necessity.may_be_asked(part, steps, query, about, self.phrase):
            return f"look-up perhaps asked for, which cannot be told: {name}"
        raise DraftRefused(f"superfluous: nothing that it shows is used or asked for, {name}")
