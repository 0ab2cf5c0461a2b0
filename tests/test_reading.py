"""Texts of models, explorers and environments' children are read in time linear in their length.

The bound is in CPU time, the least of three, and about ten times what reading takes; quadratic reading takes minutes.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from cojax.drafts import find_flaw
from cojax.environment import replies
from cojax.explorer import answers as shown_answers
from cojax.explorer.llm import abstraction, chat_client
from cojax.explorer.llm import chat_model as chat_model
from cojax.explorer.llm import explorer as acting
from cojax.explorer.llm import prompting as wording
from cojax.explorer.scripted.explorer import Ending
from cojax.openai_api import read_error, redact
from cojax.rollout import chat, endpoint
from cojax.rollout.vocabulary import train_byte_tokenizer, word_tokenizer
from cojax.signals.tools import tools_of
from cojax.types import Action, Call, Message, Observation, Task, TaskDraft, Trajectory, Triplet, Turn, normalise
from cojax.validation import Exclusions, answers, consistency, mention, safety
from environments.appworld import environment as appworld
from environments.appworld.report import normalise_answer
from environments.bfcl import calls
from experiments.study import reflexion

TASK = Task("desk", "move report", {})
EXCLUSIONS = Exclusions.of([Task("desk", "move report to archive, then mail it to ana and to bob", {})], 0.6)
CHATS = [chat.Chat(word_tokenizer(["report"], ["move report"], [])), chat.Chat(train_byte_tokenizer([], 512))]


class Record(BaseModel):
    query: str
    steps: list[int] = []


def shown(text: str, *actions: Action) -> list[Triplet]:
    """Two steps with this observation; the second is the last."""
    said = Message("tool", text)
    return [Triplet(action, Observation((said,), done=action is actions[-1]), 0) for action in actions]


def answered(text: str) -> None:
    """Looks for many answers of the greatest length, none of which is there, in long observations."""
    given = [text[: 4_000 - cut] + "!y"[cut % 2] for cut in range(90)]
    steps = [*shown(text, Action(), Action()), *shown("", Action(calls=(Call("finish", {"answer": given}),)))]
    shown_answers.find_answer_objections(steps, "finish", "answer", text[:3_000])


def coded(text: str) -> None:
    steps = shown(text, Action(f"```python\n{text[:19_000]}\n```\n"), Action(text))
    shown_answers.find_answer_objections(steps, "apis.supervisor.complete_task", "answer", text[:3_000])


RULES = Ending("finish", "answer"), "\n---\n", 1


def drafted(text: str) -> None:
    actions = dict(enumerate(shown(text, Action(text), Action(text, (Call(text[:99], {"answer": text}),))), 1))
    draft = abstraction.Draft(query=text, steps=[1, 2] * 999, answer=text, description=text, criterion=text)
    abstraction.make_draft(draft, actions, TASK, *RULES)


def dangerous(text: str) -> None:
    safety.find_violated_rule(TaskDraft("desk", {}, "", text, (Action(f"rm -{text}"),), ""))


def rendered(text: str) -> None:
    for one in CHATS:
        one.extend((Message("tool", text),), True)
        one.encode_action(Action(text))


def _completion(text: str) -> None:
    with contextlib.suppress(TypeError):  # as by the client
        chat_client.read_completion(json.loads(text), 9)


SENT = Action(calls=(Call("send_mail", {"text": "a", "x": "1"}),))


def conditioned(text: str) -> None:
    state = {"mails": {"a": {"text": text, "s": 1}, text[:99]: {"x": [text, "ab"]}}}
    for said in (text, f"if {text}", "If there are 9 a. If a is b, stop. " * 9 + text):
        consistency.find_false_condition(said, shown(text, SENT, SENT), [0], [state] * 3)


def asked(text: str) -> None:
    for said in (text, f"What {text}", "Tell the " + text.replace(" ", ", tell the ")):
        answers.may_ask(said, {"mail", "send"}, {"a"})


def hinted(text: str) -> None:
    for answer in ("amber", text[:1_000], text[7:4_000] + "xy"):
        answers.find_hint(text, answer)


# Reader → how it reads, and the most characters of a text.
READERS: dict[str, tuple[Callable[[str], object], int]] = {
    "actions": (chat.parse, 400_000),
    "calls": (lambda text: chat.parse(f"<tool_call>{text}</tool_call>"), 100_000),
    "JSON": (chat.read_json, 400_000),
    "JSON text": (lambda text: chat.read_json(f'"{text}"'), 200_000),
    "rendering": (rendered, 8_000),
    "an endpoint": (lambda text: endpoint.parse_reply((text, (("a", "b", text),))), 200_000),
    "records": (lambda text: chat_model.parse_reply(chat_model.ModelReply(text), Record), 200_000),
    "fenced records": (
        lambda text: chat_model.parse_reply(chat_model.ModelReply('```json\n{"query":"' + text), Record),
        200_000,
    ),
    "answers": (answered, 8_000),
    "code": (coded, 12_000),
    "drafts": (drafted, 8_000),
    "code blocks": (lambda text: appworld.find_code(Action(text)), 200_000),
    "an open code block": (lambda text: appworld.find_code(Action("```python\n" + text)), 200_000),
    "Python calls": (calls.parse_call, 20_000),
    "arguments": (lambda text: calls.explain_refusal({text: [text]}), 200_000),
    "tools in code": (lambda text: tools_of(Action(text), "appworld"), 200_000),
    "thoughts": (lambda text: reflexion.write_request(_failed(text), 4_000), 200_000),
    "actions in a canonical form": (lambda text: acting._make_action_key(f"f({text})"), 200_000),
    "keys": (lambda text: redact(text, "sk-aaaaaaaaaaaaaaaaaaaa"), 200_000),
    "errors of servers": (lambda text: read_error(text.encode("utf-8", "replace")), 200_000),
    "completions": (_completion, 200_000),
    "prompts": (lambda text: wording.fill(wording.data(text)), 200_000),
    "sameness of queries": (normalise, 50_000),
    "replies of children": (lambda text: replies.bound_messages((Message("tool", text),), 16_000), 200_000),
    "answers in AppWorld": (normalise_answer, 200_000),
    "dangers": (dangerous, 8_000),
    "queries": (lambda text: find_flaw(text, len(text), ["<|im_end|>", "[/INST]"]), 20_000),
    "what a query says": (lambda text: mention.Mentions(text).names(text[:2_000] + "y 12.5"), 4_000),
    "what a query asks": (asked, 4_000),
    "answers in disguise": (hinted, 4_000),
    "calls in a query": (lambda text: consistency.find_raw_call(text, [SENT], ["send_mail", "a"]), 20_000),
    "conditions": (conditioned, 4_000),
    "evaluation tasks": (lambda text: EXCLUSIONS.find_rule(Task("desk", text, {})), 4_000),
}
UNITS = [
    "<tool_call>", "</tool_call>", "<tool_call></tool_call>", "<tool_call>{", "<tool_call>{}", "<tool_call>[",
    "<think>", "</think>", "<think></think>", "```python\n", "```python\n```\n", "```json\n", "```py ", "```", "`",
    "\n", " ", "\t", "\n ", "\r\n", "\u3000", "\\", '"', '"\\', "'", "{", "}", "[[", "[]", "[1,", '{"a":', "{{",
    "(", ")", "()", "f(x=", "1", "9", "1.", "0.", "1e", "1,234,", "-", "-1", "a", "ab", "a ", "a.b", "x=", "aA",
    "\u0301", "\u0315" * 99 + "\u0300" * 99, "e\u0301", "\u0f73", "\uff9e", "\ud83d", "\udc00", "\u200b",
    "\U000f0000", "漢", "İ", "ﷺ", "<|im_", "<|im_end|>", "apis.", "apis.a", "apis.a.b ", "#", "_", "; ", "true", "null",
    "then ", "s", "sk-", "a\n", "x" * 29 + " ", "\0",
]  # fmt: skip
ENDS = ["", 'x"}']
MOST = 2.0  # seconds
# Exceptions that reading raises on purpose.
REFUSED = (ValueError, KeyError, RecursionError, chat_model.ChatFailure)


def _failed(text: str) -> Trajectory:
    turn = Turn(Action(text), Observation((Message("tool", text),)))
    return Trajectory(TASK, opening=(Message("user", text),), turns=(turn, turn))


def seconds(read: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    with contextlib.suppress(REFUSED):
        read(text)
    return time.process_time() - began


@pytest.mark.parametrize("name", READERS)
def test_repetitions_are_read_in_linear_time(name):
    read, longest = READERS[name]
    for text in (unit * (longest // len(unit)) + end for unit in UNITS for end in ENDS):
        # Were its time quadratic, the whole would take 64 times as long as an eighth.
        if 64 * seconds(read, text[-len(text) // 8 :]) > MOST:
            is_fast = any(seconds(read, text) < MOST for _ in range(3))
            assert is_fast, f"{len(text):,} characters that end in {text[-30:]!r}"


OLD_FLAGS, FLAGS = re.compile(r"\brm\s+-\w*[rf]\w*\s+[/~*.]"), safety.ACTION_RULES["destructive command"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["rm", " ", "-", "r", "f", "a", "_", "/", "~", "."]), max_size=12).map("".join))
def test_flags_of_a_command_are_found_as_by_trying_each(text):
    assert bool(FLAGS.search(text)) == bool(OLD_FLAGS.search(text))


OLD_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
PIECES = [
    "<tool_call>", "</tool_call>", "<tool_call", "call>", '{"name": "f"}', '{"name": 1}', "{", "}", '"', "\\", "\n",
    "x",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@settings(deadline=None)
@given(TEXTS)
def test_calls_are_those_between_an_opening_and_the_next_closing(text):
    assert chat._find_call_bodies(text) == OLD_CALL.findall(text)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_calls_are_those_outside_of_thoughts(thought, text):
    expected = OLD_CALL.findall(text)
    assert chat._find_call_bodies(f"<think>{thought}</think>{text}") == expected
    assert chat._find_call_bodies(f"{thought}</think>{text}", is_thinking=True) == expected
    assert chat._find_call_bodies(f"{text}</tool_call><think>{thought}") == OLD_CALL.findall(f"{text}</tool_call>")


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "_", "-", ".", " ", "é", "1", "\n"]), max_size=10).map("".join)


@settings(deadline=None)
@given(WORDS, WORDS)
def test_an_answer_is_shown_where_it_stands_in_whole_words(text, said):
    if said and not shown_answers._NUMBER.fullmatch(shown_answers._COMMAS.sub("", said)):
        old = re.search(rf"(?<!\w){re.escape(said)}(?!\w)", text)
        assert shown_answers._Text(text).shows(said) == bool(old)


def test_a_draft_of_more_numbers_than_actions_is_refused_at_once():
    steps = dict(enumerate(shown("x", Action("a = 1"), Action("b = 2")), 1))
    draft = abstraction.Draft(query="q", steps=[1, 2] * 50_000)
    made = abstraction.make_draft(draft, steps, TASK, Ending("finish", "answer"), "", 1)
    assert "its actions are not in ascending order" in made.objections
    assert len(json.dumps([action.text for action in made.solution])) < 100
