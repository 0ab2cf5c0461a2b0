"""The scripted explorer's skills in AppWorld from skills.txt: their code, and the query that words their steps."""

import dataclasses
import itertools
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Call, Triplet
from ..tools.toolset import document

ENDING = "supervisor.complete_task"
# The r-th skill has the weight r ** -POPULARITY for an unguided explorer.
POPULARITY = 1.3


@dataclasses.dataclass(frozen=True)
class ApiSkill:
    """One skill. `slots` maps a kind of value to the arguments that a value of it fills."""

    name: str
    slots: Mapping[str, tuple[str, ...]]
    wording: str
    code: str
    look: bool = False

    @property
    def app(self) -> str:
        return self.name.partition(".")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(itertools.chain.from_iterable(self.slots.values()))


def _read(text: str) -> tuple[str, dict[str, ApiSkill]]:
    """The code that begins every block, and the skills by name."""
    pieces: dict[str, str] = {}
    skills: dict[str, ApiSkill] = {}
    for heading, lines in re.findall(r"^([\w?].*)\n((?: {4}.*\n|\n(?= {4}))+)", text, re.MULTILINE):
        body = re.sub(r"^([A-Z]+)\n", lambda piece: pieces[piece[1]], textwrap.dedent(lines), flags=re.MULTILINE)
        if heading.isupper():
            pieces[heading] = body
        elif skill := re.fullmatch(r"(\? )?([\w.]+) \[(.*)\] (.+)", heading):
            look, name, slot_list, wording = skill.groups()
            slots = {kind: tuple(names.split(",")) for kind, names in re.findall(r"(\w+):(\S+)", slot_list)}
            skills[name] = ApiSkill(name, slots, wording, body.rstrip("\n"), bool(look))
        else:
            raise ValueError(f"skills.txt: {heading!r} is no heading of a skill")
    return pieces["PROLOGUE"], skills


_TEXT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
_PROLOGUE, SKILLS = _read(_TEXT)
# Kind of value → the source of its values.
KINDS: Mapping[str, str] = dict(re.findall(r"^(\w+) = (.+)$", _TEXT, re.MULTILINE))


def code(calls: Sequence[Call]) -> str:
    """The code of these calls as one block of Python. Raises ValueError for a call of no skill."""
    blocks = [_PROLOGUE]
    for call in calls:
        if call.name == ENDING:
            if not call.arguments.keys() <= {"answer"}:
                raise ValueError(f"{ENDING} takes an answer alone, or nothing")
            arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            blocks.append(f"apis.supervisor.complete_task({arguments})")
            continue
        skill = SKILLS.get(call.name)
        if skill is None:
            raise ValueError(f"there is no skill {call.name!r:.100}")
        values = call.arguments
        if values.keys() != set(skill.parameters) or not all(isinstance(v, (str, int, float)) for v in values.values()):
            raise ValueError(f"{skill.name} takes {', '.join(skill.parameters) or 'nothing'}, each text or a number")
        body = _fill(skill.code, values)
        blocks.append(f'access = token("{skill.app}")\n{body}')
    return "\n".join(blocks)


def documentation() -> tuple[Mapping[str, Any], ...]:
    """The skills as tools in OpenAI function format; the ending comes last."""
    functions = [_function(skill.name, skill.wording, skill.parameters) for skill in SKILLS.values()]
    return (*functions, _function(ENDING, "complete the task, with the answer if it asks for one", ("answer",)))


def popularity() -> Mapping[str, float]:
    """Skill → its weight for an unguided explorer, by its rank in the table."""
    return {name: rank**-POPULARITY for rank, name in enumerate((*SKILLS, ENDING), start=1)}


def neighbours(name: str) -> tuple[str, ...]:
    """The other skills of the same app. Raises KeyError for an unknown one."""
    if name == ENDING:
        return ()
    app = SKILLS[name].app
    return tuple(other.name for other in SKILLS.values() if other.app == app and other.name != name)


def _fill(text: str, arguments: Mapping[str, Any]) -> str:
    return re.sub(r"{(\w+)}", lambda slot: repr(arguments[slot[1]]), text)


def _function(name: str, description: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {parameter: {} for parameter in parameters}}
    return document(name, description, schema)


_JOINER = ", then "
_SLOT = re.compile(r"{(!?)(\w+)(?::([^|}]*)\|([^}]*))?}")


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that the steps fulfil; None if they cannot be worded.

    The last step, and no other, completes the task. Only the step before it may be a look-up, whose value is then the
    answer.
    """
    calls = [(call, step.observation) for step in steps for call in step.action.calls]
    if len(calls) < 2 or len(calls) != len(steps) or not all(observation.ok for _, observation in calls):
        return None
    (*earlier, (last, last_observation)), (ending, _) = calls[:-1], calls[-1]
    if ending.name != ENDING or any(call.name not in SKILLS for call, _ in calls[:-1]):
        return None
    if any(SKILLS[call.name].look for call, _ in earlier):
        return None
    if ending.arguments != ({"answer": last_observation.text} if SKILLS[last.name].look else {}):
        return None
    if SKILLS[last.name].look and not (last_observation.text.strip() and "\n" not in last_observation.text):
        return None
    clauses = [_wording(call) for call, _ in calls[:-1]]
    if None in clauses or len(set(clauses)) < len(clauses):
        return None
    text = _JOINER.join(filter(None, clauses))
    return f"{text[0].upper()}{text[1:]}."


def _wording(call: Call) -> str | None:
    skill = SKILLS[call.name]
    if call.arguments.keys() != set(skill.parameters):
        return None
    return _SLOT.sub(lambda slot: _value_text(call.arguments[slot[2]], slot), skill.wording)


def _value_text(value: Any, slot: re.Match[str]) -> str:
    bare, _, yes, no = slot.groups()
    if yes or no:
        return str(yes if value else no)
    if isinstance(value, str) and (bare or not re.search(r"['\\\x00-\x1f]", value)):
        return value if bare else f"'{value}'"
    return json.dumps(value, ensure_ascii=False)
