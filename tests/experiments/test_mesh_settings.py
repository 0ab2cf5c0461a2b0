"""What a mesh demands of the other settings is said before anything is built."""

import types

import numpy as np
import pytest
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.policy.sharding import MESH_AXES
from cojax.run import processes
from cojax.settings import base


@pytest.fixture(autouse=True)
def _eight_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins: nothing here is computed."""
    devices = np.arange(8)
    monkeypatch.setattr(
        processes, "make_mesh", lambda **sizes: Mesh(devices.reshape([sizes[a] for a in MESH_AXES]), MESH_AXES)
    )


def given(sizes: dict[str, int], settings: dict[str, object]) -> ConfigDict:
    config = base.get_config()
    config.mesh.update(sizes)
    config.update_from_flattened_dict({"learner.micro_rows": 8, **settings})
    return config


def test_sizes_of_one_are_no_mesh() -> None:
    assert processes.make_mesh_of(base.get_config()) is None
    processes.check_mesh(given({}, {"staleness": 1, "engine.lanes": 2, "engine.slots": 3}))


def test_the_devices_of_a_run_are_named_and_so_are_those_that_it_leaves_idle() -> None:
    def devices(count: int, kind: str, platform: str) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(device_kind=kind, platform=platform)] * count

    cards = devices(8, "NVIDIA H100", "gpu")
    assert processes.describe_devices(devices(1, "cpu", "cpu"), devices(1, "cpu", "cpu")) == "1 × cpu, platform cpu"
    assert processes.describe_devices(cards, cards) == "8 × NVIDIA H100, platform gpu"
    idle = "1 of 8 × NVIDIA H100, platform gpu; --config.mesh.fsdp=-1 uses all of them"
    assert processes.describe_devices(cards[:1], cards) == idle


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ({"data": 8}, {}),
        ({"data": 2, "fsdp": 4}, {"staleness": 1, "engine.lanes": 2, "engine.slots": 32}),
        ({"data": 4, "tensor": 2}, {"engine.slots": 4}),
        # Servers sample elsewhere.
        ({"tensor": 8}, {"staleness": 1, "engine.lanes": 2, "engine.slots": 3, "engine.name": "sglang"}),
    ],
)
def test_what_can_run_is_let_through(sizes: dict[str, int], settings: dict[str, object]) -> None:
    processes.check_mesh(given(sizes, settings))


@pytest.mark.parametrize(
    ("sizes", "settings", "said"),
    [
        (
            {"fsdp": 8}, {"learner.micro_rows": 4},
            "learner.micro_rows is 4, the mesh splits rows 8 ways; make it a multiple of 8",
        ),
        (
            {"data": 4, "tensor": 2}, {"staleness": 1},
            r"staleness is 1, but engine.name=local samples on 2 devices together .* Set --config.staleness=0, or mesh",
        ),
        (
            {"tensor": 2, "expert": 4}, {"engine.lanes": 2},
            r"engine.lanes is 2, but engine.name=local samples on 8 devices .*; set --config.engine.lanes=1$",
        ),
        (
            {"data": 8}, {"engine.lanes": 2, "engine.slots": 24},
            r"engine.slots is 24, .* 8 replicas \(data × fsdp × context\) of .*; set --config.engine.slots=32$",
        ),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_the_fix(sizes: dict[str, int], settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        processes.check_mesh(given(sizes, settings))


def test_a_row_must_be_cut_into_equal_blocks() -> None:
    cpu, tpu = (types.SimpleNamespace(platform=name) for name in ("cpu", "tpu"))
    processes.check_row_length(24, 4, cpu, "float32")
    processes.check_row_length(4096, 4, tpu, "bfloat16")
    processes.check_row_length(25, 1, cpu, "float32")
    with pytest.raises(ValueError, match=r"row_length is 25, and mesh.context=4 .*: --config.learner.row_length=32$"):
        processes.check_row_length(25, 4, cpu, "float32")
    with pytest.raises(ValueError, match=r"multiple of 512: --config.learner.row_length=4608$"):
        processes.check_row_length(4104, 4, tpu, "bfloat16")


def test_a_card_without_a_kernel_for_parts_of_rows_is_refused() -> None:
    ampere = types.SimpleNamespace(platform="gpu", compute_capability="8.0")
    with pytest.raises(
        ValueError, match=r"only tokamax's computes parts of rows: .*; else set --config.mesh.context=1$"
    ):
        processes.check_row_length(4096, 2, ampere, "bfloat16")
