"""Output on the terminal and in the log file."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console
from rich.control import Control
from rich.table import Table

from cojax.report.console import (
    CONSOLE,
    estimate_seconds,
    format_step,
    format_time,
    list_extra_lines,
    show_bar,
    show_step,
    show_summary,
)

RECORD = {
    "step": 7,
    "success": 0.414,
    "reward": 0.5,
    "live_groups": 1.0,
    "signals": {"forgetting": 1, "boundary": 8, "rare": 3},
    "tasks": 140,
    "loss": -0.0132,
    "seconds": {"generation": 1.0, "update": 0.9, "total": 2.0},
}


def plain_console() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, highlight=False, width=80), file


def test_a_name_between_colons_is_no_picture() -> None:
    with CONSOLE.capture() as shown:
        CONSOLE.print("mine:fire: not found", markup=False)
    assert shown.get() == "mine:fire: not found\n"


def test_readable_durations() -> None:
    assert [format_time(s) for s in (0.04, 9.94, 12.3, 125, 3725, 59.9)] == [
        "0.0 s",
        "9.9 s",
        "12 s",
        "2:05",
        "1:02:05",
        "1:00",
    ]


def test_the_line_of_a_step() -> None:
    assert format_step(RECORD, step_count=80, eta_s=146.0).plain == (
        "step  7/80  success  41 %  reward 0.50  live 100 %  signals F1  B8  R3    pool  140"
        "  loss -0.0132   2.0 s  ETA 2:26"
    )


def test_a_step_without_gradient_has_no_loss_and_lines_stay_whole_without_colour() -> None:
    console, file = plain_console()
    show_step({**RECORD, "loss": None, "signals": {}}, 80, console=console)
    assert file.getvalue() == (
        "step  7/80  success  41 %  reward 0.50  live 100 %  signals F0  B0  R0    pool  140   2.0 s\n"
    )


def test_an_evolution_and_an_evaluation_have_lines_of_their_own() -> None:
    console, file = plain_console()
    evolution = {
        "expeditions": 24,
        "drafts": 90,
        "accepted": 40,
        "retained": 0,
        "discarded": 39,
        "added": {"boundary": 28, "rare": 12},
    }
    show_step({**RECORD, "evolution": evolution, "dev": {"success": 0.31, "partial": 0.6}}, 80, console=console)
    assert file.getvalue().splitlines()[1:] == [
        "     evolved 24 expeditions → 90 drafts → 40 accepted, 39 discarded → new tasks: 28 boundary, 12 rare",
        "     dev success 31 %, partial reward 60 %",
    ]


def test_an_evolution_without_expeditions_says_why() -> None:
    console, file = plain_console()
    idle = {"expeditions": 0, "drafts": 0, "accepted": 0, "retained": 0, "discarded": 0, "added": {}}
    idle["idle"] = "no signals in 16 episodes since the last evolution"
    show_step({**RECORD, "evolution": idle}, 80, console=console)
    assert file.getvalue().splitlines()[1:] == [
        "     evolved no expedition: no signals in 16 episodes since the last evolution"
    ]


def test_the_estimate_leaves_the_compiling_step_out() -> None:
    assert estimate_seconds([60.0, 2.0], 10) is None
    assert estimate_seconds([60.0, 2.0, 4.0], 10) == 30.0


def test_a_bar_counts() -> None:
    console, file = plain_console()
    with show_bar("episodes", console=console) as advance:
        advance(2)
        advance()
    assert file.getvalue() == "episodes: 3 in 0.0 s\n"


def test_a_bar_on_a_terminal_shows_count_and_total() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    with show_bar("episodes", 4, console) as advance:
        advance(3)
    assert "3/4" in file.getvalue()


def test_an_evolution_with_a_probe_tells_what_validation_refused_and_what_was_not_admitted() -> None:
    evolution = {
        "expeditions": 60, "drafts": 65, "accepted": 6, "retained": 0, "discarded": 59, "added": {"posterior": 6},
        "probe": {"candidates": 60, "episodes": 240},
    }  # fmt: skip
    (line,) = list_extra_lines({"evolution": evolution})
    assert " ".join(line.plain.split()) == (
        "evolved 60 expeditions → 65 drafts → 60 valid tasks tried in 240 episodes → "
        "6 accepted, 5 discarded, 54 not admitted → new tasks: 6 posterior"
    )


def test_the_closing_table() -> None:
    console, file = plain_console()
    summary = {
        "origin": {"folder": "models/SmolLM2[0]", "shown": 0, "steps": 80, "evolve": "feedback"},
        "zero_shot": 0.241,
        "final": 0.489,
        "trials": [0.489, 0.531],
        "steps": 80,
        "tasks_initial": 100,
        "tasks_final": 380,
        "signals": {"forgetting": 11, "boundary": 900, "rare": 1000},
        "verdicts": {"accepted": 280, "retained": 0, "discarded": 100, "not admitted": 20},
        "probe": {"candidates": 300, "episodes": 2400, "turns": 5000, "tokens": 40000},
        "added": {"boundary": 200, "rare": 80},
        "outcomes": {"finished": 10240},
        "seconds": {"warm_start": 150.0, "generation": 60.0, "update": 30.0, "total": 100.0},
        "tokens": {"sampled": 1234567, "trained": 1200000},
        "logprob_mismatch": 1.2e-06,
    }
    show_summary(summary, "runs/desk/report.html", console)
    rows = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    for row in (
        "policy: pretrained from SmolLM2[0], shown no demonstrations, then co-evolved for 80 steps",
        "held-out success, zero-shot 24.1 %",
        "held-out success, final 48.9 %",
        "after 2 trials 53.1 %",
        "gain +24.8 points",
        "tasks, start → end 100 → 380",
        "signals 11 forgetting, 900 boundary, 1000 rare",
        "verdicts 280 accepted, 0 retained, 100 discarded, 20 not admitted",
        "probe 300 valid tasks tried in 2,400 episodes, 40,000 tokens",
        "tasks added 200 boundary, 80 rare",
        "generation 1:00 60.0 % ██████████████████",
        "update 30 s 30.0 % █████████",
        "everything else 10 s 10.0 % ███",
        "warm start (before) 2:30",
        "report: runs/desk/report.html",
    ):
        assert row in " ".join(rows), row  # a long row is wrapped


def test_kinds_of_signal_from_outside_have_letters_of_their_own() -> None:
    counts = {"boundary": 1, "forgetting": 2, "rare": 3, "slow": 4, "ready": 5}
    assert "signals F2  B1  R3  S4  Re5    pool" in format_step({**RECORD, "signals": counts}, step_count=80).plain


def test_dynamic_sampling_shows_how_many_groups_it_sampled() -> None:
    record = {**RECORD, "groups_live": 4.0, "groups_sampled": 9}
    assert "reward 0.50  live 4 of 9  signals" in format_step(record, step_count=80).plain


def test_the_log_gets_what_the_console_says_as_plain_lines(caplog: pytest.LogCaptureFixture) -> None:
    with CONSOLE.capture():
        CONSOLE.print("before")
        with caplog.at_level(logging.INFO, "cojax.report.console"):
            CONSOLE.print("[bold]plain[/x] :fire:", Control())
            CONSOLE.print("as [it] is", markup=False)
            CONSOLE.print(Control.bell())
            show_step(RECORD, 120, console=CONSOLE)
    assert [record.getMessage() for record in caplog.records] == [
        "[bold]plain[/x] :fire:",
        "as [it] is",
        format_step(RECORD, 120).plain,
    ]


def test_text_from_elsewhere_moves_no_cursor_and_ends_no_style(caplog: pytest.LogCaptureFixture) -> None:
    hostile = "\x1b]0;x\x07\x1b[2J\x9b1m\r\u202e[/x]"
    table = Table()
    table.add_row(hostile)
    with CONSOLE.capture() as shown, caplog.at_level(logging.INFO, "cojax.report.console"):
        CONSOLE.print(f"error: {hostile}")
        CONSOLE.print(table)
    for text in (shown.get(), *(record.getMessage() for record in caplog.records)):
        assert text.replace("\n", "").isprintable()
    assert "error: \\x1b]0;x" in shown.get()
