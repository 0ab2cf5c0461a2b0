"""Run in two processes by test_two_processes.py: PROCESS PORT FOLDER MODE."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from cojax.distributed.operations import Follower, Lead, make_array_files
from cojax.distributed.start import admit, ask_admission, connect_processes, find_devices
from cojax.distributed.wire import Wire
from cojax.learner.placement import check_finite, gather_leaf, make_weights, replicate, to_host
from cojax.learner.update import TrainState, split_states
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params
from cojax.policy.saved_params import save_params
from cojax.policy.sharding import make_mesh, place, shard
from cojax.rollout.export import write_item, write_weights
from cojax.settings.tree import DistributedSettings
from cojax.storage.checkpoint import ORBAX_FILES

sys.path.append(str(Path(__file__).parents[1]))
from compiling import initialize

PROCESS, PORT, FOLDER, MODE = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
FACTS = {"commit": "abc"}
CONFIG = ModelConfig(16, 32, 48, 2, 4, 2, 16)
DTYPES = ("float32", "bfloat16", "float16")


def lost(number: int, reason: str) -> None:
    os.write(2, f"process {number} is gone: {reason}\n".encode())
    os._exit(7)


def begin(rows: np.ndarray) -> TrainState:
    """A state whose parameters are spread over all devices of both processes."""
    mesh = make_mesh(fsdp=-1)
    everywhere = NamedSharding(mesh, PartitionSpec())
    params = {"w": place(rows, NamedSharding(mesh, PartitionSpec("fsdp")))}
    return TrainState(place(np.int32(0), everywhere), params, {"m": place(rows[0], everywhere)})


@jax.jit
def step(state: TrainState) -> TrainState:
    return TrainState(state.step + 1, jax.tree.map(lambda w: w * 2 + w.sum(), state.params), state.opt_state)


def model(seed: int) -> Params:
    """Parameters that are spread over all devices of both processes, a large one among them."""
    params = initialize(CONFIG, seed)
    params["final_norm"]["scale"] = params["final_norm"]["scale"].at[3].set(70_000.0 if seed else 65_519.0)
    return shard(CONFIG, params, make_mesh(fsdp=2, tensor=2))


def run(leads: Lead, name: str, compute: Any, argument: Any) -> Any:
    with leads.operation(name, argument) as finish:
        return finish(compute(argument))


def save_weights(leads: Lead) -> str:
    """Writes the policy for servers both ways, and tries to write one that is not finite as float16: why it cannot."""
    params = run(leads, "model", model, 0)
    weights = make_weights(CONFIG, lambda: params, leads, 1, lambda: "")
    for dtype in DTYPES:
        write_weights(FOLDER / "gathered" / dtype, CONFIG, weights.arrays(), dtype, label="x")
        write_item(FOLDER / "saved" / dtype, CONFIG, weights.save, dtype, "x")
    large = run(leads, "model", model, 1)
    save = make_weights(CONFIG, lambda: large, leads, 1, lambda: "").save
    try:
        write_item(FOLDER / "saved" / "large", CONFIG, save, "float16", "")
    except ValueError as error:
        return str(error)
    return ""


def outline(state: TrainState) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def lead(wire: Wire) -> None:
    leads = Lead(wire, 1)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows[0, 0] = -0.0
    large = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8)
    with leads.operation("check", large, np.int8(-3), np.asarray(1.5, jnp.bfloat16)):
        pass
    refused = save_weights(leads) if MODE == "work" else ""
    state = run(leads, "begin", begin, rows)
    like = outline(state)
    if MODE == "follower dies":
        with leads.operation("die"):
            pass
    state = run(leads, "step", step, state)
    if MODE == "leader dies":
        os.kill(os.getpid(), signal.SIGKILL)
    save, restore = make_array_files(leads)
    save(FOLDER / "arrays", state)
    found = to_host(run(leads, "replicate", replicate, state))
    del state
    restored = restore(FOLDER / "arrays", like)
    again = run(leads, "step", step, restored)
    whole = to_host(run(leads, "replicate", replicate, again))
    once, twice = found.params["w"].tolist(), whole.params["w"].tolist()
    print(json.dumps({"once": once, "twice": twice, "step": int(whole.step), "refused": refused}))
    wire.send({"kind": "end", "status": 0, "line": ""})
    wire.say_farewell()


def follow(wire: Wire) -> None:
    outlines = []

    def begun(rows: np.ndarray) -> TrainState:
        assert np.signbit(rows[0, 0])
        outlines.append(outline(state := begin(rows)))
        return state

    def check(large: np.ndarray, small: np.int8, half: Any) -> None:
        assert np.array_equal(large, np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8))
        assert (small, small.dtype, float(half), str(half.dtype)) == (-3, np.int8, 1.5, "bfloat16")

    save, restore = ORBAX_FILES
    operations = {
        "begin": begun, "step": step, "replicate": replicate, "check": check,
        "save": lambda folder, target, second: save(Path(folder), target),
        "restore": lambda folder, second: split_states(restore(Path(folder), outlines[0])),
        "model": model, "gather_leaf": functools.partial(gather_leaf, CONFIG),
        "finite": functools.partial(check_finite, CONFIG), "save_params": save_params,
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }  # fmt: skip
    status = Follower(wire, operations).follow()
    wire.say_farewell()
    print(json.dumps({"status": status}))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    _, _, connections = connect_processes(DistributedSettings(True, f"127.0.0.1:{PORT}", 2, PROCESS, 120.0, 20.0))
    wire = Wire(connections, 20.0, lost)
    if PROCESS:
        ask_admission(wire, FACTS, 60.0)
        find_devices()
        follow(wire)
    else:
        admit(wire, 2, FACTS, {"workdir": FOLDER}, 60.0)
        find_devices()
        try:
            lead(wire)
        except jax.errors.JaxRuntimeError:
            time.sleep(10.0)  # the wire says which process is lost
            raise
