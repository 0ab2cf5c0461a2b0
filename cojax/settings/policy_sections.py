"""The sections of a configuration about the policy before the first step: its model, and its warm start."""

from __future__ import annotations

from collections.abc import Callable

from cojax.policy.adapters import Lora
from cojax.rollout.chat import TOOL_DOCUMENTS
from cojax.settings.leaf import (
    Above0,
    AtLeast0,
    Count,
    DType,
    Leaf,
    Matrix,
    Number,
    Section,
    Share,
    defaults,
    one_of,
)
from cojax.warm_start import Schedule


def model() -> Section:
    """The policy's model: a model folder, or a small model trained from scratch."""
    return {
        "path": Leaf("", str, 'a folder in HF format; "" is a policy of model.shape from scratch'),
        "tools": Leaf("full", one_of(TOOL_DOCUMENTS), "how much of the tools' documentation the policy sees"),
        "tokenizer": Leaf("words", one_of(("words", "bytes")), "tokenizer of a policy from scratch"),
        "vocabulary": Leaf(4096, Count, "most entries of the tokenizer `bytes`"),
        "dtype": Leaf("", DType, 'dtype of computations; "" is the folder\'s own, float32 from scratch'),
        "param_dtype": Leaf("float32", DType, 'dtype of parameters; "" is the folder\'s own, float32 from scratch'),
    }


def shape() -> Section:
    """The sizes of a policy from scratch."""
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    )  # fmt: skip
    return {name: Leaf(0, Number, "as in config.json of the HF format") for name in names}


def warm_start() -> Section:
    """Supervised training before the run: of a policy from scratch, or on the pretrained weights of model.path."""
    own = defaults(Schedule)
    return {
        "steps": Leaf(0, Number, "most batches; 0 begins with random parameters, or with the model folder as it is"),
        "split": Leaf(
            "", str,
            "the split whose solutions are demonstrations; `initial` is D_0, \"\" the environment's own demonstrator",
        ),
        "batch_size": Leaf(own["batch_size"], Count, "demonstrations per batch"),
        "lengthen": Leaf(200, Number, "batches over which demonstrations are added, from the shortest to the longest"),
        "check_every": Leaf(150, Count, "batches between two scores on the development split"),
        "target": Leaf(1.0, AtLeast0, "success on the development split at which training stops"),
        "check_tasks": Leaf(200, Count, "development tasks per score"),
        "demonstrations": Leaf(8000, Count, "number of demonstrations; for a model folder few are enough, e.g. 272"),
        "noise_low": Leaf(0.10, Share, "share of wrong actions of the demonstrator at the most popular skill"),
        "noise_high": Leaf(0.85, Share, "share of wrong actions of the demonstrator at the least popular skill"),
        "learning_rate": Leaf(3e-3, AtLeast0, "first learning rate from scratch; it falls linearly to a twentieth"),
        "pretrained_learning_rate": Leaf(
            3e-4, AtLeast0, "first learning rate on all weights of a model folder; it falls linearly to a twentieth"
        ),
        "epochs": Leaf(
            own["epochs"], bool,
            "learn every demonstration once, in random order, before any is learned again; needs lengthen=0",
        ),
    }  # fmt: skip


def warm_start_lora() -> Section:
    """Adapters that learn in a warm start on a model folder, and are then summed into its matrices."""
    own = defaults(Lora)
    return {
        "rank": Leaf(0, Number, "0 is off: all weights learn"),
        "alpha": Leaf(own["alpha"], Above0, "adapters are scaled by alpha / rank"),
        "targets": Leaf(own["targets"], tuple[Matrix, ...], "the matrices that get adapters; () is all"),
        "learning_rate": Leaf(2e-3, AtLeast0, "first learning rate of the adapters; it falls linearly to a twentieth"),
    }


SECTIONS: tuple[tuple[str, Callable[[], Section]], ...] = (
    ("model", model),
    ("model.shape", shape),
    ("warm_start", warm_start),
    ("warm_start.lora", warm_start_lora),
)
