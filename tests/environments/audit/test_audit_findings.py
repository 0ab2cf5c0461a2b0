"""Accepted findings and exit statuses; the page escapes what a world wrote."""

from __future__ import annotations

import pytest

from environments.audit.findings import Finding, count_open, exit_status, read_accepted, read_by_design, settle
from environments.audit.page import write_page


def finding(severity="high", **changes):
    fields = {
        "id": "drop/a/1", "attacker": "drop", "severity": severity, "verdict": "open", "task": "a", "rule": "ABC T.10",
        "query": "q", "attempt": "x", "why": "y", "mend": "z", "reward": 1.0, "honest_reward": 1.0,
    }  # fmt: skip
    return Finding(**{**fields, **changes})


def test_the_exit_status():
    assert exit_status([], [], "high") == 0
    assert exit_status([finding("medium")], [], "high") == 0
    assert exit_status([finding("medium")], [], "medium") == 1
    assert exit_status([finding("critical")], ["lost"], "high") == 1
    assert exit_status([finding("low")], ["lost"], "high") == 2
    assert exit_status([finding("critical")], [], "never") == 0
    assert exit_status([finding("critical", verdict="by design")], [], "low") == 0


def test_open_findings_are_counted_by_severity():
    found = [finding("high"), finding("high"), finding("low"), finding("critical", verdict="by design")]
    assert count_open(found) == {"critical": 0, "high": 2, "medium": 0, "low": 1}


def test_a_documented_finding_is_by_design():
    (entry,) = read_by_design({"BY_DESIGN": {"drop": "the rules of the benchmark"}})
    assert settle(finding(), [entry]).verdict == "by design"
    assert settle(finding(attacker="swap"), [entry]).verdict == "open"
    with pytest.raises(ValueError, match="BY_DESIGN is 3; expected attacker → the reason in words"):
        read_by_design({"BY_DESIGN": 3})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[accept]", "expected a TOML file with entries"),
        ('[[accept]]\nattacker = "drop"\n', "entry 1 is .*; expected task .*, reason, and attacker"),
        (
            '[[accept]]\nattacker = "drp"\ntask = "*"\nreason = "r"\n',
            "entry 1 is .*'drp'.*attacker, one of null, greeting, ",
        ),
        ('[[accept]]\nattacker = "drop"\ntask = "*"\nreason = " "\n', "entry 1 is"),
    ],
)
def test_a_wrong_file_names_the_entry(tmp_path, text, message):
    path = tmp_path / "accepted.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_accepted(str(path))


def test_the_page_escapes_what_a_world_wrote(tmp_path):
    hostile = finding(why="<script>alert(1)</script>\x1b[2J", query="{{FINDINGS}}", actions=(("<b>", "</samp>"),))
    summary = {"tasks": 1, "episodes": 2, "findings": {"high": 1}, "floor": {"null": 0.0}, "seed": 0, "attackers": {}}
    write_page(tmp_path / "page.html", "<i>", [hostile], summary)
    text = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J" in text
    assert text.count("<details") == 1
    assert "<code>&lt;b&gt;</code><samp>&lt;/samp&gt;</samp>" in text
