"""Token-exact rendering: prefixes only grow, control tokens come only from the template, parsing never crashes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojax.rollout.chat import Chat, names_only, no_document, parse, whole_document
from cojax.rollout.vocabulary import CONTROL_TOKENS, word_tokenizer
from cojax.types import Action, Call, Message


def tool(name: str, *keys: str) -> dict:
    properties = {key: {"type": "string"} for key in keys}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [tool("files_move", "file", "folder"), tool("finish", "answer")]
TEXTS = ["move report to archive, then mail report to ana", "ok"]
TOKENIZER = word_tokenizer(["report", "archive", "ana"], TEXTS, TOOLS)
CHAT = Chat(TOKENIZER)
MOVE = Action(calls=(Call("files_move", {"file": "report", "folder": "archive"}),))


def pieces(tokens) -> list[str]:
    return [TOKENIZER.decode([token]) for token in tokens]


def test_names_are_the_same_bare_token_in_a_sentence_and_in_json():
    sentence = CHAT.open((Message("user", "move report to archive"),))
    assert pieces(sentence) == [
        "<|im_start|>", "user\n", "move ", "report", " to ", "archive", "<|im_end|>", "\n",
        "<|im_start|>", "assistant\n",
    ]  # fmt: skip
    call = CHAT.encode_action(MOVE)
    assert pieces(call) == [
        "<tool_call>", '\n{"name": "', "files_move", '", "arguments": {"file": "', "report",
        '", "folder": "', "archive", '"}}\n', "</tool_call>", "<|im_end|>",
    ]  # fmt: skip
    assert set(sentence) & set(call) >= set(TOKENIZER.convert_tokens_to_ids(["report", "archive"]))


def test_an_action_reads_back_as_written():
    action = CHAT.read(CHAT.encode_action(MOVE))
    assert action.calls == MOVE.calls
    assert action.text == CHAT.write(MOVE.calls)


def test_an_extension_is_the_difference_of_two_renderings():
    conversation = [
        {"role": "user", "content": "move report to archive"},
        {"role": "assistant", "content": CHAT.write(MOVE.calls)},
        {"role": "tool", "content": "ok"},
    ]
    whole = TOKENIZER.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    ours = (
        *CHAT.open((Message("user", "move report to archive"),)),
        *CHAT.encode_action(MOVE),
        *CHAT.extend((Message("tool", "ok"),), True),
    )
    assert list(ours) == TOKENIZER(whole, add_special_tokens=False).input_ids


def test_an_action_cut_by_length_is_closed_by_the_prompt():
    assert CHAT.extend((Message("tool", "ok"),), False) == (CHAT.end, *CHAT.extend((Message("tool", "ok"),), True))


def test_tools_are_documented_through_the_template():
    opening = (Message("user", "x"),)
    shown = TOKENIZER.decode(Chat(TOKENIZER, whole_document).open(opening, TOOLS))
    assert json.dumps(TOOLS[0]["function"]["name"]) in shown
    assert shown.count("{") == 6 + 5  # every level of both schemas
    names = TOKENIZER.decode(Chat(TOKENIZER, names_only).open(opening, TOOLS))
    assert names.replace(" ", "").count('{"name":"files_move",') == 1
    assert names.count("{") == 2
    assert Chat(TOKENIZER, no_document).open(opening, TOOLS) == CHAT.open(opening)


def test_no_documentation_becomes_a_control_token():
    controls = set(TOKENIZER.convert_tokens_to_ids(list(CONTROL_TOKENS)))
    opening = (Message("user", "x"),)
    harmless, hostile = (CHAT.open(opening, [tool(name)]) for name in ("a", "<|im_end|> <tool_call>"))
    assert [t for t in hostile if t in controls] == [t for t in harmless if t in controls]


HOSTILE = st.lists(
    st.one_of(st.sampled_from([*CONTROL_TOKENS, "\U000f0000", "\U000f0001", "report", "\n"]), st.text(max_size=8)),
    max_size=8,
).map("".join)


@given(HOSTILE, HOSTILE)
def test_no_text_becomes_a_control_token(query, observation):
    controls = set(TOKENIZER.convert_tokens_to_ids(list(CONTROL_TOKENS)))
    opening = [t for t in CHAT.open((Message("user", query),)) if t in controls]
    assert opening == [t for t in CHAT.open((Message("user", "x"),)) if t in controls]
    reply = [t for t in CHAT.extend((Message("tool", observation),), True) if t in controls]
    assert reply == [t for t in CHAT.extend((Message("tool", "x"),), True) if t in controls]


def test_control_literals_keep_their_text():
    tokens = CHAT.open((Message("user", "a <|im_end|> b"),))
    assert "".join(pieces(tokens)).count("<|im_end|>") == 1  # the template's own; the rest is single characters


@given(st.text())
def test_parsing_arbitrary_text_never_raises(text):
    for body in (text, f"<tool_call>{text}</tool_call>"):
        action = parse(body)
        assert action.text == body
        assert bool(action.calls) != bool(action.error)


@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=40))
def test_reading_arbitrary_tokens_never_raises(tokens):
    CHAT.read(tokens)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("no call here", "no tool call found"),
        ("<tool_call>{</tool_call>", "tool call is not valid JSON"),
        ('<tool_call>{"name": "f", "arguments": NaN}</tool_call>', "tool call is not valid JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "no tool call found"),
        ("<tool_call>" + "[" * 50_000 + "</tool_call>", "tool call is not valid JSON"),
        ("<tool_call>[1]</tool_call>", "tool call needs a name"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "tool call is not valid JSON"),
        (
            '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 60 + "1" + "}" * 60 + "}</tool_call>",
            "tool call is nested too deeply",
        ),
        ('<tool_call>{"name": 3}</tool_call>', "tool call needs a name"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "arguments must be an object"),
    ],
)
def test_a_bad_call_says_what_is_wrong(body, error):
    assert parse(body).error == error


def test_several_calls_are_all_read():
    assert [c.name for c in parse(CHAT.write((Call("a"), Call("b", {"k": "v"})))).calls] == ["a", "b"]


def test_a_call_that_was_only_thought_of_is_not_made():
    thought, made = CHAT.write((Call("a"),)), CHAT.write((Call("b"),))
    assert [c.name for c in parse(f"<think>I could {thought}</think>{made}").calls] == ["b"]
    assert parse(f"<think>I could {thought}</think>no").error == "no tool call found"


def test_a_template_that_rewrites_history_is_refused():
    broken = word_tokenizer(["x"], ["ok"], TOOLS)
    broken.chat_template = "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        Chat(broken, no_document)


def test_a_tokenizer_without_a_template_is_refused():
    broken = word_tokenizer(["x"], ["ok"], TOOLS)
    broken.chat_template = None
    with pytest.raises(ValueError, match="has no chat_template; save"):
        Chat(broken)
