"""What the author of a world of tools should look at: example tasks in words, tools that are always refused, and
parameters whose values come from nowhere or are not checked."""

import contextlib
import json
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, EnvironmentFailure, Episode, ask, traits_of
from cojax.types import Action, Call, Message, Observation, Task, Triplet, signature
from .soundness import SetupReport, open_episode
from .tools import ToolEnvironment
from .tools.arguments import WORDS, Source, ValueIndex, draw_calls, has_own_values, index_values, list_small_numbers
from .tools.sources import Sources, find_sources
from .tools.toolset import Tool, read_tools

# Tasks in words; the most actions of one; the most walks that are taken to find them.
_EXAMPLE_COUNT, _MAX_EXAMPLE_STEPS, _MAX_EXTRA_WALKS = 10, 3, 10
# Trials of the tools of an environment that is slow to open end after this many seconds.
_TRIAL_S = 30.0
# Setups and calls by which a tool that was never offered is tried.
_MAX_TRIED_SETUPS, _MAX_TRIED_CALLS = 3, 8


def word_examples(environment: Environment, setups: Sequence[Task], report: SetupReport) -> list[str]:
    """Different tasks in words, from the beginnings of walks; more walks are taken if those of the report are too
    few."""
    examples: dict[str, None] = {}
    extra_walks = (
        walk
        for number in range(_MAX_EXTRA_WALKS)
        if (walk := _walk_again(environment, setups[number % len(setups)], report))
    )
    for chain in (report.walks, extra_walks):
        for length, walk in enumerate(chain):
            if len(examples) >= _EXAMPLE_COUNT:
                break
            purposeful = [step for step in walk if report.changes_something(step)]
            for size in _list_sizes(length, len(purposeful)):
                query = next(_word_beginnings(environment, purposeful[:size], report), None)
                if query and query not in examples:
                    examples[query] = None
                    break
    return list(examples)


def _list_sizes(walk_number: int, most: int) -> list[int]:
    """The lengths to try: in turn one, two and three actions first."""
    sizes = list(range(1, min(most, _MAX_EXAMPLE_STEPS) + 1))
    first = walk_number % max(1, len(sizes))
    return sizes[first:] + sizes[:first]


def _walk_again(environment: Environment, setup: Task, report: SetupReport) -> Sequence[Triplet]:
    rng = random.Random(len(report.walks))
    with contextlib.suppress(EnvironmentFailure):
        report.walk_once(environment, setup, rng)
        return report.walks[-1] if report.walks else ()
    return ()


def _word_beginnings(environment: Environment, steps: Sequence[Triplet], report: SetupReport) -> Iterator[str]:
    """The query of these steps; or of them without look-ups, but for the last."""
    changing = [step for step in steps[:-1] if report.is_changing(step)]
    for chosen in (steps, [*changing, steps[-1]]) if steps else ():
        for ending in _list_endings(environment, chosen[-1]):
            with contextlib.suppress(EnvironmentFailure):
                if query := ask(environment.phrase, [*chosen, ending]):
                    yield query


def _list_endings(environment: Environment, last: Triplet) -> Iterator[Triplet]:
    """Ends without an answer, and with what the last step showed as the answer."""
    ending_tool = traits_of(environment).ending
    if not ending_tool:
        yield Triplet(Action(), Observation(done=True), last.run)
        yield Triplet(Action(last.observation.text), Observation(done=True), last.run)
        return
    tools = {document["function"]["name"]: document["function"] for document in environment.tools()}
    parameters = tools.get(ending_tool, {}).get("parameters", {}).get("properties", {})
    done = Observation((Message("tool", ""),), done=True)
    for arguments in ({}, *({name: last.observation.text} for name in list(parameters)[:1])):
        yield Triplet(Action(calls=(Call(ending_tool, arguments),)), done, last.run)


def explain_refusals(environment: Environment, setups: Sequence[Task], tool_names: Sequence[str]) -> list[str]:
    """A line for each of these tools, which no call made work: a call, and the answer to it."""
    lines = []
    for tool in _read_tools(environment):
        if tool.name in tool_names:
            call, answer, has_worked = _try_tool(environment, setups, tool)
            if call is None:
                lines.append(f"{tool.name}: nothing to call it with")
            elif not has_worked:
                lines.append(f"{tool.name}: {write_call(call)} → {answer:.400}")
    return lines


def _try_tool(environment: Environment, setups: Sequence[Task], tool: Tool) -> tuple[Call | None, str, bool]:
    """A call of the tool with values of fitting names, the answer, and whether it worked: the first that does, or else
    the last."""
    call, answer = None, ""
    for setup in setups[:_MAX_TRIED_SETUPS]:
        with contextlib.suppress(EnvironmentFailure), open_episode(environment, setup) as episode:
            for call in _draw_some(tool, _index(episode, setup)):
                answer = (observation := ask(episode.step, Action(calls=(call,)))).text
                if observation.ok:
                    return call, answer, True
    return call, answer, False


def _draw_some(tool: Tool, index: ValueIndex) -> list[Call]:
    with contextlib.suppress(TypeError, ValueError, OverflowError, AttributeError):
        return list(draw_calls(tool, index, _MAX_TRIED_CALLS, random.Random(0)))
    return []


def describe_tools(environment: Environment, setup: Task) -> Iterator[str]:
    """Text on each tool: its name, documentation and schema, and a call of it with the answer."""
    with open_episode(environment, setup) as episode:
        offers = [call for action in ask(episode.affordances) for call in action.calls[:1]]
    ending = traits_of(environment).ending
    for tool in _read_tools(environment):
        yield f"{tool.name}: {tool.description}".rstrip(": ")
        yield f"  schema  {json.dumps(dict(tool.parameters), ensure_ascii=False)}"
        if tool.name == ending:
            continue
        call = next((offer for offer in offers if offer.name == tool.name), None)
        if call is None:
            call, answer, _ = _try_tool(environment, [setup], tool)
        else:
            with open_episode(environment, setup) as episode:
                answer = ask(episode.step, Action(calls=(call,))).text
        yield f"  sample  {write_call(call)} → {answer:.400}" if call else "  sample  nothing to call it with"


def write_call(call: Call) -> str:
    return f"{signature(Action(calls=(call,))):.200}"


def _read_tools(environment: Environment) -> list[Tool]:
    tools: list[Tool] = []
    for document in environment.tools():
        with contextlib.suppress(ValueError):
            tools += read_tools([document]).values()
    return tools


def _index(episode: Episode, setup: Task) -> ValueIndex:
    state = ask(episode.state)
    return index_values(state.get("world", state), setup.setup)


def warn_of_values(environment: Environment, setups: Sequence[Task], report: SetupReport) -> list[str]:
    """Lines on parameters that are offered made-up values, and on tools that take values which are not there."""
    tools = [tool for tool in _read_tools(environment) if tool.name not in report.ending_tools]
    sources = _find_sources(environment, tools, setups)
    if sources is None:
        return []
    made_up: dict[tuple[str, bool, bool], list[str]] = {}
    unchecked: list[str] = []
    for tool in tools:
        for parameter, schema in tool.parameters["properties"].items():
            source = sources.get(tool.name, {}).get(parameter)
            # Where nothing was found out by trials, a call must have worked: some worlds refuse what they do not know.
            values_by_parameter = report.offered_values if source is not None else report.worked_values
            offered = values_by_parameter.get((tool.name, parameter), [])
            if source is not None and source.is_unchecked:
                unchecked.append(f"{tool.name}.{parameter}")
            values = [value for value in offered if _is_made_up(value)]
            if has_own_values(schema, tool.parameters) or (source not in (None, Source())) or not values:
                continue
            is_number = all(isinstance(value, (int, float)) for value in values)
            is_typed = isinstance(schema, Mapping) and bool({"type", "anyOf", "oneOf", "$ref"} & schema.keys())
            made_up.setdefault((parameter, is_number, is_typed), []).append(tool.name)
    lines = [_advise_on(parameter, names, *traits) for (parameter, *traits), names in made_up.items()]
    if unchecked:
        lines.append(
            f"the world takes any value for {', '.join(unchecked)}, also one that is not there; where that is wrong, "
            "let the tool raise an error for it"
        )
    return lines


def _advise_on(parameter: str, tool_names: Sequence[str], is_number: bool, is_typed: bool) -> str:
    tried = "1, 2 and 3 are tried" if is_number else f"words such as {WORDS[0]!r} are tried"
    hint = f"Annotated[{'int' if is_number else 'str'}, Field(examples=[…])]"
    type_advice = "" if is_typed else f"It has no type; write {parameter}: int, say. "
    return (
        f"{parameter!r} of {', '.join(tool_names)} is neither in the schema nor in the state: {tried}, which is right "
        f"for {'an amount' if is_number else 'free text'} alone. {type_advice}Otherwise write {parameter}: Literal[…] "
        f"or {hint} (in JSON: `enum`, `examples`), or put {_pluralise(parameter)!r} into the state or the setup"
    )


def _pluralise(parameter: str) -> str:
    name = re.sub(r"(_id|_name|Id|Name)$", "", parameter)
    return f"{name[:-1]}ies" if re.search(r"[^aeiou]y$", name) else name if name.endswith("s") else f"{name}s"


def _find_sources(environment: Environment, tools: Sequence[Tool], setups: Sequence[Task]) -> Sources | None:
    """Where values come from; None if the environment itself says what to try."""
    if isinstance(environment, ToolEnvironment) and not environment.makes_offers:
        return None
    if isinstance(environment, ToolEnvironment) and environment.tries_freely:
        return environment.find_sources()
    return find_sources(environment, tools, setups[:_MAX_TRIED_SETUPS], end_s=time.monotonic() + _TRIAL_S)


def _is_made_up(value: Any) -> bool:
    """Whether an offered value is one that nothing but a parameter's type leads to."""
    if isinstance(value, Mapping):
        return not value or any(map(_is_made_up, value.values()))
    if isinstance(value, list):
        return any(map(_is_made_up, value))
    return value in WORDS or (value in list_small_numbers("integer", {}) and not isinstance(value, bool))
