"""The benchmark command: its arithmetic, what it counts and refuses, and a compiled update that depth does not grow."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import __main__ as bench
from benchmarks import folders
from benchmarks.machine import compute_bound_s, find_nominal_rates
from benchmarks.results import Spread, make_table, row_to_json, time_calls
from benchmarks.shapes import SHAPES, decode_bytes, decode_flops, model_config, update_flops
from benchmarks.step import Workload, _compute_mfu, _lay_out
from benchmarks.update import Rows, count_row_tokens, draw_batch, make_learner, update
from cojax.compile.programs import count_forward_flops, count_parameters, layer_weights
from cojax.compile.targets import CHIPS, Chip
from cojax.learner.optimizer import adamw
from cojax.policy import attention
from cojax.policy.config import ModelConfig

ROOT = Path(__file__).parents[2]
TINY = "hidden_size=32,intermediate_size=48,num_attention_heads=4,num_key_value_heads=2,head_dim=8,vocab_size=64"

# D 4, F 8, L 3, H 2, K 1, S 2, V 10.
DENSE = ModelConfig(10, 4, 8, 3, 2, 1, 2)
SPARSE = ModelConfig(
    10, 4, 8, 3, 2, 1, 2, tie_word_embeddings=False, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=5,
    model_type="qwen3_moe", dtype="bfloat16", param_dtype="bfloat16",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def compiled_hastily() -> Iterator[None]:
    """Half of the time here would go into optimising programs that run for milliseconds."""
    before = {
        name: jax.config.values[name] for name in ("jax_disable_most_optimizations", "jax_enable_compilation_cache")
    }
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert bench.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_weights_a_token_meets():
    # query 4·4, key and value 4·2 each, output 4·4: 48; gate, up and down 3·4·8: 96; three layers.
    assert layer_weights(DENSE) == 3 * (48 + 96) == 432
    # The router 4·4: 16; two experts of 3·4·5: 120.
    assert layer_weights(SPARSE) == 3 * (48 + 16 + 120) == 552


def test_operations_of_a_forward_and_an_update():
    # Two texts of 3 and 5 tokens: 2·432·8 in layers, 2·4·10·2 for two tokens' logits; 6 + 15 pairs of tokens, each two
    # products of 4 numbers in three layers: 4·3·4·21.
    assert count_forward_flops(DENSE, [3, 5], scored_tokens=2) == 6912 + 160 + 1008 == 8080
    scored = 6912 + 640 + 1008
    assert update_flops(DENSE, [3, 5], reference=False) == 3 * scored == 25_680
    assert update_flops(DENSE, [3, 5], reference=True) == 4 * scored
    assert count_forward_flops(SPARSE, [1], scored_tokens=1) == 2 * 552 + 2 * 40 + 48


def test_operations_of_answers_to_one_prompt():
    # A prompt of 3 tokens once and two answers of 2: 7 tokens in layers, 4 of them scored; 6 + 2·(4 + 5) pairs.
    assert update_flops(DENSE, [5, 5], reference=False, prompt_length=3) == 3 * (2 * 432 * 7 + 2 * 40 * 4 + 48 * 24)


def test_rows_of_answers_to_one_prompt(monkeypatch: pytest.MonkeyPatch):
    """All but the prompt's last token is in a row once; where a kernel computes attention, all is there twice."""
    found = {}
    for case in ("shared", "not shared"):
        length = count_row_tokens(DENSE, 4, 2, 2)
        rows = Rows(2, length, 2, 1, prompt_length=4, completion_length=2)
        batch = draw_batch(make_learner(DENSE, rows, adamw(1e-6), "none"), rows)
        assert not batch.segment_ids[2:].any()
        found[case] = [batch.segment_ids[:2], batch.prefix_ids[:2], batch.weights[:2] > 0]
        monkeypatch.setitem(attention.KERNELS, "cpu", ())
    shared, plain = ([np.unique(column, axis=0).astype(int).tolist() for column in found[case]] for case in found)
    assert shared == [[[1, 1, 1, 2, 2, 2, 3, 3, 3]], [[0, 0, 0, 1, 1, 1, 1, 1, 1]], [[0, 0, 0, 0, 1, 1, 0, 1, 1]]]
    assert plain == [[[1] * 6 + [2] * 6], [[0] * 12], [[0, 0, 0, 0, 1, 1] * 2]]


def test_bytes_of_a_decode_step():
    # 432 numbers in matrices, the tied embedding 40, norms 3·(4 + 4 + 2 + 2) + 4, four bytes each; keys and values of
    # 5 tokens for 7 conversations: 2·3·1·2·5·7 numbers.
    assert decode_bytes(DENSE, batch=7, context=5) == (432 + 40 + 40) * 4 + 420 * 4
    # One conversation visits 2 of 4 experts and reads one row of an embedding that is not the head.
    assert decode_bytes(SPARSE, batch=1, context=0) == pytest.approx((552 + 40 + 4 + 40) * 2)
    # Two of them are expected to visit 4·(1 − ½²) = 3.
    assert decode_bytes(SPARSE, batch=2, context=0) == pytest.approx((552 + 3 * 60 + 40 + 8 + 40) * 2)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ("0.6b", 596_049_920),
        ("1.7b", 1_720_574_976),
        ("4b", 4_022_468_096),
        ("7b", 7_615_616_512),
        ("30b-a3b", 30_532_122_624),
    ],
)
def test_shapes_are_the_published_ones(shape: str, count: int):
    assert count_parameters(SHAPES[shape]) == count


def test_a_shape_with_other_fields():
    config = model_config("nano", 2, ["hidden_size=64", "rope_theta=1e4"], "bfloat16", "float32")
    assert (config.num_hidden_layers, config.hidden_size, config.rope_theta) == (2, 64, 1e4)
    assert (config.dtype, config.param_dtype, config.vocab_size) == ("bfloat16", "float32", 4096)


def test_a_warm_up_is_not_counted():
    calls = iter([5.0, 1.0, 2.0])
    prepared = []
    first, spread = time_calls(lambda: next(calls), 2, lambda: prepared.append(1))
    assert next(calls, None) is None
    assert len(prepared) == 3
    assert first >= 0
    assert len(spread.values) == 2
    assert row_to_json({"seconds": Spread((3.0, 1.0, 5.0)), "shape": "nano"}) == {
        "seconds": 3.0,
        "shape": "nano",
        "values": {"seconds": [3.0, 1.0, 5.0]},
    }


@pytest.mark.real
def test_step_prints_one_object_with_what_was_counted(commands):
    done = commands.run(
        "experiments.bench", "step", "--json", "--steps=3", "--layers=2", f"--override={TINY}", "--prompts=2",
        "--samples=4", "--prompt-length=6", "--completion-length=10", "--learning-rate=1e-2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["suite"] == "step"
    assert (found["prompt_tokens"], found["completion_tokens"]) == (2 * 4 * 6, 2 * 4 * 10)
    assert found["tokens_trained"] == 2 * 4 * 10
    assert (found["steps"], found["updates"]) == (3, 3)
    # Embedding 64·32; two layers of 32·8·(4 + 2 + 2 + 4), 3·32·48 and norms 2·32 + 2·8; the last norm.
    assert found["parameters"] == 2048 + 2 * (3072 + 4608 + 80) + 32
    assert found["dtype"] == "float32"
    # Such a rate takes the policy away from its reference.
    assert found["kl"] > 1e-6
    assert found["logprob_mismatch"] < 1e-4
    assert 0.05 < found["peak_rss_gb"] < 10
    for name in ("step_seconds", "generation_seconds", "update_seconds", "sync_seconds"):
        assert len(found["values"][name]) == 2
        assert found[name] == pytest.approx(sum(found["values"][name]) / 2)
    parts = [found["values"][f"{name}_seconds"] for name in ("generation", "update", "sync")]
    assert [sum(step) for step in zip(*parts, strict=True)] == pytest.approx(found["values"]["step_seconds"])
    # A forward: the 6 tokens of a prompt once for its two texts of 10, in four rows, through 2 · 7,680 weights;
    # 80 logits of 64 · 32; and attention 32 wide, to 21 pairs of a prompt's tokens, and 10 · 6 + 55 of each text's.
    pairs, width = 4 * (21 + 2 * 115), 4 * 8
    forward = 2 * 2 * 7680 * 4 * 26 + 2 * 64 * 32 * 80 + 4 * 2 * width * pairs
    assert found["update_tflop"] == pytest.approx(4 * forward / 1e12)
    assert 0 < found["generation_mfu"] < 1
    rate = found["matmul_tflops_per_second"]
    for share, seconds in zip(found["values"]["update_mfu"], found["values"]["update_seconds"], strict=True):
        assert share == pytest.approx(found["update_tflop"] / seconds / rate)
    assert found["rows"] == [{name: found[name] for name in found["rows"][0]}]
    assert found["machine"]["versions"]["jax"] == found["jax"]


def test_what_fills_no_row_of_its_prompt_counts_the_prompt_again():
    config = model_config("nano", 1, TINY.split(","), "float32")
    workload, row_length = _lay_out(config, Workload(2, 3, 6, 10), 27, None)
    assert (workload.segments, row_length) == (2, 27)
    second = Spread((1.0,))
    found = _compute_mfu(config, workload, {"generation_seconds": second, "update_seconds": second}, 1.0)
    rows = [update_flops(config, [16] * texts, reference=True, prompt_length=6) for texts in (2, 1)]
    assert found["update_tflop"] == pytest.approx(2 * sum(rows) / 1e12)


@pytest.mark.real
@pytest.mark.parametrize("rows", ["--segments=2", "--row-length=27"])
def test_step_with_rows_of_several_samples(rows: str, capsys: pytest.CaptureFixture[str]):
    found = run(
        capsys, "step", "--steps=2", "--layers=1", f"--override={TINY}", "--prompts=2", "--samples=2", rows,
        "--prompt=6", "--answer=10", "--micro-rows=2",
    )  # fmt: skip
    assert (found["row_length"], found["segments"]) == (5 + 2 * 11, 2)
    assert (found["prompt_length"], found["completion_length"]) == (6, 10)
    assert found["tokens_trained"] == 4 * 10
    # The prompt's 6 tokens once for its two samples; 21 pairs within it, and 10·6 + 55 for each answer.
    forward = 2 * 7680 * 52 + 2 * 2048 * 40 + 4 * 32 * 2 * (21 + 2 * 115)
    assert found["update_tflop"] == pytest.approx(4 * forward / 1e12)


@pytest.fixture(scope="module")
def updates() -> list[dict]:
    """The same update at two depths."""
    rows = update(
        depths=(2, 8), override=TINY.split(","), rows=4, micro_rows=2, row_length=32, segments=2, reference=True,
        remat="layers", repeats=2,
    )  # fmt: skip
    return [row_to_json(row) for row in rows]


@pytest.mark.real
def test_update_counts_its_tokens_and_operations(updates: list[dict]):
    found = updates[0]
    assert found["tokens"] == 4 * 32
    # 3072 + 4608 weights a layer, 2048 of the head; 8 texts of 16 tokens, each of 16·17/2 pairs.
    forward = 2 * (2 * 7680 + 2048) * 128 + 4 * 2 * 32 * 8 * 136
    assert found["update_tflop"] == pytest.approx(4 * forward / 1e12)
    assert found["values"]["tokens_per_second"] == pytest.approx([128 / s for s in found["values"]["update_seconds"]])
    assert 0 < found["mfu"] < 1.2
    assert found["mfu"] * found["matmul_tflops_per_second"] == pytest.approx(found["tflops_per_second"])
    assert found["compile_seconds"] > 0
    assert len(found["values"]["update_seconds"]) == 2


def test_the_compiled_update_does_not_grow_with_depth(updates: list[dict]):
    assert [row["layers"] for row in updates] == [2, 8]
    assert updates[1]["parameters"] - updates[0]["parameters"] == 6 * (3072 + 4608 + 80)
    sizes = [row["program_kb"] for row in updates]
    assert min(sizes) > 10
    assert max(sizes) < 1.01 * min(sizes)


def test_update_of_answers_to_one_prompt(capsys: pytest.CaptureFixture[str]):
    size = [f"--override={TINY}", "--layers=1", "--rows=2", "--repeats=1"]
    found = run(capsys, "update", *size, "--prompt=6", "--answer=10", "--segments=2")
    assert [found[name] for name in ("row_length", "prompt_length", "completion_length", "tokens")] == [27, 6, 10, 54]
    forward = 2 * 7680 * 52 + 2 * 2048 * 40 + 4 * 32 * 2 * (21 + 2 * 115)  # as of a step
    assert found["update_tflop"] == pytest.approx(3 * forward / 1e12)


def test_decode_and_prefill(capsys: pytest.CaptureFixture[str]):
    size = [f"--override={TINY}", "--layers=1", "--batch=4", "--prompt=20", "--prefill-chunk=8", "--repeats=2"]
    found = run(capsys, "decode", *size, "--answer=6")
    assert (found["prompt_length"], found["share_of_nominal"]) == (20, None)
    assert found["completion_tokens"] == 4 * 6
    assert 0 < found["bandwidth_share"] < 1.2
    assert 0 < found["engine_busy_share"] <= 1.01
    # Parameters once a step, and two of width 16 for each of 20 + 3.5 tokens of each of four conversations.
    numbers = found["parameters"] + 2 * 16 * 23.5 * 4
    assert found["read_gb_per_token"] == pytest.approx(numbers * 4 / 4 / 1e9)
    found = run(capsys, "prefill", *size)
    assert found["values"]["tokens_per_second"] == pytest.approx([80 / s for s in found["values"]["prefill_seconds"]])
    assert 0 < found["mfu"] < 1.2


def test_bytes_and_operations_bound_the_time():
    # 600 operations at 100 a second take longer than 50 bytes at 10 a second; 700 bytes take longer than both.
    assert compute_bound_s(600, 50, rate=100, bandwidth=10) == 6
    assert compute_bound_s(600, 700, rate=100, bandwidth=10) == 70
    # 432 weights and 40 of the head, two operations each; 5 tokens of width 4 in 3 layers by two products.
    assert decode_flops(DENSE, batch=7, context=5) == 7 * (2 * 472 + 4 * 3 * 4 * 5) == 8288


def test_rates_that_a_vendor_publishes():
    assert find_nominal_rates("NVIDIA H200", "bfloat16") == (989e12, 4.8e12)
    assert find_nominal_rates("TPU v5 lite", "bfloat16") == (197e12, 819e9)
    assert find_nominal_rates("NVIDIA H200", "float32") is None
    assert find_nominal_rates("cpu", "bfloat16") is None
    assert list(make_table("decode", [{"share_of_nominal": None}]).columns[1].cells) == ["–"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder in bfloat16."""
    path = tmp_path_factory.mktemp("models") / "small"
    config = model_config("nano", 1, TINY.split(","), "bfloat16")
    folders.write_random(path, config)
    return str(path)


def test_a_folder_in_place_of_a_shape(capsys: pytest.CaptureFixture[str], folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CHIPS, "here", Chip("a CPU", "cpu", "cpu", flops=1e9, bandwidth=1e6))
    size = [f"--folder={folder}", "--batch=4", "--prompt-length=20", "--prefill-chunk=8", "--repeats=1"]
    found = run(capsys, "decode", "--completion-length=6", *size)
    assert (found["shape"], found["dtype"], found["layers"]) == ("small", "bfloat16", 1)
    # The head 64·32, a layer 3072 + 4608; two products of width 32 with 23.5 tokens.
    seconds = [
        found["read_gb_per_token"] * 1e9 * 24 / found["bandwidth_gb_per_second"] / 1e9,
        24 * (2 * 9728 + 4 * 32 * 23.5) / found["matmul_tflops_per_second"] / 1e12,
    ]
    assert found["share_of_bound"] * found["decode_seconds"] == pytest.approx(max(seconds))
    nominal_seconds = found["read_gb_per_token"] * 1e9 * 24 / 1e6  # longer than 24 · 22,464 operations at 1e9 a second
    assert found["share_of_nominal"] * found["decode_seconds"] == pytest.approx(nominal_seconds)
    found = run(capsys, "prefill", *size)
    # Computing takes longer than reading 10,000 parameters once, unless this machine is a strange one.
    assert found["share_of_bound"] >= found["mfu"] * (1 - 1e-9) > 0


def test_update_of_a_folder(capsys: pytest.CaptureFixture[str], folder: str):
    found = run(capsys, "update", f"--folder={folder}", "--rows=2", "--row-length=16", "--repeats=1", "--reference")
    assert (found["shape"], found["dtype"], found["param_dtype"]) == ("small", "bfloat16", "float32")
    assert found["share_of_bound"] >= found["mfu"] * (1 - 1e-9) > 0


def test_load_and_export(capsys: pytest.CaptureFixture[str]):
    found = run(capsys, "load", "export", "--gigabytes=0.02", "--repeats=2")
    loaded, saved = (suite["rows"][0] for suite in found["suites"])
    assert [suite["suite"] for suite in found["suites"]] == ["load", "export"]
    assert loaded["gigabytes"] == saved["gigabytes"] == pytest.approx(0.02, rel=0.5)
    for row in (loaded, saved):
        assert row["gigabytes"] == pytest.approx(row["parameters"] * 2 / 1e9, rel=1e-9)
        assert row["times_plain"] == pytest.approx(row["seconds"] / row["plain_seconds"])
        assert row["peak_rss_gb"] > row["resident_gb"] > 0.05


def test_what_surrounds_the_model(capsys: pytest.CaptureFixture[str]):
    found = run(
        capsys, "signals", "desk", "engine", "--trajectories=512,1024", "--tasks=20", "--batch=8", "--repeats=1"
    )
    signals, desk, engine = (suite["rows"] for suite in found["suites"])
    assert [row["trajectories"] for row in signals] == [512, 1024]
    assert desk[0]["actions"] >= 20
    assert engine[0]["sampled_tokens"] == 8 * 36


def test_a_step_beside_earlier_ones_and_how_its_cost_grows(capsys: pytest.CaptureFixture[str]):
    small, large, growth = run(capsys, "scale", "--episodes=300,600", "--repeats=1")["rows"]
    assert (small["episodes"], large["episodes"], growth["episodes"]) == (300, 600, "exponent")
    parts = {
        "sample",
        "signals",
        "logs",
        "near_duplicates",
        "exclusions",
        "add_tasks",
        "checkpoint",
        "resume",
        "report",
    }
    assert {f"{part}_seconds" for part in parts} <= set(small)
    ratio = large["resume_seconds"] / small["resume_seconds"]
    assert growth["resume_seconds"] == pytest.approx(math.log2(ratio))


def test_a_table_is_printed_without_json(capsys: pytest.CaptureFixture[str]):
    assert bench.main(["desk", "--tasks=5", "--repeats=3"]) == 0
    shown = capsys.readouterr().out
    assert "desk: median (smallest to largest)" in shown
    assert "actions per second" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stepp"], "suite 'stepp' not found; available: step, update"),
        (["decode", "--remat=dots"], "--remat is no setting of decode; it is one of step, update"),
        (["step", "--steps=1"], "the first step only warms up; give 2 or more"),
        (["step", "--samples=1"], "needs a group of 2 or more"),
        (["update", "--layers=2", "--depths=2,4"], "give one of them"),
        (["update", "--rows=3", "--micro-rows=2"], "--rows=3 is no multiple of --micro-rows=2"),
        (["update", "--row-length=10", "--segments=3"], "does not hold --segments=3"),
        (["update", "--row-length=8192"], "exceeds the 4096 positions of nano"),
        (["update", "--prompt=8", "--segments=2"], "--prompt without --answer: a row holds answers to a prompt"),
        (["update", "--answer=8"], "--answer without --prompt"),
        (["update", "--prompt=8", "--answer=8", "--row-length=64"], "a row's length follows from these; leave it out"),
        (["update", "--prompt=4000", "--answer=97"], "a text of 4097 tokens exceeds the 4096 positions of nano"),
        (["step", "--segments=2", "--row-length=384"], "--row-length=384 beside --segments"),
        (["step", "--segments=3"], "--samples=8 is no multiple of --segments=3"),
        (["step", "--row-length=191"], "--row-length=191 is less than a conversation's 192 tokens"),
        (["step", "--prompt=4000"], "--prompt=4000 and --answer=128 exceed the model's 4096 positions"),
        (["step", "--lanes=3"], "--lanes=3 does not divide 64 conversations"),
        (["update", "--dtype=float16"], "--dtype is float16, in which gradients of single tokens vanish"),
        (
            ["prefill", "--answer=8"],
            "--completion-length or --answer is no setting of prefill; it is one of step, update, decode",
        ),
        (["update", "--override=layers=2"], "with a field of vocab_size"),
        (["update", "--override=num_hidden_layers=2"], "use --layers"),
        (["update", "--override=hidden_size=wide"], "expected a whole number, such as 64"),
        (["update", "--override=model_type=qwen2"], "only numbers, true and false can be set"),
        (["load", "--gigabytes=1e9"], "lower --gigabytes"),
        (["decode", "--folder=x", "--shape=nano"], "--folder and --shape both name the model; give one of them"),
        (["prefill", "--folder=x", "--layers=2"], "change a --shape; a --folder is measured as it is"),
        (["update", "--folder=x", "--depths=2,4"], "change a --shape; a --folder is measured as it is"),
        (["update", "--folder=x"], "--folder=x: no config.json in x; expected a model folder in HF format"),
        (["step", "--folder=x"], "--folder is no setting of step; it is one of update, decode, prefill"),
    ],
)
def test_refuses_settings_that_make_no_sense(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str):
    assert bench.main(arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert not shown.out


@pytest.mark.parametrize(
    "arguments",
    [
        # 2·10⁹ × 65,536 numbers of 4 bytes are more than a processor can address.
        ["update", f"--override={TINY},vocab_size=2000000000,hidden_size=65536", "--layers=1"],
        ["update", "--rows=1000000000"],
        ["update", "--segments=1000000000", "--prompt=8", "--answer=8"],
        ["step", "--prompts=1000000000"],
    ],
)
def test_says_what_to_do_where_memory_ends(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert bench.main(arguments) == 1
    shown = capsys.readouterr()
    assert "does not fit into memory" in shown.err
    assert "--remat=layers" in shown.err
    assert not shown.out


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--steps=0", "a whole number from 1 to 2147483647"),
        ("--gigabytes=nan", "a number above 0"),
        ("--depths=2,0", "a whole number from 1"),
        ("--dtype=int8", "choose from"),
        ("--shape=70b", "choose from"),
    ],
)
def test_refuses_values_out_of_range(argument: str, expected: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        bench.main([argument])
    assert stopped.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.nightly
def test_weights_reach_a_server_and_conversations_hit_its_cache(capsys: pytest.CaptureFixture[str]):
    found = run(capsys, "sync", "conversations", "--sizes=0.01", "--batch=16", "--turns=4", "--repeats=1")
    sync, conversations = (suite["rows"][0] for suite in found["suites"])
    assert sync["gigabytes"] == pytest.approx(sync["parameters"] * 2 / 1e9)
    assert sync["times_plain"] == pytest.approx(sync["sync_seconds"] / sync["plain_seconds"])
    assert conversations["completions"] == 16 * conversations["turns"]
    # Every turn finds the one before in the cache of the server it stays with.
    assert conversations["prefix_cache_hit_rate"] > 0.9 * conversations["repeated_share"] > 0.5
