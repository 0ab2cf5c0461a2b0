"""A case computed by transformers on torch: logits, loss and gradients under Hugging Face file names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from cases import Case
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM


def torch_model(case: Case, folder: Path) -> torch.nn.Module:
    """The case's weights, read by transformers from a folder written without cojax."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(case.hf)))
    save_file(case.weights, folder / "model.safetensors", metadata={"format": "pt"})
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32,
        output_loading_info=True,
    )  # fmt: skip
    wrong = {key: names for key, names in report.items() if names}
    assert not wrong, f"{case.name}: {wrong}"
    return model.eval()


def torch_logits(model: torch.nn.Module, case: Case) -> torch.Tensor:
    """float32[3, WIDTH, V] of the padded rows; what stands at padding means nothing."""
    tokens, positions, segments = (torch.tensor(array, dtype=torch.long) for array in case.padded())
    return model(tokens, attention_mask=segments, position_ids=positions).logits


def torch_loss(logits: torch.Tensor, case: Case) -> torch.Tensor:
    """Minus the sum of the log-probabilities of every token after its row's first."""
    tokens, _, segments = (torch.tensor(array, dtype=torch.long) for array in case.padded())
    scores = torch.log_softmax(logits[:, :-1], -1).gather(-1, tokens[:, 1:, None])[..., 0]
    return -torch.where((segments[:, 1:] == 1) & (segments[:, :-1] == 1), scores, 0.0).sum()


def torch_gradients(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Of the last backward pass, under the names of a file: transformers 5 keeps experts stacked in memory."""
    found = {}
    for name, value in model.named_parameters():
        gradient = value.grad.numpy()
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(gradient):
                gate, up = np.split(both, 2)
                stem = name.removesuffix("gate_up_proj") + f"{expert}."
                found[stem + "gate_proj.weight"], found[stem + "up_proj.weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(gradient):
                found[name.removesuffix("down_proj") + f"{expert}.down_proj.weight"] = matrix
        else:
            found[name] = gradient
    return found
