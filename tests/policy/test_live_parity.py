"""Against transformers itself, where torch is installed: all logits, all gradients, generation, exported folders."""

import threading
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, Case

import cojax
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine

torch = pytest.importorskip("torch")

from test_parity import gradient, head, hidden_states  # noqa: E402
from torch_reference import torch_gradients, torch_logits, torch_loss, torch_model  # noqa: E402

pytestmark = pytest.mark.real
SHARE = 1e-4


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_logit_and_gradient(case: Case, tmp_path: Path) -> None:
    model = torch_model(case, tmp_path)
    expected = torch_logits(model, case)
    loss = torch_loss(expected, case)
    loss.backward()
    real = case.padded()[2] == 1
    found = np.asarray(head(case.config, case.params, hidden_states(case.config, case.params, *case.padded())))
    scale = float(expected.detach().abs().max())
    np.testing.assert_allclose(found[real], expected.detach().numpy()[real], atol=SHARE * scale, rtol=0)
    ours, gradients = gradient(case.config, case.params, case.padded())
    np.testing.assert_allclose(ours, loss.item(), rtol=1e-5)
    theirs = torch_gradients(model)
    for name, array in to_hf(case.config, gradients):
        np.testing.assert_allclose(
            array, theirs.pop(name), atol=SHARE * np.abs(array).max(), rtol=0, err_msg=name
        )  # fmt: skip
    assert not theirs


@pytest.mark.parametrize(
    "name", ["qwen2_tied_ratio1", "qwen3_yarn", "moe_normalised", "llama_tied_ratio3", "llama_rope3"]
)
def test_transformers_loads_what_is_saved(name: str, tmp_path: Path) -> None:
    """Unchanged, and computes the same from it, from one file and from several."""
    from transformers import AutoModelForCausalLM

    from cojax.policy.pretrained import write_model

    case = CASES[name]
    policy = cojax.load(torch_folder(case, tmp_path / "theirs"))
    policy.save(tmp_path / "one")
    write_model(tmp_path / "several", policy.config, policy.params, max_file_bytes=20_000)
    tokens = np.stack([row[:17] for row in case.rows])
    for folder in ("one", "several"):
        model, report = AutoModelForCausalLM.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert not any(report.values()), report
        expected = model(torch.tensor(tokens, dtype=torch.long)).logits.detach().numpy()
        np.testing.assert_allclose(policy.logits(tokens), expected, atol=SHARE * np.abs(expected).max(), rtol=0)
    # And back: what transformers saves loads here, bit for bit.
    model.save_pretrained(tmp_path / "again")
    again = cojax.load(tmp_path / "again")
    assert again.config == policy.config
    for (name, mine), (_, read) in zip(
        to_hf(policy.config, policy.params), to_hf(again.config, again.params), strict=True
    ):
        assert mine.tobytes() == read.tobytes(), name


def torch_folder(case: Case, folder: Path) -> Path:
    torch_model(case, folder)
    return folder


@pytest.mark.parametrize("name", ["qwen2_untied_ratio2", "qwen3_yarn", "moe_normalised", "llama_rope3"])
def test_greedy_generation_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """100 prompts of 1 to 30 tokens, 20 tokens each, the engine's batches changing all the time."""
    case = CASES[name]
    model = torch_model(case, tmp_path)
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, case.config.vocab_size, draw.integers(1, 31)).tolist() for _ in range(100)]
    engine = LocalEngine(case.config, slots=16, max_length=64, prefill_rows=4, prefill_chunks=(8,))
    engine.load(Weights(0, lambda: to_hf(case.config, case.params)))
    found: dict[int, list[int]] = {}

    def run(number: int) -> None:
        sampling = Sampling(temperature=0.0, max_tokens=20, stop_tokens=())
        completion = engine.generate(prompts[number], sampling, session=str(number), seed=(number,))
        found[number] = list(completion.tokens)
        engine.release(str(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    longest = max(len(prompt) for prompt in prompts)
    given = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    made = model.generate(given, attention_mask=mask, do_sample=False, max_new_tokens=20)[:, longest:].tolist()
    assert [found[number] for number in range(len(prompts))] == made
