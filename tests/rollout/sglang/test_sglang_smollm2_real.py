"""SmolLM2-135M-Instruct on a real SGLang server: greedy tokens, and two steps of a run with it in the loop."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from patience import patience
from transformers import AutoModelForCausalLM, AutoTokenizer

import cojax
from cojax.convert.command import main
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Completion, Engine, Sampling, Weights
from cojax.rollout.local import LocalEngine
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings
from cojax.run.engines import find_default_python
from cojax.settings.tree import SGLangSettings

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.nightly]
ROOT = Path(__file__).parents[3]
LENGTH = 128
QUESTIONS = ("What is the capital of France?", "Count from 1 to 12.", "Write one line of Python that adds 2 and 3.")
# So few demonstrations teach no success: the penalty on length alone makes groups live.
SMALL = (
    "method=coevolve", "preference.tasks=static",
    "steps=2", "batch_size=2", "group_size=4", "initial_tasks=4", "evolve_every=2", "checkpoint_every=2",
    "warm_start.steps=2", "warm_start.batch_size=4", "warm_start.demonstrations=12", "warm_start.check_every=2",
    "warm_start.check_tasks=1", "learner.advantage=overlong_penalty", "learner.advantage_settings.longest=32",
    "learner.advantage_settings.margin=31", "engine.name=sglang", "engine.max_length=192", "engine.slots=8",
    "learner.row_length=192", "limits.concurrency=8", "limits.max_turns=2", "sampling.max_tokens=16",
    "evaluation.tasks=2", "evaluation.dev_tasks=1", "synthesis.contexts=2", "synthesis.budget=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "model"
    assert main(["smollm2", str(out)]) == 0
    return out


def answers(engine: Engine, weights: Weights, asked: list[list[int]], end: int) -> list[Completion]:
    engine.load(weights)
    sampling = Sampling(temperature=0.0, max_tokens=32, stop_tokens=(end,))
    return [engine.generate(tokens, sampling, session=str(n), seed=(n,)) for n, tokens in enumerate(asked)]


def test_greedy_tokens_of_a_saved_folder_are_ours_in_transformers_and_on_a_server(folder: Path, tmp_path: Path) -> None:
    policy, tokenizer = cojax.load(folder), AutoTokenizer.from_pretrained(folder)
    policy.save(saved := tmp_path / "saved")
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    asked = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    weights = Weights(0, lambda: to_hf(policy.config, policy.params))
    launch = LaunchSettings(str(find_default_python()), tmp_path / "sglang", LENGTH, "float32", "cpu")
    limits = SGLangSettings(startup_deadline=240.0, sync_deadline=60.0)
    local = LocalEngine(policy.config, slots=4, max_length=LENGTH, prefill_rows=4, prefill_chunks=(32,))
    served = SGLangEngine(policy.config, folder=tmp_path, max_length=LENGTH, launch=launch, settings=limits)
    try:
        ours = answers(local, weights, asked, tokenizer.eos_token_id)
        theirs = answers(served, dataclasses.replace(weights, path=lambda: str(saved)), asked, tokenizer.eos_token_id)
    finally:
        local.close()
        served.close()
    model = AutoModelForCausalLM.from_pretrained(saved)
    for prompt, one, other in zip(asked, ours, theirs, strict=True):
        rows = torch.tensor([prompt])
        made = model.generate(
            rows, attention_mask=torch.ones_like(rows), do_sample=False, max_new_tokens=32, eos_token_id=2
        )
        assert list(one.tokens) == list(other.tokens) == made[0, len(prompt) :].tolist()
        np.testing.assert_allclose(other.logprobs, one.logprobs, atol=1e-4)
    assert tokenizer.decode(ours[0].tokens) == "The capital of France is Paris.<|im_end|>"


def test_two_steps_with_a_server_in_the_loop_learn_from_what_it_sampled(folder: Path, tmp_path: Path) -> None:
    given = (*SMALL, f"model.path={folder}", f"workdir={tmp_path / 'run'}", f"sglang.python={find_default_python()}")
    flags = ["--config=experiments/desk_smollm2.py", *(f"--config.{one}" for one in (*given, "sglang.device=cpu"))]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", *flags],
        cwd=ROOT,
        # The wheel is in the cache of all tests, the warm start in one of its own.
        env={**os.environ, "COJAX_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=patience(1_800),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["tokens_trained"] > 0
        assert 0 < step["logprob_mismatch"] < 1e-3
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["logprob_mismatch"] < 1e-3
