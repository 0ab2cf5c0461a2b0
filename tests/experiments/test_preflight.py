"""What the preflight asks of disks: each for what lies on it, in the dtype that is sent. What it says of templates."""

import dataclasses
import shutil
import types
import uuid
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from cojax.compile import targets
from cojax.learner.batch import RowShape
from cojax.learner.losses import LOSSES
from cojax.learner.objective import bind_loss, objective
from cojax.policy.config import ModelConfig
from cojax.rollout.chat import PROBE_TOOL, Chat
from cojax.rollout.sglang.client import MEMORY_FILE, ReleasedMemoryFile
from cojax.rollout.vocabulary import train_byte_tokenizer
from cojax.run import assemble, preflight
from cojax.settings import base
from cojax.settings.presets import apply_preset
from cojax.storage.files import write_json
from cojax.types import Action, Message, Task, Trajectory, Turn
from experiments import desk

MODEL = ModelConfig(96, 32, 40, 2, 4, 2, 16, dtype="bfloat16", param_dtype="float32")
SHARED = Path("/dev/shm")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigDict:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    config = base.get_config()
    config.workdir, config.engine.name = str(tmp_path / "run"), "sglang"
    return config


def needed(config: ConfigDict, count: int) -> str:
    return preflight._disk(config, {"count": count, "parts": types.SimpleNamespace(model=MODEL)})


def test_weights_count_in_the_dtype_that_is_sent(config: ConfigDict, tmp_path: Path) -> None:
    # Three versions of so many numbers fit twice at two bytes a number, and do not at four.
    count = shutil.disk_usage(tmp_path).free // 9
    assert "needed" in needed(config, count)
    config.sglang.dtype = "float32"
    with pytest.raises(OSError, match=f"free under {config.workdir}.*needed; free some space"):
        needed(config, count)
    config.engine.name = "local"
    assert needed(config, count).endswith("0.2 GiB needed")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs a second file system")
def test_weights_count_on_the_disk_of_their_folder(config: ConfigDict, tmp_path: Path) -> None:
    assert SHARED.stat().st_dev != tmp_path.stat().st_dev
    folder = SHARED / f"cojax-{uuid.uuid4().hex}"
    config.sglang.folder = str(folder)
    assert needed(config, 0).count("needed") == 2
    with pytest.raises(OSError, match=f"free under {folder}"):
        needed(config, shutil.disk_usage(SHARED).free // 5)
    assert not folder.exists()


def test_what_fails_is_named_and_what_comes_after_it_is_tried(config, monkeypatch, capsys) -> None:
    config.workdir, config.engine.name = "/proc/cojax", "local"
    monkeypatch.setattr(preflight, "EXAMINATIONS", (preflight._disk, preflight._metrics))
    assert preflight.run_preflight(config) == 1
    disk, metrics = capsys.readouterr().out.splitlines()
    # Root is not told that it may not write there, but that there is no room.
    assert disk.startswith("failed  disk: ")
    assert "/proc/cojax" in disk
    assert metrics == "ok      metrics: metrics.jsonl and TensorBoard"


@pytest.mark.parametrize("follow", [True, False])
def test_servers_that_follow_are_checked_in_the_folder_that_they_follow(config, tmp_path, monkeypatch, follow) -> None:
    config.sglang.folder, config.sglang.follow = str(tmp_path / "shared"), follow
    (tmp_path / "shared" / "weights" / "7").mkdir(parents=True)
    seen: list[Path] = []

    def parts(config: ConfigDict, together: object) -> None:
        seen.append(Path(config.sglang.folder))
        raise ValueError("no further")

    monkeypatch.setattr(preflight.checks, "check_run", lambda config: None)
    monkeypatch.setattr(preflight.assemble, "build_parts", parts)
    assert preflight.run_preflight(config) == 1
    assert (seen == [tmp_path / "shared"]) == follow
    assert (tmp_path / "shared" / "weights" / "7").is_dir()


def test_servers_that_a_killed_run_left_asleep_are_known_to_the_check_and_awake_after_it(config, tmp_path, monkeypatch):
    notes = tmp_path / "shared" / MEMORY_FILE
    config.sglang.folder = str(notes.parent)
    write_json(notes, {"http://127.0.0.1:1": ["born", ["weights"]]})
    found: list[tuple[str, list[str]]] = []

    def parts(config: ConfigDict, together: object) -> None:
        known = ReleasedMemoryFile(Path(config.sglang.folder) / MEMORY_FILE)
        found.append(known.find("http://127.0.0.1:1"))
        known.write("http://127.0.0.1:1", "born", [])
        raise ValueError("no further")

    monkeypatch.setattr(preflight.checks, "check_run", lambda config: None)
    monkeypatch.setattr(preflight.assemble, "build_parts", parts)
    assert preflight.run_preflight(config) == 1
    assert found == [("born", ["weights"])]
    assert [path.name for path in notes.parent.iterdir()] == [MEMORY_FILE]
    assert ReleasedMemoryFile(notes).find("http://127.0.0.1:1") == ("", [])


def test_an_advantage_is_tried_on_an_episode_that_was_sampled(config) -> None:
    turn = Turn(Action("a"), prompt_tokens=(1, 2), action_tokens=(3, 4, 5), action_logprobs=(-1.0, -1.0, -1.0))
    learns = objective(bind_loss("grpo", LOSSES, {}), "group_relative", {}, "group_token_mean", {}, split_count=1)
    learner = types.SimpleNamespace(loss="grpo", advantage="mine:brisk", objective=learns, shape=RowShape(8))
    state = {"episode": Trajectory(Task("desk", "a task", {}), turns=(turn,)), "learner": learner}
    config.group_size = 4
    assert preflight._objective(config, state) == "grpo would learn from 12 tokens of 4 such episodes"
    learner.objective = dataclasses.replace(learns, advantage=lambda trajectories: [1.0])
    failed = "advantage 'mine:brisk' was tried and failed: ValueError: the advantage returned 1 entries for 4"
    with pytest.raises(ValueError, match=failed):
        preflight._objective(config, state)


def test_a_template_that_ignores_tools_and_adds_a_system_message_is_told(config) -> None:
    tokenizer = train_byte_tokenizer([], 400)
    tokenizer.chat_template = """
{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nBe kind.<|im_end|>' }}{%- endif %}
{%- for message in messages %}{{- '<|im_start|>' + message.content + '<|im_end|>' }}{%- endfor %}"""
    episode = types.SimpleNamespace(
        reset=lambda: (Message("user", "x"),), tools=lambda: (PROBE_TOOL,), close=lambda: None
    )
    world = types.SimpleNamespace(start=lambda task: episode)
    made = types.SimpleNamespace(environment=world, development=[None], chat=Chat(tokenizer))
    assert preflight._template(config, {"parts": made}).endswith(
        "shown: full; it does not show tools in the form that cojax parses; cojax adds a section that does; "
        "if a conversation begins without a system message, it adds 'Be kind.'"
    )


def test_a_policy_that_is_to_be_shown_the_runs_own_initial_tasks_is_examined_before_there_are_any(config) -> None:
    made = desk.get_config()
    made.policy, made.workdir = "tiny", config.workdir
    made = apply_preset(made)
    made.model.vocabulary = 512
    made.model.shape.update(hidden_size=16, intermediate_size=16, num_hidden_layers=1)
    parts = assemble.build_parts(made)
    assert made.warm_start.split == "initial"
    try:
        assert preflight._policy(made, {"parts": parts}).endswith("to be warm-started on initial")
    finally:
        parts.engine.close()


def test_programs_are_examined_for_devices_that_have_published_figures(config, monkeypatch) -> None:
    config.batch_size, config.group_size = 2, 4
    seen: list[tuple] = []

    def report(*given: object, agents: int) -> dict:
        seen.append((*given, agents))
        kinds = {"all-gather": {"count": 3, "bytes": 5 * 2**30}}
        sizes = {"bytes_peak": 3 * 2**29, "bytes_limit": 2**34}
        return {"collectives": kinds, "kernels": ["splash attention"], "bound_seconds": 2.5, **sizes}

    monkeypatch.setattr(preflight, "report", report)
    tpu, cpu = (
        types.SimpleNamespace(placement=types.SimpleNamespace(devices=[types.SimpleNamespace(device_kind=kind)]))
        for kind in ("TPU v5 lite", "cpu")
    )
    assert preflight._programs(config, {"learner": tpu, "train_state": "state"}) == (
        "1.5 of 16.0 GiB a device, each sends 5 GiB a step, kernels: splash attention; a step takes at least 2.5 s"
    )
    assert seen == [(tpu, "state", [4, 4], targets.CHIPS["v5e"], 1)]
    assert preflight._programs(config, {"learner": cpu, "train_state": "state"}) == (
        "no forecast is needed for 'cpu': the next part runs an update"
    )
    with pytest.raises(ValueError, match="not tried, as there is no policy"):
        preflight._programs(config, {})
