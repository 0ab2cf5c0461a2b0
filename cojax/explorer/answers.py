"""Finds answers that a solution contains as literals, in a call or in code, although no earlier step has shown them.

Validation replays a solution and compares answers, so a literal answer would always pass. In code an answer is
*written* if the call that ends the episode is at the top level of a block and its argument is a literal or a name of
one. A name has the value of the last top-level statement that sets it. Answers inside conditions, loops or functions
count as computed. A literal hidden there can only be found by validation's attempts, which see nothing but the query.
No code is run.
"""

import ast
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate, islice
from typing import Any

from cojax.types import Triplet
from cojax.unicode_forms import normalise_form

# The most characters of an action's code and of an answer, the deepest brackets in code, the most values in an answer.
_MAX_CODE_LENGTH, _LONGEST_ANSWER, _MAX_BRACKET_DEPTH, _MAX_ANSWER_VALUES = 20_000, 4_000, 80, 100
# The block of code that is run: the first one.
_CODE_BLOCK_PATTERN = re.compile(
    r"^[ \t]*```[ \t]*(?:python3?|py)[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,3})?(?!\w|\.\d)")
_COMMAS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # 1,234 may be one number or two
_WORD_EDGE_PATTERN = re.compile(r"(\b)|(?<!\w)(?!\w)")
_CASTS = {"str": str, "int": int, "float": float}
# A name of one of these counts as computed, because values may be added to it after it was set.
_CONTAINER_NODES = (ast.List, ast.Dict, ast.Set)

Bindings = Mapping[str, ast.expr]  # name → the expression that it was last set to


class _NotLiteral(Exception):
    """The expression holds more than literals."""


def find_answer_objections(steps: Sequence[Triplet], ending: str, parameter: str | None, answer: str = "") -> list[str]:
    """At most 5 objections to the written answers of these steps and to `answer`, which is given after them.

    `ending` is the tool that ends an episode; code calls it by the part after its last dot. If it is "", every call in
    the last step that has an argument `answer` gives an answer. `parameter` is the argument of `ending` that holds the
    answer, None if it has none.
    """
    try:
        return list(dict.fromkeys(_list_objections(steps, ending, parameter, answer)))[:5]
    except (RecursionError, MemoryError):
        return ["its code or its answer is nested too deeply to read"]
    except (SyntaxError, ValueError) as error:
        return [f"its code cannot be read: {' '.join(str(error).split())}"[:120]]


def list_written_answers(steps: Sequence[Triplet], ending: str, parameter: str | None) -> list[Any]:
    """The values that these steps write as answers; none if code cannot be parsed."""
    try:
        return [value for answers, _ in _read_answers(steps, ending, parameter) for value in answers]
    except (RecursionError, MemoryError, SyntaxError, ValueError):
        return []


def states_value(text: str, value: Any) -> bool:
    """Whether a text contains a value: as whole words, in any case and character width; a number by its value."""
    value_text, folded_text = str(value).strip(), normalise_form("NFKC", text).casefold()
    return 0 < len(value_text) <= _LONGEST_ANSWER and _Text(folded_text).shows(
        normalise_form("NFKC", value_text).casefold()
    )


def _read_answers(
    steps: Sequence[Triplet], ending: str, parameter: str | None
) -> "Iterator[tuple[list[Any], tuple[_Text, _Text]]]":
    """For each step: the answers that it writes, the text that it showed, and the literals that its code printed."""
    answer_parameter = parameter or ("" if ending else "answer")
    trees = [parse_code(step) for step in steps]
    bindings = _find_assignments(trees)
    for step_index, (step, tree) in enumerate(zip(steps, trees, strict=True)):
        ends_episode = step_index == len(steps) - 1 and step.observation.done
        end_calls = [call for call in step.action.calls if ending and call.name == ending]
        answers = [value for call in end_calls for value in list_values(call.arguments)]
        for call in _find_top_level_calls(tree) if answer_parameter else ():
            answers += _find_answers(call, ending.rpartition(".")[2], answer_parameter, ends_episode, bindings)
        yield answers, (_Text(step.observation.text), _Text("\n".join(map(str, _printed_literals(tree, bindings)))))


def _list_objections(steps: Sequence[Triplet], ending: str, parameter: str | None, answer: str) -> Iterator[str]:
    shown_texts: list[tuple[_Text, _Text]] = []  # of each step so far
    for step, (answers, step_texts) in zip(steps, _read_answers(steps, ending, parameter), strict=True):
        if len(answers) > _MAX_ANSWER_VALUES:
            yield f"its answer holds more than {_MAX_ANSWER_VALUES} values"
        for value in answers[:_MAX_ANSWER_VALUES]:
            yield from _check_shown(value, [*shown_texts, *_list_texts_before_end(step, ending)])
        shown_texts.append(step_texts)
    if answer:
        yield from _check_shown(answer, shown_texts)


def _list_texts_before_end(step: Triplet, ending: str) -> "Iterator[tuple[_Text, _Text]]":
    """The texts that the calls of one action showed before that action's call that ended the episode."""
    tool_names = [call.name for call in step.action.calls]
    if ending in tool_names[1:] and len(tool_names) == len(step.observation.messages):
        for message in step.observation.messages[: tool_names.index(ending)]:
            yield _Text(message.content), _Text("")


class _Text:
    """A text to search for values: text as whole words, numbers by value, booleans in any case."""

    def __init__(self, text: str) -> None:
        self.text = text

    @functools.cached_property
    def numbers(self) -> set[Decimal]:
        return {Decimal(token) for text in (self.text, _COMMAS.sub("", self.text)) for token in _NUMBER.findall(text)}

    @functools.cached_property
    def marked_text(self) -> str:
        return _mark_edges(self.text)

    def shows(self, value: str) -> bool:
        if _NUMBER.fullmatch(plain_number := _COMMAS.sub("", value)):
            return Decimal(plain_number) in self.numbers
        if value.lower() in ("true", "false"):
            return bool(re.search(rf"(?<!\w){value}(?!\w)", self.text, re.IGNORECASE))
        # The time of a search by pattern would grow with the product of both lengths.
        return value in self.text and _mark_edges(value) in self.marked_text


def _mark_edges(text: str) -> str:
    """The text with marks at word edges, so that one marked text contains another only as whole words."""
    return _WORD_EDGE_PATTERN.sub(lambda edge: "\ufdd0" if edge[1] is None else "\ufdd1", text)


def _check_shown(answer: Any, texts: Sequence[tuple[_Text, _Text]]) -> Iterator[str]:
    """An objection unless one of the steps showed the value and did not itself print it as a literal."""
    if answer is None:
        return
    word = str(answer).strip()
    if not (0 < len(word) <= _LONGEST_ANSWER and any(text.shows(word) and not own.shows(word) for text, own in texts)):
        yield f"no step shows the answer {word[:100]!r}"


def parse_code(step: Triplet) -> ast.Module:
    """An action's code: its first fenced block outside of thoughts; without a block its text, if that is Python.

    The module is empty if the action has no code. Raises ValueError for code beyond the limits, SyntaxError for a block
    that is not Python.
    """
    action_text = step.action.text.rpartition("</think>")[2].partition("<think>")[0]
    block = _CODE_BLOCK_PATTERN.search(action_text)
    code = block[1] if block else "" if step.action.calls else action_text
    depths = accumulate((char in "([{") - (char in ")]}") for char in code)
    if len(code) > _MAX_CODE_LENGTH or max(depths, default=0) > _MAX_BRACKET_DEPTH:
        raise ValueError(f"it has {len(code):,} characters, or brackets in more than {_MAX_BRACKET_DEPTH} brackets")
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError):
        if block:  # text without a fence need not be Python
            raise
        return ast.Module([], [])


def _find_assignments(trees: Sequence[ast.Module]) -> Bindings:
    """The names whose last top-level setting is a plain assignment, each with the expression assigned."""
    bindings: dict[str, ast.expr] = {}
    global_names: set[str] = set()
    for statement in (statement for tree in trees for statement in tree.body):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                bindings.pop(node.id, None)
            elif isinstance(node, ast.alias):
                bindings.pop(node.asname or node.name, None)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bindings.pop(node.name, None)
            elif isinstance(node, ast.Global):
                global_names |= {*node.names}
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            bindings |= {target.id: statement.value for target in targets if isinstance(target, ast.Name)}
    return {name: value for name, value in bindings.items() if name not in global_names}


def _find_top_level_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls that are made unconditionally: top-level ones, as statements or as values of assignments."""
    for statement in tree.body:
        if isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Call):
            yield statement.value


def _find_answers(call: ast.Call, tool: str, parameter: str, ends_episode: bool, bindings: Bindings) -> Iterator[Any]:
    """The written values that a call gives as an answer: a call of `tool`, or one with `parameter` in the last step."""
    func = call.func
    callee = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    is_ending = bool(tool) and callee == tool
    if not (is_ending or ends_episode):
        return
    expressions = [keyword.value for keyword in call.keywords if keyword.arg == parameter]
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(keyword.value, ast.Dict):
            items = zip(keyword.value.keys, keyword.value.values, strict=True)
            expressions += [value for key, value in items if isinstance(key, ast.Constant) and key.value == parameter]
    for expression in (*expressions, *(call.args[:1] if is_ending else ())):
        elements = expression.elts if isinstance(expression, ast.List | ast.Tuple | ast.Set) else [expression]
        for element in elements:
            try:
                yield from list_values(_evaluate_literal(element, bindings))
            except _NotLiteral:
                continue


def _evaluate_literal(node: ast.expr, bindings: Bindings) -> Any:
    """The value of a literal expression. Raises _NotLiteral for any other.

    A name has the value of the literal that it was set to. That literal may not contain names, so that no value grows
    beyond the size of the code.
    """
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in bindings and not isinstance(bindings[node.id], _CONTAINER_NODES):
            return _evaluate_literal(bindings[node.id], {})
        case ast.JoinedStr():
            return "".join(str(_evaluate_literal(element, bindings)) for element in node.values)
        case ast.FormattedValue(format_spec=None):
            return _evaluate_literal(node.value, bindings)
        case ast.UnaryOp(op=ast.USub()):
            return _add_literals(0, _evaluate_literal(node.operand, bindings), -1)
        case ast.BinOp(op=ast.Add()):
            return _add_literals(_evaluate_literal(node.left, bindings), _evaluate_literal(node.right, bindings))
        case ast.Call(func=ast.Name(id=cast), args=[argument], keywords=[]) if cast in _CASTS and cast not in bindings:
            return _cast_literal(_CASTS[cast], _evaluate_literal(argument, bindings))
        case ast.List() | ast.Tuple() | ast.Set():
            return [_evaluate_literal(element, bindings) for element in node.elts]
        case ast.Dict():
            return [_evaluate_literal(value, bindings) for value in node.values]
    raise _NotLiteral


def _cast_literal(convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        raise _NotLiteral from None


def _add_literals(left: Any, right: Any, sign: int = 1) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, int | float) and isinstance(right, int | float):
        with contextlib.suppress(OverflowError):
            return left + sign * right
    raise _NotLiteral


def _printed_literals(tree: ast.Module, bindings: Bindings) -> Iterator[Any]:
    """The literals that a block prints or ends in. To show them does not prove that the block found them."""
    for node in ast.walk(tree):
        expressions: Sequence[ast.AST] = ()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            expressions = node.args
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call):
            expressions = [node.value]
        for expression in expressions:
            try:
                yield from list_values(_evaluate_literal(expression, bindings))  # type: ignore[arg-type]
            except (_NotLiteral, ValueError):
                yield from _find_constants(expression, bindings)


def _find_constants(node: ast.AST, bindings: Bindings) -> Iterator[Any]:
    """The constants within an expression, except arguments of calls other than str, int and float."""
    if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _CASTS):
        return
    if isinstance(node, ast.Constant):
        yield node.value
    elif isinstance(node, ast.Name) and isinstance(constant := bindings.get(node.id), ast.Constant):
        yield constant.value
    for child in ast.iter_child_nodes(node):
        yield from _find_constants(child, bindings)


def list_values(value: Any) -> Iterator[Any]:
    """The first values within an answer, up to one more than allowed. Raises RecursionError if it nests too deep."""

    def walk(value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping | list | tuple):
            for element in value.values() if isinstance(value, Mapping) else value:
                yield from walk(element)
        else:
            yield value

    return islice(walk(value), _MAX_ANSWER_VALUES + 1)


def list_leaves(value: Any) -> Iterator[Any]:
    """The values within nested mappings and lists, in order."""
    stack = [value]
    while stack:
        element = stack.pop()
        if isinstance(element, Mapping):
            stack += reversed([*element.values()])
        elif isinstance(element, list | tuple):
            stack += reversed(element)
        else:
            yield element
