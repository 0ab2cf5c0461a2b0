"""Run with eight virtual devices by test_mesh.py: how often the compiled update moves the scoring matrix."""

from __future__ import annotations

import dataclasses
import re
import sys

import jax
import numpy as np

from cojax.policy import logprobs
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params
from cojax.policy.sharding import batch_sharding, make_mesh, shard
from cojax.policy.transformer import initialize

# No other axis has 104 entries, so that it tells the matrix and what is made of it.
VOCABULARY, WIDTH, ROWS, LENGTH, CHUNK = 104, 32, 8, 33, 4
CONFIG = ModelConfig(VOCABULARY, WIDTH, 48, 2, 4, 2, 16, tie_word_embeddings=False)
COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
SHAPE = re.compile(r"\w+\[([\d,]+)\]")


def program(config: ModelConfig, sizes: dict[str, int], kept: int) -> str:
    """The text of the compiled loss and gradient; rows need up to 8 rounds of CHUNK tokens. `kept`: MAX_KEPT_BYTES."""
    logprobs.MAX_KEPT_BYTES = kept
    mesh = make_mesh(**sizes)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), tokens.shape)
    batch = jax.device_put((tokens, positions, np.ones_like(tokens)), batch_sharding(mesh))

    def loss(params: Params, batch: tuple) -> jax.Array:
        scores = logprobs.token_scores(
            config, params, *batch, chunk=CHUNK, remat="layers", mesh=mesh, entropy="gradient"
        )
        return -(scores.logprobs + 0.1 * scores.entropy).sum()

    placed = shard(config, initialize(config, 0), mesh)
    return jax.jit(jax.value_and_grad(loss)).lower(placed, batch).compile().as_text()


def computations(text: str) -> dict[str, list[str]]:
    """Name → lines of each computation of the program."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if opened := re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line):
            found[opened[1]] = lines = []
        elif line.startswith(" "):
            lines.append(line)
    return found


def in_loops(found: dict[str, list[str]]) -> set[str]:
    """Names of the computations that a loop runs again and again."""
    texts = {name: "\n".join(lines) for name, lines in found.items()}
    calls = {
        name: set(re.findall(r"(?:body|condition|calls|to_apply)=%?([\w.\-]+)", text)) for name, text in texts.items()
    }
    reached = {body for text in texts.values() for body in re.findall(r"body=%?([\w.\-]+)", text)}
    while grown := {inner for name in reached for inner in calls.get(name, ())} - reached:
        reached |= grown
    return reached


def of_the_matrix(lines: list[str], parts: int) -> list[str]:
    """Collectives over the scoring matrix, or over its gradient: those of an axis of (a part of) the vocabulary and
    one of (a part of) the width."""
    crossing = []
    for line in lines:
        if collective := COLLECTIVE.search(line):
            for shape in SHAPE.findall(collective[1]):
                sizes = [int(size) for size in shape.split(",")]
                if {VOCABULARY, VOCABULARY // parts} & set(sizes) and len([s for s in sizes if s > 1]) == 2:
                    crossing.append(f"{collective[2]} {shape}")
    return crossing


def main(kind: str) -> None:
    assert len(jax.devices()) == 8
    config = dataclasses.replace(CONFIG, tie_word_embeddings=kind == "tied")
    small = {"data": 2, "fsdp": 2, "tensor": 2}
    for sizes, kept in (({"fsdp": 8}, 0), ({"data": 2, "fsdp": 4}, 0), (small, 0), (small, 2**20)):
        found = computations(program(config, sizes, kept))
        loops = in_loops(found)
        again = [op for name in loops for op in of_the_matrix(found[name], sizes.get("tensor", 1))]
        once = [op for name in found.keys() - loops for op in of_the_matrix(found[name], sizes.get("tensor", 1))]
        assert again == [], (sizes, again)
        assert once, (sizes, "the program gathers the matrix nowhere: the test looks for the wrong thing")


if __name__ == "__main__":
    main(sys.argv[1])
