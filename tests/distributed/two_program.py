"""Run in two processes by test_two_processes.py: PROCESS PORT FOLDER MODE."""

from __future__ import annotations

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

from cojax.distributed.admission import admit, ask_admission
from cojax.distributed.checkpoints import LeadArrayFiles, divided
from cojax.distributed.follow import Follower
from cojax.distributed.lead import Lead
from cojax.distributed.start import Start, find_devices, start
from cojax.distributed.wire import Wire
from cojax.learner.hosts import on_host, replicated
from cojax.learner.train_state import TrainState
from cojax.policy.sharding import make_mesh, place
from cojax.storage.array_files import ArrayFiles

PROCESS, PORT, FOLDER, MODE = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
FACTS = {"commit": "abc"}


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


def outline(state: TrainState) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def lead(wire: Wire) -> None:
    leads = Lead(wire, 1)
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows[0, 0] = -0.0
    large = np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8)
    assert leads.run("check", lambda *_: None, large, np.int8(-3), np.asarray(1.5, jnp.bfloat16)) is None
    state = leads.run("begin", begin, rows)
    like = outline(state)
    if MODE == "follower dies":
        leads.run("die", lambda: None)
    state = leads.run("step", step, state)
    if MODE == "leader dies":
        os.kill(os.getpid(), signal.SIGKILL)
    files = LeadArrayFiles(leads)
    files.save(FOLDER / "arrays", state)
    found = on_host(leads.run("replicate", replicated, state))
    del state
    restored = files.restore(FOLDER / "arrays", like)
    again = leads.run("step", step, restored)
    whole = on_host(leads.run("replicate", replicated, again))
    print(
        json.dumps({"once": found.params["w"].tolist(), "twice": whole.params["w"].tolist(), "step": int(whole.step)})
    )
    wire.send({"kind": "end", "status": 0, "line": ""})
    wire.part()


def follow(wire: Wire) -> None:
    outlines = []

    def begun(rows: np.ndarray) -> TrainState:
        assert np.signbit(rows[0, 0])
        outlines.append(outline(state := begin(rows)))
        return state

    def check(large: np.ndarray, small: np.int8, half: Any) -> None:
        assert np.array_equal(large, np.random.default_rng(0).integers(0, 256, 3_000_001, np.uint8))
        assert (small, small.dtype, float(half), str(half.dtype)) == (-3, np.int8, 1.5, "bfloat16")

    files = ArrayFiles()
    operations = {
        "begin": begun, "step": step, "replicate": replicated, "check": check,
        "save": lambda folder, target, second: files.save(Path(folder), target),
        "restore": lambda folder, second: divided(files.restore(Path(folder), outlines[0])),
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }  # fmt: skip
    status = Follower(wire, operations).follow()
    wire.part()
    print(json.dumps({"status": status}))


if __name__ == "__main__":
    connected = start(Start(f"127.0.0.1:{PORT}", 2, PROCESS, 120.0, 20.0))
    wire = Wire(connected.connections, 20.0, lost)
    if PROCESS:
        ask_admission(wire, FACTS, 60.0)
        find_devices()
        follow(wire)
    else:
        admit(wire, 2, FACTS, FOLDER, 60.0)
        find_devices()
        try:
            lead(wire)
        except jax.errors.JaxRuntimeError:
            time.sleep(10.0)  # the wire says which process is lost
            raise
