"""The desk's language: `phrase` words calls as a query."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from cojax.types import Call, Triplet
from ..tools.wording import calls_with_observations
from .generator import JOINER
from .office import FINISH
from .skills import DESK, Skill, Suite, Template

Done = tuple[Call, str]  # a call and what was observed


def phrase(steps: Sequence[Triplet], suite: Suite = DESK) -> str | None:
    """The query that these steps fulfil, in the generator's language; None if they cannot be worded.

    Each change is matched with the skill that explains the most look-ups not yet explained. There is no query if a
    call was refused, a look-up stays unexplained, finish comes before the end, or a word is not in the language.
    """
    calls = calls_with_observations(steps)
    if not calls:
        return None
    clauses: list[str] = []
    prior_looks: frozenset[int] = frozenset()
    for index, (call, _) in enumerate(calls):
        if _looks(call, suite):
            continue
        if call.name == FINISH and index < len(calls) - 1:
            return None
        if call.name == FINISH and not call.arguments:
            continue
        matches = list(_matches(calls, index, prior_looks, suite))
        if not matches:
            return None
        looks, clause = max(matches, key=lambda match: (len(match[0] - prior_looks), -len(match[0])))
        prior_looks |= looks
        clauses.append(clause)
    dangling_looks = {index for index, (call, _) in enumerate(calls) if _looks(call, suite)} - prior_looks
    return JOINER.join(clauses) if clauses and not dangling_looks else None


def _looks(call: Call, suite: Suite) -> bool:
    return call.name in suite.tools and bool(suite.tools[call.name].gives)


def _matches(
    calls: list[Done], index: int, prior_looks: frozenset[int], suite: Suite
) -> Iterator[tuple[frozenset[int], str]]:
    """For each skill that can end with the call at `index`: the look-ups that it needs, and its clause."""
    for skill in suite.skills:
        for branch in skill.branches:
            words = _unify(branch[-1], calls[index][0], {})
            looks: frozenset[int] = frozenset()
            for template in reversed(branch[:-1]):
                if words is None:
                    break
                look = _look(template, calls, index, words, prior_looks, suite)
                words, looks = (look[1], looks | {look[0]}) if look else (None, looks)
            if words is not None:
                words = _fill(skill, branch, words, suite)
                if _in_language(skill, words, suite):
                    yield looks, skill.word(words)


def _unify(template: Template, call: Call, words: Mapping[str, str]) -> dict[str, str] | None:
    """The words, extended so that the template is the call; None if it cannot be."""
    if template.tool != call.name or set(call.arguments) != set(template.parameters):
        return None
    bindings = dict(words)
    for name, parameter in zip(template.names, template.parameters, strict=True):
        if bindings.setdefault(name, call.arguments[parameter]) != call.arguments[parameter]:
            return None
    return bindings


def _look(
    template: Template, calls: list[Done], end: int, words: Mapping[str, str], prior_looks: frozenset[int], suite: Suite
) -> tuple[int, dict[str, str]] | None:
    """The latest look-up that fits the template, preferably one not yet explained; and the words with its binding."""
    candidates: list[tuple[bool, int, dict[str, str]]] = []
    for index in range(end):
        call, observation = calls[index]
        bindings = _unify(template, call, words)
        if bindings is not None and bindings.setdefault(template.binds, observation) == observation:
            arguments = set(call.arguments.values())
            # The observed value must still be right when it is used.
            conflict = any(
                arguments & set(other.arguments.values())
                for other, _ in calls[index + 1 : end]
                if not _looks(other, suite)
            )
            if not conflict:
                candidates.append((index not in prior_looks, index, bindings))
    if not candidates:
        return None
    _, index, bindings = max(candidates, key=lambda entry: entry[:2])
    return index, bindings


def _fill(skill: Skill, branch: tuple[Template, ...], words: dict[str, str], suite: Suite) -> dict[str, str]:
    """Adds words for slots that do not occur in the branch: the condition's slot, and those of the other branch."""
    if skill.when is None:
        return words
    source, slot = skill.when
    bindings = dict(words)
    if branch is skill.branches[0]:
        bindings[slot] = bindings[source]
    for missing in skill.slots:
        if missing not in bindings:
            options = [word for word in suite.vocabulary(missing) if word not in bindings.values()]
            key = f"{missing} {sorted(bindings.items())}"
            bindings[missing] = options[int(hashlib.sha256(key.encode()).hexdigest(), 16) % len(options)]
    return bindings


def _in_language(skill: Skill, words: Mapping[str, str], suite: Suite) -> bool:
    """Whether the language allows these words in these slots, and no word occurs twice."""
    values = {words[slot] for slot in skill.slots}
    return len(values) == len(skill.slots) and all(words[slot] in suite.vocabulary(slot) for slot in skill.slots)
