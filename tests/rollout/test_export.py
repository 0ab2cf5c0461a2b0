"""A model folder with its tokenizer: written, read back, and what to do with a damaged one."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from compiling import drawn
from transformers import AutoConfig, AutoTokenizer

from cojax.policy.config import ModelConfig
from cojax.rollout.export import load_params, load_tokenizer, save_model
from cojax.rollout.vocabulary import word_tokenizer

TOKENIZER = word_tokenizer(["send_email"], ["send an email to Ada"], ())
CONFIG = ModelConfig(len(TOKENIZER) + 3, 32, 40, 2, 4, 2, 16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", CONFIG, drawn(CONFIG, 0), TOKENIZER)
    return tmp_path / "model"


def test_model_and_tokenizer_come_back(folder: Path) -> None:
    assert ModelConfig.from_hf(folder) == CONFIG
    assert type(AutoConfig.from_pretrained(folder)).__name__ == "Qwen3Config"
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == TOKENIZER.get_vocab()
    jax.tree.map(np.testing.assert_array_equal, load_params(folder, CONFIG), drawn(CONFIG, 0))


def test_a_damaged_model_says_what_to_delete(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match=f"Delete {folder} and make it again"):
        load_params(folder, CONFIG)


def test_a_folder_without_a_tokenizer_is_enough_for_parameters(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()
    load_params(folder, CONFIG)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        load_params(folder, CONFIG)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer.json", '{"version": "1.0", "model": 5}'),
        ("tokenizer.json", ""),
    ],
)
def test_a_damaged_tokenizer_is_one_line(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=f"{folder} holds no tokenizer that can be read") as error:
        load_tokenizer(folder)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["../../../elsewhere", "/tmp/elsewhere", "a\0"])
def test_a_template_that_would_be_written_elsewhere_is_refused(folder: Path, name: str) -> None:
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    templates = [{"name": "default", "template": ""}, {"name": name, "template": "mine"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": templates}))
    with pytest.raises(ValueError, match="a chat template has the name"):
        load_tokenizer(folder)
