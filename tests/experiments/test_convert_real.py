"""SmolLM2-135M-Instruct from its package: the logits and greedy tokens of transformers, and texts that come back."""

import math
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import cojax
from cojax.convert.command import main
from cojax.policy.parameters import to_hf
from cojax.policy.pretrained import Policy
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.real

QUESTIONS = ("What is the capital of France?", "Count from 1 to 12.", "Write one line of Python that adds 2 and 3.")
LESSON = (
    "Photosynthesis is the process by which green plants, algae, and some bacteria convert light energy into chemical "
    "energy. During photosynthesis, plants take in carbon dioxide from the air and water from the soil, and use the "
    "energy of sunlight to produce glucose and oxygen."
)
SHARE = 1e-4  # of the largest logit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "model"
    assert main(["smollm2", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return cojax.load(folder)


def prompts(folder: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]


def test_its_shape_is_the_published_one(policy: Policy) -> None:
    config = policy.config
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(policy.params)) == 134_515_008
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1_536)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.rope_theta, config.rms_norm_eps, config.max_position_embeddings) == (1e5, 1e-5, 8_192)
    assert (config.vocab_size, config.tie_word_embeddings) == (49_152, True)


def test_logits_are_those_of_transformers_also_when_saved_again(folder: Path, policy: Policy, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    tokens = np.array(AutoTokenizer.from_pretrained(folder).encode(text)[:512], np.int32).reshape(2, 256)
    policy.save(tmp_path / "again")
    found = np.asarray(policy.logits(tokens))
    for place in (folder, tmp_path / "again"):
        model, report = AutoModelForCausalLM.from_pretrained(place, output_loading_info=True)
        assert not any(report.values()), report
        with torch.no_grad():
            expected = model(torch.tensor(tokens, dtype=torch.long)).logits.numpy()
        np.testing.assert_allclose(found, expected, atol=SHARE * np.abs(expected).max(), rtol=0)


def test_a_text_of_its_kind_is_likely(folder: Path, policy: Policy) -> None:
    """1.4 nats a token; rows in a wrong order, in transformers too, would cost several more."""
    tokens = np.array([AutoTokenizer.from_pretrained(folder).encode(LESSON)], np.int32)
    assert -float(np.asarray(policy.logprobs(tokens))[:, 1:].mean()) < 1.6


def test_greedy_answers_are_those_of_transformers(folder: Path, policy: Policy) -> None:
    """Both end at the token that ends a turn."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    engine = LocalEngine(policy.config, slots=4, max_length=128, prefill_rows=4, prefill_chunks=(32,))
    engine.load(Weights(0, lambda: to_hf(policy.config, policy.params)))
    found: dict[int, list[int]] = {}
    sampling = Sampling(temperature=0.0, max_tokens=32, stop_tokens=(tokenizer.eos_token_id,))

    def answer(number: int, prompt: list[int]) -> None:
        found[number] = list(engine.generate(prompt, sampling, session=str(number), seed=(number,)).tokens)

    given = prompts(folder)
    threads = [threading.Thread(target=answer, args=pair) for pair in enumerate(given)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.close()
    for number, prompt in enumerate(given):
        rows = torch.tensor([prompt])
        made = model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=False, max_new_tokens=32)
        assert found[number] == made[0, len(prompt) :].tolist()
    assert "Paris" in (said := tokenizer.decode(found[0]))
    assert said.endswith("<|im_end|>")


def test_its_tokens_are_those_of_the_published_vocabulary(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 49_152
    assert tokenizer.tokenize("In 2024, I'd  pay") == ["In", "Ġ", "2", "0", "2", "4", ",", "ĠI", "'d", "Ġ", "Ġpay"]
    assert tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n") == [1, 4093, 198, 19556, 2, 198]
    assert len(tokenizer.added_tokens_decoder) == 17
    assert tokenizer.convert_ids_to_tokens([3, 4]) == ["<tool_call>", "</tool_call>"]
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        text = path.read_text()
        assert tokenizer.decode(tokenizer.encode(text)) == text, path
    opening = tokenizer.decode(prompts(folder)[0])
    assert opening.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert opening.endswith("<|im_start|>assistant\n")
