"""Checks by wording that a query asks for what its solution does.

A query that equals the environment's own wording of the steps agrees. In any other query, every argument of a call must
be named in the query, shown by an earlier action, documented with the tool, or computed from such values. Arguments
that people may call by another name, such as codes, are not checked, and the evidence says so. A query asks for
something in words, and leaves the calls to whoever acts.
"""

import ast
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cojax.explorer.answers import parse_code
from cojax.types import Action, Call, Observation, Triplet, normalise
from cojax.unicode_forms import normal_form
from cojax.validation.mention import Mentions, codified, computed, fold, leaves, number_of, specific, words

# Most values in a line of evidence, and characters of each.
_LISTED, _SHORT = 4, 60

# Verbs that people use for one another.
_SYNONYMS = (
    ("add", "create", "write", "schedule", "new", "post", "put", "set", "update", "edit", "change", "append"),
    ("delete", "remove", "cancel", "erase", "clear", "close"),
    ("find", "read", "show", "search", "list", "view", "look", "check", "day"),
    ("move", "rename", "copy", "send", "share", "forward", "postpone"),
)
_FIRST_SYNONYM = {verb: synonyms[0] for synonyms in _SYNONYMS for verb in synonyms}

# Fewest characters of a value within which nothing counts as a call: a query may ask to write some code to a file.
_LONG = 12
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_JOINTS = re.compile(r"[\W_]+")
_NAME = re.compile(r"(?<!\w)\w++(?:(?:[.:-]|::|->)\w++)*+")
_OPENED = re.compile(r"(?<![\w.])((?:[^\W\d]\w*+\.)*+[^\W\d]\w*+)(?:(\s?)\(|\[)([^()\[\]]{0,200})")
_SET = re.compile(
    r"(?:[\"']|\{\s?)(\w{1,80})[\"']?\s?:|\b(\w{1,80}):(?=[\w\"'])|\b(\w{1,80})\s?=(?!=)|(?<!\S)--(\w{1,80})\b"
)
_KEYS = frozenset(("arguments", "parameters", "tool", "function", "tool_call", "tool_name", "function_call"))
# What may stand in brackets after a word as its ending.
_SUFFIXES = ({"s"}, {"es"}, {"d"}, {"ed"}, {"ing"})

Documents = Mapping[str, Mapping[str, Any]]  # tool → its documentation


@dataclasses.dataclass(frozen=True)
class QueryMatch:
    """How a query fits a solution.

    `against` is the reason to refuse it, if any. `worded` says that it is the environment's own wording of the steps.
    `named` counts the arguments that are accounted for, and `open` lists those that cannot be checked.
    """

    against: str = ""
    worded: bool = False
    named: int = 0
    open: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        if self.worded:
            return "query and solution agree: the environment words these steps so"
        if not self.open:
            return f"query and solution agree: {self.named} arguments are named, shown or documented"
        return (
            f"query and solution have words in common, and {self.named} arguments are named, shown or documented; it "
            f"cannot be told of {', '.join(self.open[:_LISTED])}"
        )


def compare_query(
    query: str,
    world: str,
    steps: Sequence[Triplet],
    opening: str,
    worded: str | None,
    documents: Documents,
    ending: str,
) -> QueryMatch:
    """How the query fits the steps of a replay.

    `world` is the environment's name, `opening` the text that the episode shows before the first action, and `worded`
    the environment's wording of the steps, or None. `ending` is the tool that ends an episode.
    """
    if worded is not None and normalise(worded) == normalise(query):
        return QueryMatch(worded=True)
    if worded is not None and _word_counts(worded) == _word_counts(query):
        return QueryMatch("the query says the words of these steps in another order")
    if found := raw_call(query, [step.action for step in steps], documents):
        return QueryMatch(f"the query holds a call, {found!r:.{_SHORT}}; expected words")
    asked = Mentions(query)
    calls = [(place, call) for place, step in enumerate(steps, 1) for call in step.action.calls if call.name != ending]
    if against := _unrelated(asked, steps, calls, worded, world, documents):
        return QueryMatch(against)
    seen = [opening.replace(query, " "), *(shown_text(step, query) for step in steps)]
    named, open_ = 0, list[str]()
    for place, call in calls:
        shown, documented = Mentions("\n".join(seen[:place])), json.dumps(documents.get(call.name, {}), default=str)
        for name, value in _arguments(call):
            if asked.names(value) or _is_shown(value, asked, shown, documented):
                named += 1
            elif codified(value):
                open_.append(f"{value!r:.{_SHORT}}")
            else:
                return QueryMatch(
                    f"the query does not name {value!r:.{_SHORT}}, {name!r:.{_SHORT}} of action {place}, and no "
                    "earlier action shows it"
                )
    if any(step.action.text.strip() and not step.action.calls for step in steps):
        open_.append("code")
    return QueryMatch(named=named, open=tuple(open_))


def shown_text(step: Triplet, query: str) -> str:
    """The text that a step showed, without the user's own turns."""
    texts = (message.content for message in step.observation.messages)
    return "\n".join(text for text in texts if not (text.strip() and text.strip() in query))


def _is_shown(value: Any, asked: Mentions, shown: Mentions, documented: str) -> bool:
    """Whether the value stands in what was shown or documented, or is made of words or numbers of the query and it."""
    text = value if isinstance(value, str) else json.dumps(value)
    if text and re.search(rf"(?<![\w.]){re.escape(text)}(?![\w.]*\w)", documented, re.IGNORECASE):
        return True
    if not isinstance(value, str):
        return value in shown.numbers or computed(value, asked.numbers | shown.numbers)
    return shown.holds(fold(value)) or all(
        any(word in one.words or number_of(word) in one.numbers for one in (asked, shown)) for word in words(value)
    )


def _unrelated(
    query: Mentions,
    steps: Sequence[Triplet],
    calls: Sequence[tuple[int, Call]],
    worded: str | None,
    world: str,
    documents: Documents,
) -> str:
    """Why the query seems to ask for something unrelated; "" if it does not."""
    asked = {word for word in query.words if not word[0].isdigit()}
    given = {word for _, call in calls for _, value in _arguments(call) for word in words(str(value))}
    done = {word for _, call in calls for word in words(documentation_words(documents, call.name))}
    done |= {word for step in steps for word in _code_words(step.action)} | set(words(f"{worded or ''} {world}"))
    about = Mentions(" ".join(done | given))
    if not any(about.names(word) for word in asked) and not (query.numbers & about.numbers):
        return "the query has no word in common with what the solution does"
    return _contradiction(asked, {call.name for _, call in calls}, done, documents)


def synonym(word: str) -> str:
    """The first of the word's synonyms, which stands for all of them."""
    return _FIRST_SYNONYM.get(word, word)


def _contradiction(asked: set[str], called: set[str], done: set[str], documents: Documents) -> str:
    """Why the query asks for another tool of an application than those called; "" if it does not."""
    split = {tool: name for tool in documents if (name := [*words(tool)])}
    # The first word of a name is an application where several tools share it, and it is no verb.
    prefixes = Counter(name[0] for name in split.values() if len(name) > 1)
    shared = {word for word, count in prefixes.items() if count > 1}
    if shared <= _FIRST_SYNONYM.keys():
        # A world without prefixes is one application, and the first word of a name says what a tool does.
        does, applications = {tool: {name[0]} for tool, name in split.items()}, dict.fromkeys(split, "")
    else:
        does = {tool: set(name[1:] if name[0] in shared else name) for tool, name in split.items()}
        applications = {tool: name[0] for tool, name in split.items() if name[0] in shared}
    ours = {word for tool in called for word in does.get(tool, ())}
    if not ours or {*map(synonym, ours)} & {*map(synonym, asked)}:
        return ""
    near = {applications[tool] for tool in called if tool in applications}
    for tool in split:
        if applications.get(tool) in near and (other := (does[tool] - done) & asked):
            return f"the query says {min(other)!r}, which is what {tool} does, and not what the solution does"
    return ""


def action_words(documents: Documents, action: Action) -> str:
    """The words about an action: its arguments, its tools' names and documentation, or its code."""
    given = (str(value) for call in action.calls for _, value in _arguments(call))
    tools = (documentation_words(documents, call.name) for call in action.calls)
    return " ".join((*given, *tools, *_code_words(action)))


def documentation_words(documents: Documents, tool: str) -> str:
    """The name of a tool, its description and those of its parameters."""
    document = documents.get(tool, {})
    parameters = document.get("parameters", {}).get("properties", {})
    described = (f"{name} {parameter.get('description', '')}" for name, parameter in parameters.items())
    return " ".join((tool, str(document.get("description", "")), *described))


def _arguments(call: Call) -> Iterator[tuple[str, Any]]:
    """(argument, value) for every value of a call that a query has to name, at any depth."""
    return ((name, leaf) for name, value in call.arguments.items() for leaf in leaves(value) if specific(leaf))


def _code_words(action: Action) -> Iterator[str]:
    """The words of an action that is text; of code, its names and literals."""
    for text in () if action.calls else names_and_literals(action):
        yield from words(text)


def _word_counts(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", normalise(text)))


def syntax_tree(action: Action) -> ast.Module:
    """The syntax tree of an action's code; empty where its text is no code."""
    try:
        return parse_code(Triplet(action, Observation(), 0))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def names_and_literals(action: Action) -> Iterator[str]:
    """The names and literals of an action's code; its whole text where that is no code."""
    tree = syntax_tree(action)
    if not tree.body:
        yield action.text
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str() | int() | float() as value):
                yield str(value)


def raw_call(query: str, actions: Sequence[Action], tools: Collection[str]) -> str:
    """What in the query is a call and no words: a fence, a tool's name as code has it, a call, or an argument set.

    "" if nothing is. What stands in a long argument of the solution does not count.
    """
    calls = [call for action in actions for call in action.calls]
    nodes = (node for action in actions if not action.calls for node in ast.walk(syntax_tree(action)))
    values = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    values |= {str(leaf) for call in calls for leaf in leaves(call.arguments)}
    text = normal_form("NFKC", query)
    for value in sorted((value for value in values if len(value) >= _LONG), key=len, reverse=True):
        text = text.replace(normal_form("NFKC", value), " ")
    if fenced := next((part for part in text.split("```")[1::2] if _JOINTS.sub("", part)), ""):
        return fenced
    parameters = {name for call in calls for name in call.arguments}
    names = {*tools, *(call.name for call in calls)}
    names |= {name.rpartition(".")[2] for name in names}
    joined = {_JOINTS.sub("", name).casefold() for name in names if len(_split(name)) > 1}
    for found in _NAME.finditer(text):
        # "Check-in" is a word, also where there is a tool check_in.
        coded = len(_split(found[0])) > 1 and ("-" not in found[0].replace("->", "") or found[0] in names)
        if coded and _JOINTS.sub("", found[0]).casefold() in joined:
            return found[0]
    single = {name.casefold() for name in names}
    parts = single | {name.partition("_")[2] for name in single}  # without their application
    known = {value.casefold() for value in values | parameters}
    for found in _OPENED.finditer(text):
        given = {word for word in _JOINTS.split(found[3].casefold()) if word}
        # "Move (bread, friday)" is a call, and "move (at last)" is not.
        called = given and given <= known if found[2] else given not in _SUFFIXES
        name = found[1].casefold()
        if called and (name if found[2] else name.rpartition(".")[2]) in (single if found[2] else parts):
            return found[0]
    for part in text.casefold().split("`")[1::2]:
        first, *others = _JOINTS.sub(" ", part).split() or [""]
        if first in parts and others and known.issuperset(others):
            return part
    return next((found[0] for found in _SET.finditer(text) if {*found.groups()} & (_KEYS | parameters)), "")


def _split(name: str) -> list[str]:
    return [word for word in _JOINTS.split(_CAMEL.sub(" ", name)) if word]
