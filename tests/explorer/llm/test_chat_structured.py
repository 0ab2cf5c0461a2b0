"""Records that a chat model spells: where they are found, how they are repaired, and endpoints without schemas."""

import contextlib

import pytest
from chat_calls import HELLO, Word, client, failure, reply
from chat_server import Answer, in_turn, says, serving

from cojax.explorer.llm.chat_model import ChatFailure, Journal, structured_reply

BAD = [
    (Answer(""), "empty"),
    (Answer(None), "empty"),
    (Answer(None, tool_calls=[{"function": {"name": "rm"}}]), "empty"),
    (Answer("no json here"), "invalid"),
    (Answer('{"word": '), "invalid"),
    (Answer('{"word": 3}'), "invalid"),
    (Answer('{"other": "hi"}'), "invalid"),
    (Answer('{"word": NaN}'), "invalid"),
    (Answer('{"word": 1e999}'), "invalid"),
    (Answer('{"word": "\\ud800"}'), "invalid"),
    (Answer('{"word": "hi", "x": ' + "[" * 50 + "]" * 50 + "}"), "invalid"),
    (Answer("[" * 100_000), "invalid"),
    (Answer('{"word": "hi"}', finish="length"), "truncated"),
]


@pytest.mark.parametrize(
    "text",
    [
        '{"word": "hi"}',
        '```json\n{"word": "hi"}\n```',
        'Sure! Here it is: {"word": "hi"} Anything else?',
        '<think>{"word": "no"}</think>{"word": "hi"}',
        '<tool_call>\n{"word": "hi"}\n</tool_call>',
    ],
)
def test_json_is_found_where_models_put_it(text: str) -> None:
    with serving(in_turn(Answer(text))) as server:
        chat_model = client(server)
        assert structured_reply(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p").word == "hi"
        assert server.requests == 1


@pytest.mark.parametrize(("answer", "kind"), BAD)
def test_a_reply_that_cannot_be_used_may_be_repaired_once(answer: Answer, kind: str) -> None:
    with serving(in_turn(answer, says({"word": "hi"}))) as server:
        chat_model = client(server)
        assert structured_reply(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p").word == "hi"
        assert f"({kind})" in server.bodies[1]["messages"][-1]["content"]
    with serving(in_turn(answer)) as server:
        chat_model = client(server)
        with pytest.raises(ChatFailure) as caught:
            structured_reply(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p")
        assert (caught.value.kind, server.requests) == (kind, 2)


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ("unknown field response_format", "response_format, set llm.send_schema to False"),
        ("Unrecognized request argument: seed", "seed, set llm.send_seed to False"),
    ],
)
def test_a_refusal_that_names_an_optional_part_names_the_setting_that_leaves_it_out(said, setting, caplog) -> None:
    with serving(in_turn(Answer(said, status=400))) as server:
        chat_model = client(server)
        with pytest.raises(ChatFailure, match=f"refused: HTTP 400: {said}. If the endpoint does not take {setting}"):
            structured_reply(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p")
        assert server.requests == 1
    assert setting in caplog.text


def test_a_refusal_of_something_else_names_no_setting() -> None:
    with serving(in_turn(Answer("bad words", status=400))) as server:
        chat_model = client(server)
        with pytest.raises(ChatFailure) as caught:
            structured_reply(chat_model, HELLO, Word, budget=chat_model.begin(), seed=1, place="p")
        assert str(caught.value) == "refused: HTTP 400: bad words"
    with serving(in_turn(Answer("no schema here", status=400))) as server:
        assert failure(client(server)).reason == "HTTP 400: no schema here"


def test_parts_that_are_switched_off_are_never_sent_and_calls_differ_by_their_seed_all_the_same(tmp_path) -> None:
    with serving(in_turn(says({"word": "hi"}))) as server:
        chat_model = client(server, Journal(tmp_path / "journal.jsonl"), send_schema=False, send_seed=False)
        budget = chat_model.begin("0/5")
        for seed in (1, 2, 2):
            assert structured_reply(chat_model, HELLO, Word, budget=budget, seed=seed, place="p").word == "hi"
        expected = {"model", "messages", "temperature", "max_tokens"}
        assert [body.keys() for body in server.bodies] == [expected, expected]
        assert [record["sent"].keys() for record in chat_model.journal.read()] == [expected, expected]


def test_what_an_endpoint_refused_is_asked_anew_once_the_part_is_left_out(tmp_path) -> None:
    def script(body, server):
        return Answer("no response_format", status=400) if "response_format" in body else says({"word": "hi"})

    with serving(script) as server:
        for settings, requests in (({}, 1), ({}, 1), ({"send_schema": False}, 2)):
            chat_model = client(server, Journal(tmp_path / "journal.jsonl"), **settings)
            budget = chat_model.begin("0/5")
            with pytest.raises(ChatFailure) if not settings else contextlib.nullcontext():
                structured_reply(chat_model, HELLO, Word, budget=budget, seed=1, place="p")
            assert server.requests == requests


def test_the_newer_name_of_the_limit_is_used_once_an_endpoint_asks_for_it(tmp_path) -> None:
    def script(body, server):
        if "max_tokens" in body:
            return Answer("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", status=400)
        return Answer("hi")

    with serving(script) as server:
        chat_model = client(server, Journal(tmp_path / "journal.jsonl"), attempts=1)
        budget = chat_model.begin()
        for seed in (1, 2):
            assert reply(chat_model, budget, seed=seed).text == "hi"
        assert [body.get("max_completion_tokens") for body in server.bodies] == [None, 50, 50]
        assert budget.requests == 4_000 - 3
        assert chat_model.figures()["retries"] == 0
        assert [record["sent"]["max_completion_tokens"] for record in chat_model.journal.read()] == [50, 50]
