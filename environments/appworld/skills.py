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
from ..tools.toolset import to_document

ENDING = "supervisor.complete_task"
# The r-th skill has the weight r ** -POPULARITY_EXPONENT for an unguided explorer.
POPULARITY_EXPONENT = 1.3


@dataclasses.dataclass(frozen=True)
class ApiSkill:
    """One skill. `slots` maps a kind of value to the arguments that a value of it fills."""

    name: str
    slots: Mapping[str, tuple[str, ...]]
    wording: str
    code: str
    is_look_up: bool = False

    @property
    def app(self) -> str:
        return self.name.partition(".")[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(itertools.chain.from_iterable(self.slots.values()))


def _read_table(text: str) -> tuple[str, dict[str, ApiSkill]]:
    """The code that begins every block, and the skills by name."""
    shared_code: dict[str, str] = {}
    skills: dict[str, ApiSkill] = {}
    for heading, body in re.findall(r"^([\w?].*)\n((?: {4}.*\n|\n(?= {4}))+)", text, re.MULTILINE):
        code = re.sub(r"^([A-Z]+)\n", lambda match: shared_code[match[1]], textwrap.dedent(body), flags=re.MULTILINE)
        if heading.isupper():
            shared_code[heading] = code
        elif match := re.fullmatch(r"(\? )?([\w.]+) \[(.*)\] (.+)", heading):
            look_up_mark, skill_name, slot_list, wording = match.groups()
            slots = {value_kind: tuple(names.split(",")) for value_kind, names in re.findall(r"(\w+):(\S+)", slot_list)}
            skills[skill_name] = ApiSkill(skill_name, slots, wording, code.rstrip("\n"), bool(look_up_mark))
        else:
            raise ValueError(f"skills.txt: {heading!r} is no heading of a skill")
    return shared_code["PROLOGUE"], skills


_TABLE_TEXT = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
_PROLOGUE_CODE, SKILLS = _read_table(_TABLE_TEXT)
# Kind of value → the source of its values.
KINDS: Mapping[str, str] = dict(re.findall(r"^(\w+) = (.+)$", _TABLE_TEXT, re.MULTILINE))


def write_code(calls: Sequence[Call]) -> str:
    """The code of these calls as one block of Python. Raises ValueError for a call of no skill."""
    blocks = [_PROLOGUE_CODE]
    for call in calls:
        if call.name == ENDING:
            if not call.arguments.keys() <= {"answer"}:
                raise ValueError(f"{ENDING} takes an answer alone, or nothing")
            ending_arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            blocks.append(f"apis.supervisor.complete_task({ending_arguments})")
            continue
        skill = SKILLS.get(call.name)
        if skill is None:
            raise ValueError(f"there is no skill {call.name!r:.100}")
        values = call.arguments
        if values.keys() != set(skill.parameters) or not all(isinstance(v, (str, int, float)) for v in values.values()):
            raise ValueError(f"{skill.name} takes {', '.join(skill.parameters) or 'nothing'}, each text or a number")
        skill_code = _fill_template(skill.code, values)
        blocks.append(f'access = token("{skill.app}")\n{skill_code}')
    return "\n".join(blocks)


def documentation() -> tuple[Mapping[str, Any], ...]:
    """The skills as tools in OpenAI function format; the ending comes last."""
    functions = [_document_skill(skill.name, skill.wording, skill.parameters) for skill in SKILLS.values()]
    return (*functions, _document_skill(ENDING, "complete the task, with the answer if it asks for one", ("answer",)))


def popularity() -> Mapping[str, float]:
    """Skill → its weight for an unguided explorer, by its rank in the table."""
    return {skill_name: rank**-POPULARITY_EXPONENT for rank, skill_name in enumerate((*SKILLS, ENDING), start=1)}


def neighbours(skill_name: str) -> tuple[str, ...]:
    """The other skills of the same app. Raises KeyError for an unknown one."""
    if skill_name == ENDING:
        return ()
    app = SKILLS[skill_name].app
    return tuple(other.name for other in SKILLS.values() if other.app == app and other.name != skill_name)


def _fill_template(code_template: str, arguments: Mapping[str, Any]) -> str:
    return re.sub(r"{(\w+)}", lambda match: repr(arguments[match[1]]), code_template)


def _document_skill(tool_name: str, description: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {parameter: {} for parameter in parameters}}
    return to_document(tool_name, description, schema)


_JOINER = ", then "
_SLOT_PATTERN = re.compile(r"{(!?)(\w+)(?::([^|}]*)\|([^}]*))?}")


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that the steps fulfil; None if they cannot be worded.

    The last step, and no other, completes the task. Only the step before it may be a look-up, whose value is then the
    answer.
    """
    calls = [(call, step.observation) for step in steps for call in step.action.calls]
    if len(calls) < 2 or len(calls) != len(steps) or not all(observation.ok for _, observation in calls):
        return None
    (*earlier_calls, (last_call, last_observation)), (ending_call, _) = calls[:-1], calls[-1]
    if ending_call.name != ENDING or any(call.name not in SKILLS for call, _ in calls[:-1]):
        return None
    if any(SKILLS[call.name].is_look_up for call, _ in earlier_calls):
        return None
    if ending_call.arguments != ({"answer": last_observation.text} if SKILLS[last_call.name].is_look_up else {}):
        return None
    if SKILLS[last_call.name].is_look_up and not (last_observation.text.strip() and "\n" not in last_observation.text):
        return None
    clauses = [_word_call(call) for call, _ in calls[:-1]]
    if None in clauses or len(set(clauses)) < len(clauses):
        return None
    query = _JOINER.join(filter(None, clauses))
    return f"{query[0].upper()}{query[1:]}."


def _word_call(call: Call) -> str | None:
    skill = SKILLS[call.name]
    if call.arguments.keys() != set(skill.parameters):
        return None
    return _SLOT_PATTERN.sub(lambda match: _word_value(call.arguments[match[2]], match), skill.wording)


def _word_value(value: Any, slot_match: re.Match[str]) -> str:
    bare_mark, _, true_text, false_text = slot_match.groups()
    if true_text or false_text:
        return str(true_text if value else false_text)
    if isinstance(value, str) and (bare_mark or not re.search(r"['\\\x00-\x1f]", value)):
        return value if bare_mark else f"'{value}'"
    return json.dumps(value, ensure_ascii=False)
