"""Ids and times that an MCP server draws anew: equal episodes see equal names, and the server gets its own ids back."""

from __future__ import annotations

import json

import pytest

from environments.mcp.world import Ids


def test_two_plays_with_other_ids_look_alike():
    answers = []
    for first, second in (("ab12", "cd34"), ("ef56", "aa78")):
        ids = Ids("[a-f]{2}[0-9]{2}")
        answers.append((
            ids.hide_in_text(f"made {first}, after {second}"),
            ids.hide_in_text(json.dumps({"id": second, "by": {first: 1}})),
            ids.hide([first, "none", 3, None]),
        ))  # fmt: skip
    assert answers[0] == answers[1]
    assert answers[0] == ("made #id1, after #id2", '{"id": "#id2", "by": {"#id1": 1}}', ["#id1", "none", 3, None])


@pytest.mark.parametrize(
    ("answer", "real"),
    [('{"id": 4711}', 4711), ('{"id": "4711"}', "4711"), ("made 4711", 4711), ('{"id": 4711.5}', 4711.5)],
)
def test_an_id_goes_back_as_what_it_was(answer, real):
    ids = Ids(r"\d{4}(\.\d)?")
    assert "#id1" in ids.hide_in_text(answer)
    shown = ids.show({"id": "#id1", "note": "of #id1 and #id9"})
    assert shown == {"id": real, "note": f"of {real} and #id9"}
    assert type(shown["id"]) is type(real)


def test_a_json_value_tells_more_than_prose():
    ids = Ids(r"\d{4}")
    ids.hide_in_text("made 4711")
    ids.hide_in_text('{"id": "4711"}')
    assert ids.show("#id1") == "4711"


def test_without_a_pattern_nothing_changes():
    ids = Ids("")
    assert ids.hide_in_text('{"id":  4711}') == '{"id":  4711}'
    assert (ids.hide({"a": 4711}), ids.show("#id1")) == ({"a": 4711}, "#id1")
