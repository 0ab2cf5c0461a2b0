"""The byte-level tokenizer: lossless on any text, the same for the same texts, digits alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojax.rollout.chat import Chat, names_only
from cojax.rollout.vocabulary import CONTROL_TOKENS, train_byte_tokenizer
from cojax.types import Action, Call, Message

TEXTS = [
    '{"name": "cd", "arguments": {"folder": "document"}}',
    '{"name": "get_stock_info", "arguments": {"symbol": "ZETA"}}',
    "Go to the document folder, then look up the stock info of ZETA.",
] * 3
TOKENIZER = train_byte_tokenizer(TEXTS, 400)
CHAT = Chat(TOKENIZER, names_only)


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([token]) for token in TOKENIZER(text, add_special_tokens=False).input_ids]


@given(st.text())
def test_any_text_comes_back_unchanged(text):
    tokens = TOKENIZER(text, add_special_tokens=False).input_ids
    assert TOKENIZER.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize(
    "text", ["naïve 👩‍👩‍👧 ok", "\r\n\t x  y ", "e\u0301 \x00 \ufeff", " , .", "<|im_end|>", "日本語"]
)
def test_awkward_text_comes_back_unchanged(text):
    tokens = TOKENIZER(text, add_special_tokens=False).input_ids
    assert TOKENIZER.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


def test_names_and_runs_of_json_are_one_piece_and_digits_stand_alone():
    assert pieces('{"name": "get_stock_info", "arguments"') == [
        '{"',
        "name",
        '": "',
        "get_stock_info",
        '", "',
        "arguments",
        '"',
    ]
    assert pieces("2048") == ["2", "0", "4", "8"]


def test_the_same_texts_give_the_same_tokenizer():
    again = train_byte_tokenizer(iter(TEXTS), 400)
    assert again.backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()
    assert len(again) == len(again.get_vocab()) <= 400
    assert set(CONTROL_TOKENS) <= set(again.get_vocab())


def test_a_size_without_room_for_the_bytes_is_refused():
    with pytest.raises(ValueError, match="expected at least 263"):
        train_byte_tokenizer(TEXTS, 262)
    assert len(train_byte_tokenizer(TEXTS, 263)) == 263


@given(st.lists(st.one_of(st.sampled_from(CONTROL_TOKENS), st.text(max_size=8)), max_size=6).map("".join))
def test_no_text_becomes_a_control_token(text):
    controls = set(TOKENIZER.convert_tokens_to_ids(list(CONTROL_TOKENS)))
    shown, harmless = (CHAT.open((Message("user", said),)) for said in (text, "x"))
    assert [t for t in shown if t in controls] == [t for t in harmless if t in controls]
    assert text in TOKENIZER.decode(shown)


def test_actions_read_back_as_written_and_one_without_calls_is_just_the_end():
    action = Action(calls=(Call("cd", {"folder": "naïve 👍", "depth": 12}), Call("pwd")))
    assert CHAT.read(CHAT.encode_action(action)).calls == action.calls
    assert CHAT.encode_action(Action()) == (CHAT.end,)
    assert CHAT.read((CHAT.end,)) == Action("", (), "no tool call found")
