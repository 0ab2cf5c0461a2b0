"""Checks by wording that a query asks for what its solution does.

A query that equals the environment's own wording of the steps agrees. In any other query, every argument of a call must
be named in the query, shown by an earlier action, documented with the tool, or computed from such values. Arguments
that people may call by another name, such as codes, are not checked, and the evidence says so. A query must ask in
words, and leave the calls to whoever acts.

`find_false_condition` finds a condition of the query, in English words, that does not hold in the world although the
solution acts on it. It decides conditions on how many entries a collection of the state has ("there are more than five
mails"), on what exists ("there is a file called plum"), and on the value of an entry ("lunch is on monday", "the report
says plum", "tea is done"). It leaves any other condition open.
"""

import ast
import dataclasses
import functools
import json
import operator
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cojax.explorer.answers import list_leaves, parse_code
from cojax.types import Action, Call, Observation, Triplet, normalise
from cojax.unicode_forms import normalise_form
from cojax.validation import mention
from cojax.validation.mention import Mentions, fold_text, near, read_number, sentences, stem_word, words

# A line of evidence has at most this many values, and this many characters of each.
_MAX_LISTED_VALUES, _WIDTH = 4, 60

# Verb → the first of the verbs that people use for the same thing.
_FIRST_SYNONYM_BY_VERB = {verb: group.split()[0] for group in mention.ENGLISH["synonyms"] for verb in group.split()}
# A value of this many characters may contain a call: a query may ask to write some code to a file.
_MIN_CODE_LENGTH = 12
_CAMEL_JOINT_PATTERN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATOR_PATTERN = re.compile(r"[\W_]+")
_NAME_PATTERN = re.compile(r"(?<!\w)\w++(?:(?:[.:-]|::|->)\w++)*+")
_NAME_BRACKET_PATTERN = re.compile(r"(?<![\w.])((?:[^\W\d]\w*+\.)*+[^\W\d]\w*+)(?:(\s?)\(|\[)([^()\[\]]{0,200})")
_SETTING = re.compile(
    r"(?:[\"']|\{\s?)(\w{1,80})[\"']?\s?:|\b(\w{1,80}):(?=[\w\"'])|\b(\w{1,80})\s?=(?!=)|(?<!\S)--(\w{1,80})\b"
)
_CALL_KEYS = frozenset(("arguments", "parameters", "tool", "function", "tool_call", "tool_name", "function_call"))
_CAPITALS_PATTERN = re.compile(r"[A-Z]{1,6}")
# Usual factors of a computation: parts of a day, a week, a year, a whole.
_FACTORS = (2, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1_000, 3_600)
# At most this many numbers of a text are tried in a computation.
_MAX_NUMBERS = 60
# What may follow a word in brackets as its ending.
_SUFFIXES = ({"s"}, {"es"}, {"d"}, {"ed"}, {"ing"})

Documents = Mapping[str, Mapping[str, Any]]  # tool → its documentation


@dataclasses.dataclass(frozen=True)
class QueryMatch:
    """How a query fits a solution.

    `contradiction` is the reason to refuse it, if any. `verbatim` says that it is the environment's own wording of the
    steps. `count` is the number of arguments that are accounted for, and `open_values` lists those that cannot be
    checked.
    """

    contradiction: str = ""
    verbatim: bool = False
    count: int = 0
    open_values: tuple[str, ...] = ()

    @property
    def evidence_line(self) -> str:
        if self.verbatim:
            return "query and solution agree: the environment words these steps so"
        if not self.open_values:
            return f"query and solution agree: {self.count} arguments are named, shown or documented"
        return (
            f"query and solution have words in common, and {self.count} arguments are named, shown or documented"
            f"; it cannot be told of {', '.join(self.open_values[:_MAX_LISTED_VALUES])}"
        )


def compare_query(
    query: str,
    environment_name: str,
    steps: Sequence[Triplet],
    opening: str,
    wording: str | None,
    documents: Documents,
    ending: str,
) -> QueryMatch:
    """How the query fits the steps of a replay.

    `opening` is the text that the episode shows before the first action, and `wording` the environment's wording of the
    steps, or None. `ending` is the tool that ends an episode.
    """
    if wording is not None and normalise(wording) == normalise(query):
        return QueryMatch(verbatim=True)
    if wording is not None and _count_words(wording) == _count_words(query):
        return QueryMatch("the query has the words of these steps in another order")
    if call_text := find_raw_call(query, [step.action for step in steps], documents):
        return QueryMatch(f"the query holds a call, {call_text!r:.{_WIDTH}}; expected words")
    query_mentions = Mentions(query)
    calls = [(place, call) for place, step in enumerate(steps, 1) for call in step.action.calls if call.name != ending]
    if mismatch_line := _find_mismatch(query_mentions, steps, calls, f"{wording or ''} {environment_name}", documents):
        return QueryMatch(mismatch_line)
    texts = [opening.replace(query, " "), *(join_shown(step, query) for step in steps)]
    named_count, open_values = 0, list[str]()
    for place, call in calls:
        history, document = Mentions("\n".join(texts[:place])), json.dumps(documents.get(call.name, {}), default=str)
        for name, value in _list_arguments(call):
            if query_mentions.names(value) or _is_shown(value, query_mentions, history, document):
                named_count += 1
            elif has_other_names(value):
                open_values.append(f"{value!r:.{_WIDTH}}")
            else:
                return QueryMatch(
                    f"the query does not name {value!r:.{_WIDTH}}, {name!r:.{_WIDTH}} of action {place}, and no "
                    "earlier action shows it"
                )
    if any(step.action.text.strip() and not step.action.calls for step in steps):
        open_values.append("code")
    return QueryMatch(count=named_count, open_values=tuple(open_values))


def join_shown(step: Triplet, query: str) -> str:
    """The text that a step showed, without the user's own turns."""
    texts = (message.content for message in step.observation.messages)
    return "\n".join(text for text in texts if not (text.strip() and text.strip() in query))


def _is_shown(value: Any, query: Mentions, history: Mentions, document: str) -> bool:
    """Whether the value was shown or documented, or consists of words or numbers that were shown or queried."""
    value_text = value if isinstance(value, str) else json.dumps(value)
    if value_text and re.search(rf"(?<![\w.]){re.escape(value_text)}(?![\w.]*\w)", document, re.IGNORECASE):
        return True
    if not isinstance(value, str):
        return value in history.numbers or is_computable(value, query.numbers | history.numbers)
    return history.has_phrase(fold_text(value)) or all(
        any(word in one.words or read_number(word) in one.numbers for one in (query, history)) for word in words(value)
    )


def is_specific(value: Any) -> bool:
    """Whether a query has to name a value: any but truth values, None and text without a word or a number."""
    if isinstance(value, bool) or value is None:
        return False
    return not isinstance(value, str) or any(words(value))


def has_other_names(value: Any) -> bool:
    """Whether people may call the value by another name: a code such as USD, AAPL, SFO, or a number below ten."""
    if isinstance(value, str):
        return bool(_CAPITALS_PATTERN.fullmatch(value))
    return isinstance(value, int | float) and abs(value) < 10


def is_computable(value: Any, numbers: frozenset[float]) -> bool:
    """Whether one operation on two of these numbers, or on one of them and a usual factor, gives the value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    terms = sorted(numbers, key=abs)[:_MAX_NUMBERS]
    return any(near(value, result) for a in terms for b in (*terms, *_FACTORS) for result in _combine(a, b))


def _combine(left: float, right: float) -> Iterator[float]:
    yield from (left + right, left - right, right - left, left * right)
    if right:
        yield left / right
    if left:
        yield right / left


def _find_mismatch(
    query: Mentions, steps: Sequence[Triplet], calls: Sequence[tuple[int, Call]], scene: str, documents: Documents
) -> str:
    """Why the query seems to ask for something unrelated; "" if it does not. `scene`: other words about the steps."""
    query_words = {word for word in query.words if not word[0].isdigit()}
    argument_words = {word for _, call in calls for _, value in _list_arguments(call) for word in words(str(value))}
    solution_words = {word for _, call in calls for word in words(list_tool_words(documents, call.name))}
    solution_words |= {word for step in steps for word in _list_code_words(step.action)} | set(words(scene))
    about = Mentions(" ".join(solution_words | argument_words))
    if not any(about.names(word) for word in query_words) and not (query.numbers & about.numbers):
        return "the query has no word in common with what the solution does"
    return _find_contradiction(query_words, {call.name for _, call in calls}, solution_words, documents)


def synonym(word: str) -> str:
    """The first of the word's synonyms, which stands for all of them."""
    return _FIRST_SYNONYM_BY_VERB.get(word, word)


def _find_contradiction(query_words: set[str], tools: set[str], solution_words: set[str], documents: Documents) -> str:
    """Why the query asks for a tool of these applications that was not called; "" if it does not."""
    names = {tool: name for tool in documents if (name := [*words(tool)])}
    # The first word of a name is an application if several tools share it and it is not a verb.
    prefix_counts = Counter(name[0] for name in names.values() if len(name) > 1)
    app_words = {word for word, count in prefix_counts.items() if count > 1}
    if app_words <= _FIRST_SYNONYM_BY_VERB.keys():
        # A world without prefixes is one application. The first word of a name then says what the tool does.
        words_by_tool, applications = {tool: {name[0]} for tool, name in names.items()}, dict.fromkeys(names, "")
    else:
        words_by_tool = {tool: set(name[1:] if name[0] in app_words else name) for tool, name in names.items()}
        applications = {tool: name[0] for tool, name in names.items() if name[0] in app_words}
    called_words = {word for tool in tools for word in words_by_tool.get(tool, ())}
    if not called_words or {*map(synonym, called_words)} & {*map(synonym, query_words)}:
        return ""
    called_apps = {applications[tool] for tool in tools if tool in applications}
    for tool in names:
        if applications.get(tool) in called_apps and (
            asked_words := (words_by_tool[tool] - solution_words) & query_words
        ):
            return f"the query says {min(asked_words)!r}, which is what {tool} does, and not what the solution does"
    return ""


def list_words(documents: Documents, action: Action) -> str:
    """The words about an action: its arguments, its tools' names and documentation, or its code."""
    argument_values = (str(value) for call in action.calls for _, value in _list_arguments(call))
    tool_texts = (list_tool_words(documents, call.name) for call in action.calls)
    return " ".join((*argument_values, *tool_texts, *_list_code_words(action)))


def list_tool_words(documents: Documents, tool: str) -> str:
    """The name of a tool, its description and those of its parameters."""
    document = documents.get(tool, {})
    parameters = document.get("parameters", {}).get("properties", {})
    parameter_texts = (f"{name} {parameter.get('description', '')}" for name, parameter in parameters.items())
    return " ".join((tool, str(document.get("description", "")), *parameter_texts))


def _list_arguments(call: Call) -> Iterator[tuple[str, Any]]:
    """(argument, value) for every value of a call that a query has to name, at any depth."""
    return ((name, leaf) for name, value in call.arguments.items() for leaf in list_leaves(value) if is_specific(leaf))


def _list_code_words(action: Action) -> Iterator[str]:
    """The words of an action that is text; those of its names and literals if it is code."""
    for text in () if action.calls else list_names_and_literals(action):
        yield from words(text)


def _count_words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", normalise(text)))


def parse_action(action: Action) -> ast.Module:
    """The syntax tree of an action's code; empty if its text is not code."""
    try:
        return parse_code(Triplet(action, Observation(), 0))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


def list_names_and_literals(action: Action) -> Iterator[str]:
    """The names and literals of an action's code; its whole text if that is not code."""
    tree = parse_action(action)
    if not tree.body:
        yield action.text
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str() | int() | float() as value):
                yield str(value)


def find_raw_call(query: str, actions: Sequence[Action], tools: Collection[str]) -> str:
    """The part of the query that is a call: a code fence, a tool's name as in code, a call, or a set argument.

    "" if there is none. A text that is a long argument of the solution does not count.
    """
    calls = [call for action in actions for call in action.calls]
    nodes = (node for action in actions if not action.calls for node in ast.walk(parse_action(action)))
    solution_values = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    solution_values |= {str(leaf) for call in calls for leaf in list_leaves(call.arguments)}
    text = normalise_form("NFKC", query)
    for value in sorted((value for value in solution_values if len(value) >= _MIN_CODE_LENGTH), key=len, reverse=True):
        text = text.replace(normalise_form("NFKC", value), " ")
    if fenced_code := next((part for part in text.split("```")[1::2] if _SEPARATOR_PATTERN.sub("", part)), ""):
        return fenced_code
    parameters = {name for call in calls for name in call.arguments}
    tool_names = {*tools, *(call.name for call in calls)}
    tool_names |= {name.rpartition(".")[2] for name in tool_names}
    compact_names = {_SEPARATOR_PATTERN.sub("", name).casefold() for name in tool_names if len(_split_name(name)) > 1}
    for match in _NAME_PATTERN.finditer(text):
        # "Check-in" is a word, even if there is a tool check_in.
        is_code = len(_split_name(match[0])) > 1 and ("-" not in match[0].replace("->", "") or match[0] in tool_names)
        if is_code and _SEPARATOR_PATTERN.sub("", match[0]).casefold() in compact_names:
            return match[0]
    lower_names = {name.casefold() for name in tool_names}
    short_names = lower_names | {name.partition("_")[2] for name in lower_names}  # without their application
    argument_texts = {value.casefold() for value in solution_values | parameters}
    for match in _NAME_BRACKET_PATTERN.finditer(text):
        inner_words = {word for word in _SEPARATOR_PATTERN.split(match[3].casefold()) if word}
        # "Move (bread, friday)" is a call, and "move (at last)" is not.
        is_call = inner_words and inner_words <= argument_texts if match[2] else inner_words not in _SUFFIXES
        name = match[1].casefold()
        if is_call and (name if match[2] else name.rpartition(".")[2]) in (lower_names if match[2] else short_names):
            return match[0]
    for part in text.casefold().split("`")[1::2]:
        first_word, *other_words = _SEPARATOR_PATTERN.sub(" ", part).split() or [""]
        if first_word in short_names and other_words and argument_texts.issuperset(other_words):
            return part
    return next((match[0] for match in _SETTING.finditer(text) if {*match.groups()} & (_CALL_KEYS | parameters)), "")


def _split_name(name: str) -> list[str]:
    return [word for word in _SEPARATOR_PATTERN.split(_CAMEL_JOINT_PATTERN.sub(" ", name)) if word]


# At most this many values of a state are read, down to this depth, and this many conditions of a query.
_MAX_STATE_VALUES, _MAX_STATE_DEPTH, _CONDITIONS = 20_000, 8, 8
_NUMBER_BY_WORD = {"no": 0, **mention.NUMBER_BY_WORD}
# Words that bound a count → the comparison with the number.
_COMPARISONS = {phrase: getattr(operator, name) for name, some in mention.ENGLISH["bounds"].items() for phrase in some}
_PATTERNS = mention.patterns("conditions", BOUND="|".join(_COMPARISONS), NUMBER="|".join(_NUMBER_BY_WORD))
# What may be said of any value.
_VAGUE_WORDS = mention.ENGLISH["conditions"]["VAGUE"][0].split()


def find_false_condition(
    query: str, steps: Sequence[Triplet], changes: Collection[int], states: Sequence[Mapping[str, Any]]
) -> str:
    """The first condition that holds in no state up to the last change, although the solution acts on it; "" if none.

    `changes` are the positions of the steps that change the world, and `states` those before and after every step.
    If the query also says what to do otherwise, the solution must take the right one of the two branches.
    """
    texts = sentences(query)
    # A person's query has one or two.
    conditions = [(i, match) for i, text in enumerate(texts) if (match := _PATTERNS["if"].search(text))][:_CONDITIONS]
    if not changes or not conditions:
        return ""
    worlds = [_World(state) for index, state in enumerate(states) if index == 0 or index - 1 in changes][:-1]
    for index, match in conditions:
        text_before, text_after = texts[index][: match.start()], texts[index][match.end() :]
        end_match = _PATTERNS["end"].search(text_after) or _PATTERNS["else"].search(text_after)
        condition = text_after[: end_match.start()] if end_match else text_after
        truths = {_decide_condition(condition, text_before, world) for world in worlds}
        if len(truths) != 1 or None in truths:
            continue
        other_texts = [*texts[:index], *texts[index + 1 :]]
        if index + 1 < len(texts) and _PATTERNS["else"].match(texts[index + 1]):
            text_after = f"{text_after} {other_texts.pop(index)}"
        branch = _PATTERNS["else"].search(text_after)
        act, else_text = (text_after[: branch.start()], text_after[branch.end() :]) if branch else (text_after, "")
        actions = [steps[step].action for step in changes]
        if _acts_wrongly(
            f"{text_before} {act}", else_text, " ".join(other_texts), actions, truths != {match[1] == "unless"}
        ):
            return condition.strip()
    return ""


def _acts_wrongly(then: str, other: str, rest_text: str, actions: Sequence[Action], holds: bool) -> bool:
    """Whether the actions do what the query asks for in the other case: by verbs and values that only one branch has
    or, if the query has one branch, by those that appear nowhere else in it."""
    calls = [call for action in actions for call in _list_call_words(action)]
    if not other:
        then_words = {*map(synonym, words(then))}
        return not holds and any(call & then_words and not call <= {*map(synonym, words(rest_text))} for call in calls)
    right_words, wrong_words = ({*map(synonym, words(text))} for text in ((then, other) if holds else (other, then)))
    called_words = {word for call in calls for word in call}
    return bool(called_words & (wrong_words - right_words)) and not called_words & (right_words - wrong_words)


def _list_call_words(action: Action) -> Iterator[set[str]]:
    """The words of each call of an action, or of its code, with one word for all synonyms."""
    for call in action.calls:
        yield {*map(synonym, words(f"{call.name} {[*call.arguments.values()]}"))}
    if not action.calls:
        yield {synonym(word) for text in list_names_and_literals(action) for word in words(text)}


def _decide_condition(condition: str, text_before: str, world: "_World") -> bool | None:
    """Whether the condition holds in the world; None if that cannot be decided."""
    parts = _PATTERNS["number_of"].sub(r"there are \2 \1", condition.replace("exceeds", "is more than")).split(" and ")
    truths = [_decide_clause(clause, text_before, world) for clause in parts]
    return None if _PATTERNS["or"].search(condition) else False if False in truths else None if None in truths else True


def _decide_clause(condition: str, text_before: str, world: "_World") -> bool | None:
    """Whether one of several conditions that "and" joins holds."""
    match = _PATTERNS["count"].search(condition)
    sizes = (world.sizes(match["noun"]) or world.amounts(condition[: match.start()], match["noun"])) if match else []
    if (exists := _PATTERNS["exists"].search(condition)) and (exists["value"] or not sizes):
        return ((exists["value"] or exists["name"]) in world.names) != bool(exists["no"] or exists["not"])
    if some_match := _PATTERNS["some"].search(condition):
        return any(entry_counts) if (entry_counts := world.sizes(some_match["noun"])) else None
    if match and sizes:
        return None if _PATTERNS["not"].search(condition) else _count_fits(match, sizes)
    if value_match := _PATTERNS["is"].search(condition):
        subject = condition[: value_match.start()].strip()
        return world.has_value(text_before if _PATTERNS["pronoun"].fullmatch(subject) else subject, value_match)
    return None


def _count_fits(count_match: re.Match[str], sizes: Sequence[float]) -> bool | None:
    """Whether collections of these sizes fit the number that is said; None if it counts only some entries."""
    number = int(count_match["number"]) if count_match["number"].isdigit() else _NUMBER_BY_WORD[count_match["number"]]
    compare = _COMPARISONS.get(count_match["how"] or count_match["tail"], operator.eq)
    is_partial = bool(count_match["filter"] or count_match["more"]) or len(sizes) > 1
    if compare in (operator.gt, operator.ge):
        return (None if is_partial else True) if compare(sum(sizes), number) else False
    return None if is_partial else compare(sizes[0], number)


@dataclasses.dataclass(frozen=True)
class _World:
    """A state, read as entries with names."""

    state: Mapping[str, Any]

    @functools.cached_property
    def _entries(self) -> list[tuple[tuple[str, ...], Any]]:
        """(path, value) of everything in the state. An entry of a list is named by the texts that it holds."""
        entries: list[tuple[tuple[str, ...], Any]] = []
        stack: list[tuple[tuple[str, ...], Any]] = [((), self.state)]
        while stack and len(entries) < _MAX_STATE_VALUES:
            path, value = stack.pop()
            entries.append((path, value))
            if isinstance(value, Mapping) and len(path) < _MAX_STATE_DEPTH:
                stack += [((*path, fold_text(str(name))), inner_value) for name, inner_value in value.items()]
            elif isinstance(value, list | tuple) and len(path) < _MAX_STATE_DEPTH:
                for position, inner_value in enumerate(value):
                    texts = inner_value.values() if isinstance(inner_value, Mapping) else ()
                    names = {fold_text(text) for text in texts if isinstance(text, str)} or {str(position)}
                    stack += [((*path, name), inner_value) for name in names]
        return entries

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of entries that hold others, and all texts."""
        entry_names = {path[-1] for path, value in self._entries if path and isinstance(value, Mapping)}
        return frozenset(entry_names | {fold_text(value) for _, value in self._entries if isinstance(value, str)})

    def sizes(self, noun: str) -> list[int]:
        """How many entries each collection of this name has."""
        return [len(value) for name, value in self._collections if stem_word(name) == stem_word(noun)]

    @functools.cached_property
    def _collections(self) -> list[tuple[str, Any]]:
        """(last word of its name, value) of each value that has entries."""
        pairs = [(path[-1], value) for path, value in self._entries if path]
        return [(name.rpartition("_")[2], value) for name, value in pairs if isinstance(value, Mapping | list | tuple)]

    def amounts(self, subject: str, noun: str) -> list[float]:
        """The numbers of this name in the entries that the subject names."""
        noun_leaves = ((name, leaf) for name, leaf in self._list_leaves(subject) if stem_word(name) == stem_word(noun))
        return [leaf for _, leaf in noun_leaves if isinstance(leaf, int | float) and not isinstance(leaf, bool)]

    def _list_leaves(self, subject: str) -> list[tuple[str, Any]]:
        """(name, value) of all values in the entries that the subject names; of nested entries, in the inner one."""
        mentions = Mentions(subject)
        matching_entries = [(path, entry) for path, entry in self._entries if path and mentions.has_phrase(path[-1])]
        matching_entries = [item for item in matching_entries if isinstance(item[1], Mapping)] or matching_entries
        outer_paths = {path[:length] for path, _ in matching_entries for length in range(len(path))}
        inner_paths = {path for path, _ in matching_entries if path not in outer_paths}
        return [
            (path[-1], leaf)
            for path, leaf in self._entries
            if not isinstance(leaf, Mapping | list | tuple)
            and any(path[:size] in inner_paths for size in range(len(path) + 1))
        ]

    def has_value(self, subject: str, value_match: re.Match[str]) -> bool | None:
        """Whether an entry that the subject names has the value; None if it names none, or the value is unknown."""
        mentions, value, subject_leaves = Mentions(subject), value_match["value"], self._list_leaves(subject)
        if not subject_leaves:
            return None
        flags = [leaf for name, leaf in subject_leaves if name == value and isinstance(leaf, bool)]
        value_collections = [names for name, names in self._collections if stem_word(name) == stem_word(value)]
        # "The day of lunch is …" tells which of its values is meant.
        leaves = [(name, leaf) for name, leaf in subject_leaves if mentions.has_phrase(name)]
        is_definite = value_match["says"] or (leaves and value not in _VAGUE_WORDS) or any(map(str.isdigit, value))
        if not (flags or value_collections or is_definite or value in self.names or value in mention.WEEKDAYS):
            return None
        holds = (
            any(flags) if flags else any(Mentions(str(leaf)).has_phrase(value) for _, leaf in leaves or subject_leaves)
        )
        holds = holds or any(mentions.has_phrase(fold_text(str(name))) for names in value_collections for name in names)
        return holds != bool(value_match["no"])
