"""Does a run from its start to its end: builds its parts, trains, evaluates, and writes the report."""

import contextlib
import dataclasses
import functools
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ml_collections import ConfigDict

from cojax.coevolve import coevolve
from cojax.coevolving import coevolving
from cojax.host.background import await_background
from cojax.host.processes import end_all, tell_owner
from cojax.host.stopwatch import Stopwatch
from cojax.learner.update import NonFiniteUpdate
from cojax.loop import Loop, State
from cojax.metrics import Metrics
from cojax.report import command as report
from cojax.report.console import CONSOLE, estimate_seconds, show_step, show_summary
from cojax.report.page import write_report
from cojax.run import assemble, methods, states
from cojax.run.checks import check_run
from cojax.run.configuration import make_file_record
from cojax.run.entries import describe, list_defaults
from cojax.run.machine import read_facts
from cojax.run.parts import similarities
from cojax.run.policies import announce, settle_model
from cojax.run.processes import ALONE, Together, drop_distributed, log_to, make_outlines
from cojax.run.summary import build_summary, measure_held_out, measure_zero_shot
from cojax.settings.compatibility import rename_keys
from cojax.storage.checksums import add_checksum
from cojax.storage.files import write_json
from cojax.storage.run_directory import RunDirectory
from cojax.storage.run_files import Checkpoint

_LOG = logging.getLogger("cojax")


class Stop:
    """True after the first SIGINT or SIGTERM during the loop, which then finishes its step and saves a checkpoint.

    A second signal ends the process immediately, as does a first signal outside the loop.
    """

    def __init__(self) -> None:
        self.number = 0
        self._is_looping = False
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, self._receive)

    def _receive(self, signal_number: int, frame: FrameType | None) -> None:
        if self.number or not self._is_looping:
            loss_hint = "" if self._is_looping else "; what was under way (warm start, D_0, an evaluation) starts over"
            CONSOLE.print(f"stopped; run the same command again to go on{loss_hint}")
            end_all()
            os._exit(128 + signal_number)
        self.number = signal_number
        CONSOLE.print("stopping with this step, an evolution at once; once more to stop at once")

    def accept_signal(self, signal_number: int) -> None:
        """Acts on a signal that another process received, unless this one did too: launchers signal them all."""
        if self._is_looping:
            self.number = self.number or signal_number
        elif not self.number:
            os.kill(os.getpid(), signal_number)

    @contextlib.contextmanager
    def mark_loop(self) -> Iterator[None]:
        """Marks that the loop runs within the block."""
        self._is_looping = True
        try:
            yield
        finally:
            self._is_looping = False

    def __call__(self) -> bool:
        return bool(self.number)


def run(config: ConfigDict, together: Together = ALONE) -> int:
    """Runs the experiment to its end, or to a signal; returns the exit status."""
    config = methods.apply_method(config)
    check_run(config)
    config = drop_distributed(settle_model(config))
    directory, checkpoint = _claim_directory(config, together)
    try:
        if _is_finished(config, directory, checkpoint):
            return 0
    except report.NOT_WRITTEN as error:
        raise ValueError(report.not_written([directory.folder], error)) from error
    stop, clock = Stop(), Stopwatch()
    together.on_stop = stop.accept_signal
    with clock("warm_start"):
        parts = states.build_parts(config, directory, checkpoint, together)
    find_tasks = functools.cache(functools.partial(states.find_initial_tasks, config, parts))
    try:
        with clock("warm_start"):
            announce(parts.chat, config.model.tools)
            is_resumed = checkpoint is not None
            states.keep_tokenizer(parts.chat.tokenizer, directory, checkpoint)
            params, origin = states.initial_policy(config, parts, lambda: find_tasks()[0], directory, checkpoint)
            states.keep_model(parts, params, origin, config, directory, checkpoint)
            learner = assemble.build_learner(config, parts, params)
            train_state = learner.init(params, config.seed)
            learner = assemble.choose_remat(config, learner, train_state)
            if not parts.evaluation:
                # An explorer may sample the policy.
                parts.engine.load(learner.weights(train_state, 0))
                parts = states.add_held_out_tasks(parts, directory.folder / states.HELD_OUT, is_resumed, find_tasks)
            loop = assemble.build_loop(config, parts, learner, clock)
            del params  # the learner has copied what it needs
        train_state = train_state if is_resumed else states.prove_fit(config, loop, train_state)
        zero_shot = measure_zero_shot(config, parts, learner, train_state, clock, directory)
        if is_resumed:
            # Only shapes are kept from here on, so that the restored arrays can take this memory.
            train_state = make_outlines(train_state)
        if state := states.resume(config, loop, train_state, directory):
            state = dataclasses.replace(state, learner=states.prove_fit(config, loop, state.learner, state.second))
        else:
            state = states.begin(config, loop, train_state, directory, lambda: find_tasks()[0])
        rounds = assemble.build_rounds(config, loop)
        with _record_steps(config, loop, state, directory) as record_step, stop.mark_loop():
            if rounds:
                state = coevolving(loop, rounds, state, directory, record_step, stop)
            else:
                state = coevolve(loop, state, directory, record_step, stop)
        if state.step < config.steps or stop():
            # A running call to a model is already paid for: its reply must reach the journal.
            await_background(config.llm.timeout)
            return _announce_stop(stop, config, state)
        with clock("evaluation"):
            final, episodes = measure_held_out(config, parts, "evaluation", config.evaluation.trials)
        directory.files.add_evaluation("final", final, episodes)
        summary = build_summary(
            state.step, directory, zero_shot, final, clock, similarities(config, parts.environment, parts.evaluation)
        )
        write_json(directory.folder / "summary.json", add_checksum(summary))
    finally:
        parts.engine.close()
    show_summary(summary, write_report(directory.folder))
    return 0


def _claim_directory(config: ConfigDict, together: Together) -> tuple[RunDirectory, Checkpoint | None]:
    """Claims the run directory; returns it with its verified checkpoint to resume from, None if it has none."""
    directory = RunDirectory(
        Path(config.workdir),
        checkpoints_kept=config.checkpoints_kept,
        episodes_kept=config.episodes_kept,
        array_files=together.array_files,
    )
    directory.in_todays_keys = functools.partial(rename_keys, defaults=list_defaults(config))
    plain_config = json.loads(json.dumps(config.to_dict()))
    origin_facts = {**read_facts(), **make_file_record(), "code": describe(config)}
    checkpoint = directory.claim(plain_config, origin_facts, accept_changed_code=config.accept_changed_code)
    log_to(directory.folder / "run.log")
    for warning in checkpoint.warnings if checkpoint else ():
        _LOG.warning(warning)
    return directory, checkpoint


def _is_finished(config: ConfigDict, directory: RunDirectory, checkpoint: Checkpoint | None) -> bool:
    """Whether the run has made all its steps. If so, shows its results."""
    summary = directory.summary(checkpoint)
    if summary is None or summary["steps"] < config.steps:
        return False
    step = summary["steps"]
    if checkpoint:
        directory.cut(checkpoint)
        step = checkpoint.step
    Metrics(directory.folder, step=step, log=directory.metrics).close()
    tell_owner(workdir=str(directory.folder.absolute()), step=summary["steps"])
    show_summary(summary, write_report(directory.folder))
    return True


@contextlib.contextmanager
def _record_steps(
    config: ConfigDict, loop: Loop, state: State, directory: RunDirectory
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields a function that takes the record of each step, and writes and shows its metrics."""
    with loop.clock("checkpoint"):
        plain_config = config.to_dict()
        wandb_project, metrics_log = config.wandb.project, directory.metrics
        metrics = Metrics(directory.folder, step=state.step, wandb=wandb_project, config=plain_config, log=metrics_log)
    # A record of the state's own step is written again.
    tell_owner(workdir=str(directory.folder.absolute()), step=state.step - (state.record is not None))
    step_seconds: list[float] = []
    loop.clock.lap()

    def record_step(record: dict[str, Any]) -> None:
        seconds, lap = record.get("seconds", {}), loop.clock.lap()
        record["seconds"] = {timer: seconds.get(timer, 0.0) + lap.get(timer, 0.0) for timer in {**seconds, **lap}}
        step_seconds.append(record["seconds"]["total"])
        with loop.clock("checkpoint"):
            metrics.write(record)
            show_step(record, config.steps, estimate_seconds(step_seconds, config.steps - record["step"]))
        if 0 < config.mismatch_alarm < record.get("logprob_mismatch", 0.0):
            _LOG.warning(
                f"step {record['step']}: the trainer's log-probs differ from the sampler's by "
                f"{record['logprob_mismatch']:.2g} on average, more than mismatch_alarm={config.mismatch_alarm}; "
                "check that both compute in the same dtype (model.dtype, sglang.dtype) and hold the same weights"
                + (f"; what the policy changed in {config.staleness} updates counts too" if config.staleness else "")
            )

    try:
        yield record_step
    except NonFiniteUpdate as error:
        error.save(directory.folder / "nonfinite_batch.npz")
        raise
    finally:
        metrics.close()


def _announce_stop(stop: Stop, config: ConfigDict, state: State) -> int:
    position_text = "at" if state.record is None else "in the evolution of"
    CONSOLE.print(
        f"stopped {position_text} step {state.step} of {config.steps}; run the same command again to go on, "
        f"or look at it by: cojax report {config.workdir}"
    )
    return 128 + stop.number
