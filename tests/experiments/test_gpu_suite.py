"""The suite `gpu` around its measurements: what hangs, dies or was measured before, and its tables."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from fake_sglang import until
from patience import patience

from benchmarks import __main__ as bench
from benchmarks.gpu import children, parts, records, runs, section, suite, tables
from benchmarks.gpu.kernels import measure_kernels
from benchmarks.gpu.parts import PARTS, Part
from cojax.policy import attention

ROOT = Path(__file__).parents[2]
NAMES = ("one", "two", "three")
ABOUT = {"commit": "c" * 40, "versions": {"jax": "9"}, "hardware": {"devices": ["A card"]}}
# In place of a section: it does what the first letter of its turn says, and writes a result like one.
PLAYED = """
import json, pathlib, sys, time
out, deeds, names = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
for name in names:
    print("begin", name, flush=True)
    with open(out / "turns", "a") as file:
        file.write(name + "\\n")
    deed = deeds.get(name, "")
    if deed == "hangs":
        time.sleep(600)
    if deed == "dies":
        sys.exit(7)
    (out / f"{name}.json").write_text(json.dumps({"part": name, "rows": [{"mfu": 0.5}], "seconds": 1.0}))
    print("end", name, flush=True)
"""


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Plays the suite with three parts and no runs; the parts that began, in order."""
    deeds: dict[str, str] = {}
    sections = {name: Part("first" if name != "three" else "second", 2, lambda kit: []) for name in NAMES}
    real = children.start_child

    def start(command: list[str], **settings: object) -> object:
        out = command[2].removeprefix("--out=")
        return real(["-c", PLAYED, out, json.dumps(deeds), *command[4:]], **settings)

    monkeypatch.setattr(suite, "PARTS", sections)
    monkeypatch.setattr(suite.children, "start_child", start)
    monkeypatch.setattr(runs, "RUNS", {})

    def played(**given: str) -> list[str]:
        deeds.clear()
        deeds.update(given)
        (tmp_path / "turns").write_text("")
        suite.gpu(minutes=1, out=str(tmp_path), kit=str(tmp_path / "kit"))
        return (tmp_path / "turns").read_text().split()

    return played


def found(folder: Path) -> dict[str, str]:
    said = {name: records.read_record(folder, name) or {} for name in NAMES}
    return {name: record.get("failed", "measured" if "rows" in record else "") for name, record in said.items()}


def running(argument: str) -> list[Path]:
    """Processes, other than this one's own, that have the text in their command."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in command.read_bytes():
                found.append(command)
    return found


def test_what_hangs_costs_its_own_time_and_the_others_follow(play: Callable[..., list[str]], tmp_path: Path) -> None:
    began = time.monotonic()
    assert play(one="hangs") == ["one", "two", "three"]
    assert found(tmp_path) == {"one": "it did not end within 2 s", "two": "measured", "three": "measured"}
    assert time.monotonic() - began < patience(30)


def test_what_dies_is_one_line_and_the_others_follow(play: Callable[..., list[str]], tmp_path: Path) -> None:
    assert play(two="dies") == ["one", "two", "three"]
    assert found(tmp_path)["two"] == "its process ended with status 7; see log.txt"
    assert found(tmp_path)["three"] == "measured"


def test_it_goes_on_with_what_was_not_measured_and_then_with_what_failed(
    play: Callable[..., list[str]], tmp_path: Path
) -> None:
    play(one="dies")
    (tmp_path / "three.json").write_text('{"part": "th')  # a damaged file is no result
    assert play() == ["three", "one"]
    assert found(tmp_path) == dict.fromkeys(NAMES, "measured")
    assert play() == []


def test_it_ends_in_its_minutes_and_does_not_blame_the_part(
    play: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "_MEASURING_SHARE", 1 / 60)  # one second of the minute
    play(one="hangs")
    assert found(tmp_path) == dict.fromkeys(NAMES, "")


def test_what_a_suite_started_ends_where_the_suite_is_killed(tmp_path: Path) -> None:
    child = ["-c", "import time; print('begun', flush=True); time.sleep(600)", str(tmp_path)]
    program = f"from benchmarks.gpu import children; children.start_child({child}).wait()"
    killed = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    assert killed.stdout is not None
    killed.stdout.readline()
    killed.kill()
    killed.wait()
    until(lambda: not running(str(tmp_path)))


def test_a_full_disk_is_one_line_and_what_was_measured_stays(
    play: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(records, "write_json", full)
    with pytest.raises(OSError, match="No space left"):  # of which the command makes one line, as of every OSError
        play(two="dies")
    assert found(tmp_path) == {"one": "measured", "two": "", "three": ""}


def test_a_card_that_is_too_small_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(kit: Path) -> list[dict[str, object]]:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 81.9 GiB")

    monkeypatch.setattr(section, "PARTS", {"one": Part("first", 2, refused)})
    section.measure_part("one", tmp_path, tmp_path)
    assert found(tmp_path)["one"].startswith("it does not fit into the card's memory: RESOURCE_EXHAUSTED")


@pytest.mark.parametrize(
    ("memory", "rounds"), [(0.0, [["desk", "smollm2"]]), (80.0, [["desk", "smollm2"]]), (16.0, [["desk"], ["smollm2"]])]
)
def test_runs_share_a_card_that_is_large_enough(
    memory: float, rounds: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.write_result(tmp_path, "ceilings", [{"memory_gb": memory}], 1.0, ABOUT)
    played: list[list[str]] = []
    monkeypatch.setattr(runs, "_run_side_by_side", lambda names, *rest, is_miniature: played.append(names))
    runs.play_runs(tmp_path, tmp_path, time.monotonic() + 100)
    assert played == rounds


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert bench.main(["gpu", f"--out={tmp_path / 'file'}"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_it_runs_only_where_it_is_named() -> None:
    assert "gpu" in bench.SUITES_ON_REQUEST


def test_without_the_values_of_a_cpu_the_numbers_say_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected\.npz is missing, the values of a CPU; make gpu-kit makes it"):
        parts.compare_numbers(tmp_path)


def test_kernels_are_measured_beside_blockwise_and_those_of_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreted(*arrays: jax.Array) -> jax.Array:
        return attention.run_triton(*arrays, interpret=True)

    def broken(*arrays: jax.Array) -> jax.Array:
        raise ValueError("no such card")

    monkeypatch.setitem(attention.KERNELS, "cpu", ((broken, lambda *_: True), (interpreted, lambda *_: True)))
    rows = measure_kernels(128, 16, (1, 2), 1)
    found = [(row["kernel"], row.get("segments"), row["result"]) for row in rows]
    assert found == [
        ("blockwise", 1, "measured"), ("blockwise", 2, "measured"), ("run_tokamax", None, "not served here"),
        ("run_triton", None, "not served here"), ("run_splash", None, "not served here"),
        ("broken", 1, "ValueError: no such card"), ("broken", 2, "ValueError: no such card"),
        ("interpreted", 1, "measured"), ("interpreted", 2, "measured"),
    ]  # fmt: skip
    assert all(0 < row["difference"] < 1e-2 for row in rows[-2:])
    # 16 heads of 16, and 128·129/2 pairs of tokens; both passes are 3.5 of the first.
    seconds, rate = rows[0]["forward_ms"].values[0] / 1e3, rows[0]["forward_tflops_per_second"].values[0] * 1e12
    assert seconds * rate == pytest.approx(4 * 16 * 16 * 8256)
    both = rows[0]["both_passes_ms"].median / 1e3 * rows[0]["both_passes_tflops_per_second"].median * 1e12
    assert both == pytest.approx(3.5 * 4 * 16 * 16 * 8256)


def test_a_cache_with_more_positions_than_it_needs(tmp_path: Path) -> None:
    [row] = PARTS["sample-4b-64-of-2048"].run(tmp_path)
    assert (row["batch"], row["max_length"], row["completion_tokens"]) == (4, 512, 4 * 8)


def test_an_update_of_several_rows_at_a_time(tmp_path: Path) -> None:
    [row] = PARTS["update-1.7b-dots-4-rows"].run(tmp_path)
    assert (row["remat"], row["micro_rows"], row["rows"], row["row_length"]) == ("dots", 4, 4, 64)


def test_every_part_has_a_place_in_the_tables(tmp_path: Path) -> None:
    figures = {
        "kind": "A card", "matmul_tflops_per_second": 700.0, "matmul_tflops_per_second_float32": 50.0,
        "bandwidth_gb_per_second": 3000.0, "shape": "s", "batch": 4, "rows": 2, "row_length": 64, "model": "dense",
        "dtype": "bfloat16", "update_seconds": 1.5, "mfu": 0.5, "prefill_seconds": 2.5, "decode_seconds": 3.5,
        "logits_difference": 1e-5, "steps": 20, "step_seconds": 0.25, "kernel": "run_triton", "segments": 8,
        "forward_ms": 1.25, "both_passes_ms": 4.5, "result": "measured",
    }  # fmt: skip
    for name in (*PARTS, *runs.RUNS):
        records.write_result(tmp_path, name, [figures], 1.0, ABOUT)
    records.write_failure(tmp_path, "update-4b", "it does not fit into the card's memory: asked too much", 2.0, ABOUT)
    shown = tables.make_tables(tmp_path)
    assert "### A card, " in shown
    assert "Measured ceilings: 700 TFLOP/s in bfloat16, 50 in float32, 3,000 GB/s." in shown
    for line in ("| s, 2 × 64 tokens | 1.50 | 0.50 |", "| dense, bfloat16 | 1.0e-05 |", "| desk | 20 | 0.25 | 1.50 |"):
        assert line in shown
    assert shown.count("| s, 4 | 2.50 |") == shown.count("| s, 4 | 3.50 |") == 6 + 2
    assert shown.count("| run_triton, 8 segments | 1.25 | 4.50 |") == 1
    assert "- Not measured: update-4b: it does not fit into the card's memory: asked too much" in shown


def test_the_page_has_the_tables_of_the_committed_records() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    folders = sorted(path for path in (ROOT / "results" / "gpu").iterdir() if path.is_dir())
    assert folders
    assert tables.update_page(text, folders) == text


def test_a_page_without_a_place_for_tables_and_a_file_that_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no lines <!-- begin"):
        tables.update_page("# Performance\n", [])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json is no record of the suite gpu"):
        tables.make_tables(tmp_path)
