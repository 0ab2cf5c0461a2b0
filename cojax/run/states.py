"""The state with which a run begins, and the one with which it goes on."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from ml_collections import ConfigDict

from cojax import signals
from cojax.environment import traits_of
from cojax.learner.learner import Learner
from cojax.learner.placement import copied
from cojax.learner.rehearsal import rehearse
from cojax.learner.update import TrainState, divided, united
from cojax.loop import Loop, State
from cojax.loop.evolution import evolution_record
from cojax.loop.records import save
from cojax.pool import TaskPool
from cojax.preference.rounds import version
from cojax.report.console import CONSOLE, explorer_line
from cojax.run import held_out, methods
from cojax.storage.files import write_json
from cojax.storage.run_directory import RunDirectory
from cojax.synthesis import Synthesis


def begin(
    config: ConfigDict, loop: Loop, train_state: Any, directory: RunDirectory, found: Callable[[], Synthesis]
) -> State:
    """The state at step 0, with D_0 from `found`, after the first checkpoint. A second agent begins as the policy."""
    directory.begin()
    with loop.clock("sync"):
        # An explorer may sample the policy, whose engine has no weights since the rehearsal.
        loop.engine.load(loop.learner.weights(train_state, 0))
    with loop.clock("feedback"):
        initial = found()
        directory.add_evolution(initial)
        write_json(directory.folder / "initial.json", evolution_record(initial, 0)["evolution"])
        directory.files.note(name for name in ("initial.json", held_out.FILE) if (directory.folder / name).exists())
    second = None
    if methods.has_second_agent(config):
        with loop.learner.hosts.operation("copy", train_state) as finish:
            second = finish(copied(train_state))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(second)) / 2**20
        CONSOLE.print(f"second agent: begins as the policy, {size:,.0f} MiB of parameters and moments", soft_wrap=True)
    state = State(0, train_state, TaskPool.of(initial.tasks), signals.init(loop.detectors), second=second)
    save(loop, state, directory)
    spent = f"; {explorer_line(initial.figures)}" if initial.figures else ""
    CONSOLE.print(f"D_0: {len(initial.tasks)} tasks {_origin(loop)}{spent}", soft_wrap=True)
    return state


def _origin(loop: Loop) -> str:
    """Where D_0 comes from, in words."""
    reason = traits_of(loop.environment).incomparable
    return f"of the environment's own, and nothing is synthesized: {reason}" if reason else "by unguided exploration"


def rehearsed(config: ConfigDict, loop: Loop, train_state: TrainState, second: TrainState | None = None) -> TrainState:
    """The same state, after a rehearsal: a step's largest batch fits into memory, together with the loaded engine.

    `second` is as in `second_agent_in_memory`.
    """
    with loop.clock("sync"):
        step = int(train_state.step)
        loop.engine.load(loop.learner.weights(train_state, version(step) if methods.rounds_of(config) else step))
        if not loop.staleness:
            loop.engine.rest()
    with loop.clock("update"), second_agent_in_memory(config, loop.learner, train_state, second):
        return rehearse(loop.learner, train_state, methods.update_sizes(config))


@contextlib.contextmanager
def second_agent_in_memory(
    config: ConfigDict, learner: Learner, train_state: TrainState, second: TrainState | None = None
) -> Iterator[None]:
    """A second agent, where the configuration has one, lies in memory within the block.

    That is `second`, which a run that goes on has restored; where none is given, a copy of the policy.
    """
    if second is None and methods.has_second_agent(config):
        with learner.hosts.operation("copy", train_state) as finish:
            second = finish(copied(train_state))
    yield


def resume(config: ConfigDict, loop: Loop, train_state: TrainState, directory: RunDirectory) -> State | None:
    """The state of the newest checkpoint, or None where there is none; `train_state` gives its shapes."""
    like = united(train_state, train_state if methods.has_second_agent(config) else None)
    with loop.clock("checkpoint"):
        found = directory.resume(like, signals.init(loop.detectors))
    if found is None:
        return None
    loop.clock.restore(found.host["clock"])
    CONSOLE.print(f"resumed at step {found.step}")
    learner, second = divided(found.arrays)
    return State(
        found.step,
        learner,
        found.pool,
        found.memory,
        found.pending,
        found.host["evolved"],
        found.waiting,
        found.host.get("record"),
        second,
    )
