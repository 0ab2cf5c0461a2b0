"""The desk's language: `phrase` words calls as a query."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from cojax.types import Call, Triplet
from ..tools.wording import pair_calls
from .generator import JOINER
from .office import FINISH
from .skills import DESK, Skill, Suite, Template

Step = tuple[Call, str]  # a call and its observation


def phrase(steps: Sequence[Triplet], suite: Suite = DESK) -> str | None:
    """Words the query that these steps fulfil, in the generator's language; None if they cannot be worded.

    Each change is matched with the skill that explains the most look-ups not yet explained. There is no query if a
    call was refused, a look-up stays unexplained, finish comes before the end, or a word is not in the language.
    """
    observed_calls = pair_calls(steps)
    if not observed_calls:
        return None
    clauses: list[str] = []
    prior_looks: frozenset[int] = frozenset()
    for call_index, (call, _) in enumerate(observed_calls):
        if _is_look_up(call, suite):
            continue
        if call.name == FINISH and call_index < len(observed_calls) - 1:
            return None
        if call.name == FINISH and not call.arguments:
            continue
        candidates = list(_match_skills(observed_calls, call_index, prior_looks, suite))
        if not candidates:
            return None
        look_ups, clause = max(candidates, key=lambda candidate: (len(candidate[0] - prior_looks), -len(candidate[0])))
        prior_looks |= look_ups
        clauses.append(clause)
    dangling_looks = {index for index, (call, _) in enumerate(observed_calls) if _is_look_up(call, suite)} - prior_looks
    return JOINER.join(clauses) if clauses and not dangling_looks else None


def _is_look_up(call: Call, suite: Suite) -> bool:
    return call.name in suite.tools and bool(suite.tools[call.name].gives)


def _match_skills(
    calls: list[Step], last_index: int, prior_looks: frozenset[int], suite: Suite
) -> Iterator[tuple[frozenset[int], str]]:
    """For each skill that can end with the call at `last_index`: the look-ups that it needs, and its clause."""
    for skill in suite.skills:
        for branch in skill.branches:
            words = _unify_call(branch[-1], calls[last_index][0], {})
            look_ups: frozenset[int] = frozenset()
            for template in reversed(branch[:-1]):
                if words is None:
                    break
                found_look_up = _find_look_up(template, calls, last_index, words, prior_looks, suite)
                words, look_ups = (
                    (found_look_up[1], look_ups | {found_look_up[0]}) if found_look_up else (None, look_ups)
                )
            if words is not None:
                words = _fill_slots(skill, branch, words, suite)
                if _is_in_language(skill, words, suite):
                    yield look_ups, skill.word_query(words)


def _unify_call(template: Template, call: Call, words: Mapping[str, str]) -> dict[str, str] | None:
    """Extends the words so that the template becomes the call; None if that is impossible."""
    if template.tool_name != call.name or set(call.arguments) != set(template.parameters):
        return None
    bindings = dict(words)
    for word_name, parameter in zip(template.names, template.parameters, strict=True):
        if bindings.setdefault(word_name, call.arguments[parameter]) != call.arguments[parameter]:
            return None
    return bindings


def _find_look_up(
    template: Template, calls: list[Step], end: int, words: Mapping[str, str], prior_looks: frozenset[int], suite: Suite
) -> tuple[int, dict[str, str]] | None:
    """Finds the latest look-up that fits the template, preferably an unexplained one; and the words it binds."""
    candidates: list[tuple[bool, int, dict[str, str]]] = []
    for call_index in range(end):
        call, observation = calls[call_index]
        bindings = _unify_call(template, call, words)
        if bindings is not None and bindings.setdefault(template.bound_name, observation) == observation:
            arguments = set(call.arguments.values())
            # The observed value must still be right when it is used.
            is_outdated = any(
                arguments & set(later_call.arguments.values())
                for later_call, _ in calls[call_index + 1 : end]
                if not _is_look_up(later_call, suite)
            )
            if not is_outdated:
                candidates.append((call_index not in prior_looks, call_index, bindings))
    if not candidates:
        return None
    _, call_index, bindings = max(candidates, key=lambda candidate: candidate[:2])
    return call_index, bindings


def _fill_slots(skill: Skill, branch: tuple[Template, ...], words: dict[str, str], suite: Suite) -> dict[str, str]:
    """Adds words for slots that do not occur in the branch: the condition's slot, and those of the other branch."""
    if skill.equal_names is None:
        return words
    observation_name, slot = skill.equal_names
    bindings = dict(words)
    if branch is skill.branches[0]:
        bindings[slot] = bindings[observation_name]
    for missing_slot in skill.slots:
        if missing_slot not in bindings:
            candidates = [word for word in suite.words_of(missing_slot) if word not in bindings.values()]
            salt = f"{missing_slot} {sorted(bindings.items())}"
            bindings[missing_slot] = candidates[int(hashlib.sha256(salt.encode()).hexdigest(), 16) % len(candidates)]
    return bindings


def _is_in_language(skill: Skill, words: Mapping[str, str], suite: Suite) -> bool:
    """Whether the language allows these words in these slots, and no word occurs twice."""
    slot_words = {words[slot] for slot in skill.slots}
    return len(slot_words) == len(skill.slots) and all(words[slot] in suite.words_of(slot) for slot in skill.slots)
