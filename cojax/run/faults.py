"""`cojax audit --trainer`: does a failure of the machinery become a reward?

A two-step run on the desk, with a tiny untrained policy, is played once undisturbed, then once with each fault. A fault
strikes one episode of the first step, whose undisturbed reward is 1.
"""

import collections
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import jax

from cojax import worlds
from cojax.coevolve import coevolve
from cojax.environment import Demonstrated, EngineError, Environment, EnvironmentFailure, Episode, LimitExceeded
from cojax.environment.wrapping import Wrapped
from cojax.host.stopwatch import Stopwatch
from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.loop import Loop, State
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import initialize
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Sampling
from cojax.rollout.local import LocalEngine
from cojax.rollout.vocabulary import word_tokenizer
from cojax.types import Action, Check, Evaluation, Group, Observation, Task, Trajectory, content_hash

# What a fault becomes. Only `reward` is a failure of the trainer. `unchanged`: the episode is as without the fault, for
# it was played again or its verdict stands. `the action's doing`: reward 0, because an action brings the fault about.
VERDICTS = ("reward", "infrastructure loss", "error", "unchanged", "the action's doing")
_TASKS, _GROUP_SIZE = 2, 4
_DEADLINE_S, _ENGINE_DEADLINE_S, _HANG_S = 0.5, 2.0, 60.0
_DEAD_WORKER, _ACTED = "finds its worker dead", "raises if there was an action"
_NONE: Any = None  # what only evolutions read; none is due


def _raise(error: type[Exception], reply: Callable[[], Any]) -> Any:
    raise error("injected")


Deed = Callable[[Callable[[], Any]], Any]  # gets the reply's maker, and replies itself or raises
_RAISES: Deed = partial(_raise, RuntimeError)
_EVERYWHERE: dict[str, Deed] = {
    "raises": _RAISES,
    "hangs": lambda reply: time.sleep(_HANG_S),  # its thread is a daemon, and abandoned
    _DEAD_WORKER: partial(_raise, EnvironmentFailure),
    "loses its process": partial(_raise, LimitExceeded),
    "replies nothing": lambda reply: None,
}
# Place → what happens there: a method of an episode, or `generate` of the engine.
DEEDS: Mapping[str, Mapping[str, Deed]] = {
    "reset": _EVERYWHERE,
    "tools": {"raises": _RAISES},
    "step": {**_EVERYWHERE, "replies no message": lambda reply: Observation(("x",))},  # type: ignore[arg-type]
    "evaluate": {
        **_EVERYWHERE,
        _ACTED: lambda reply: _RAISES(reply) if reply().checks else reply(),
        "rewards by NaN": lambda reply: Evaluation(float("nan")),
    },
    "close": {"raises": _RAISES},
    "generate": {
        "raises": _RAISES,
        "hangs": _EVERYWHERE["hangs"],
        "finds its server dead": partial(_raise, EngineError),
        "drifts from the tokens sampled": lambda reply: _begin(reply(), "tokens", 9),
        "returns a token of no vocabulary": lambda reply: _begin(reply(), "tokens", 10**6),
        "returns a log-prob too few": lambda reply: _begin(reply(), "logprobs"),
        "returns a log-prob of NaN": lambda reply: _begin(reply(), "logprobs", float("nan")),
    },
}


def _begin(completion: Any, column: str, *first: float) -> Any:
    """The completion with another first entry of a column, or without it."""
    return dataclasses.replace(completion, **{column: (*first, *getattr(completion, column)[1:])})


class Fault(NamedTuple):
    """A deed at a place of one episode: once, or whenever the episode is played again."""

    place: str
    deed: str
    lasts: bool


# Every deed, once and lasting.
FAULTS = [Fault(place, deed, lasts) for place, deeds in DEEDS.items() for deed in deeds for lasts in (False, True)]


class _Altered:
    """An object, some of whose methods are others."""

    def __init__(self, target: Any, **methods: Callable[..., Any]) -> None:
        self.__dict__.update(methods, target=target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def _strike(target: Any, fault: Fault) -> Any:
    """The object, one of whose methods does the fault's deed."""
    method, deed = getattr(target, fault.place), DEEDS[fault.place][fault.deed]
    return _Altered(target, **{fault.place: lambda *args, **options: deed(partial(method, *args, **options))})


class Trainer:
    """A run that can be played again and again: each play is the same until a fault strikes."""

    def __init__(self) -> None:
        self.world = cast(Demonstrated, worlds.load("desk"))
        self.chat = Chat(word_tokenizer(*self.world.lexicon(), self.world.tools()), no_document)
        self.model = ModelConfig(-(-len(self.chat.tokenizer) // 16) * 16, 32, 64, 1, 2, 1)
        self.learner = Learner(self.model, adamw(1e-3), loss_settings={"kl_coefficient": 0.0}, row_length=128)
        self.engine = LocalEngine(self.model, slots=1, lanes=1, max_length=128, prefill_rows=1)
        self.undisturbed = _index(self.run()[0])
        rewarded = [episode for episode in self.undisturbed.values() if episode.reward == 1.0]
        if not 0 < len(rewarded) < len(self.undisturbed):
            raise ValueError("all undisturbed episodes have one reward, so that a false one would not show")
        self.struck = rewarded[0]

    def run(self, fault: Fault | None = None) -> list[list[Group]]:
        """Plays both steps and returns their groups. Raises whatever ends the run."""
        steps: list[list[Group]] = []
        engine, engine_deadline_s = cast(Any, self.engine), 600.0
        if fault and fault.place == "generate":
            engine, engine_deadline_s = self._wrap_engine(fault, steps), _ENGINE_DEADLINE_S
        loop = Loop(
            self._wrap_world(fault, steps), engine, self.chat, self.learner, _NONE, _NONE, {}, _NONE, None,
            Sampling(max_tokens=8, stop_tokens=self.chat.stops),
            Limits(3, _DEADLINE_S, engine_deadline_s, concurrency=1), Stopwatch(), seed=0, steps=2, batch_size=_TASKS,
            group_size=_GROUP_SIZE, evolve_every=9, fresh_fraction=0.0, contexts=0, budget=0, per_context=0,
            checkpoint_every=9,
        )  # fmt: skip
        state = State(0, self._make_train_state(), TaskPool.of(self.world.tasks("eval", _TASKS)), {})
        directory: Any = SimpleNamespace(memory=[], add_episodes=lambda step, groups, signals: steps.append(groups))
        directory.save = lambda *arguments: None
        coevolve(loop, state, directory, lambda record: None)
        return steps

    def _wrap_world(self, fault: Fault | None, steps: list[list[Group]]) -> Environment:
        """The desk, which rewards about every second episode, by what was written. The fault strikes before `steps`
        has one. Episodes are played one by one, and again only after all others: their order tells which is struck."""
        play_counts: collections.Counter[str] = collections.Counter()

        def start(task: Task) -> Episode:
            number, episode, texts = play_counts[task.id], self.world.start(task), list[str]()
            play_counts[task.id] += 1

            def step(action: Action) -> Observation:
                texts.append(action.text)
                return episode.step(action)

            def evaluate() -> Evaluation:
                return Evaluation(float(int(content_hash(texts), 16) % 2), tuple(Check(text, True) for text in texts))

            rewarded: Any = _Altered(episode, step=step, evaluate=evaluate)
            if steps or fault is None or fault.place == "generate" or task.id != self.struck.task.id:
                return rewarded
            is_due = number == int(self.struck.episode[-1]) or (fault.lasts and number >= _GROUP_SIZE)
            return _strike(rewarded, fault) if is_due else rewarded

        return Wrapped(self.world, start)

    def _wrap_engine(self, fault: Fault, steps: list[list[Group]]) -> Any:
        """The engine, which the fault strikes before `steps` has one."""

        def generate(prompt: Any, sampling: Sampling, *, session: str, seed: Any) -> Any:
            episode, _, attempt = session.rpartition("-")
            is_due = not steps and episode == self.struck.episode and (fault.lasts or attempt == "0")
            engine = _strike(self.engine, fault) if is_due else self.engine
            return engine.generate(prompt, sampling, session=session, seed=seed)

        return _Altered(self.engine, generate=generate)

    def try_fault(self, fault: Fault) -> tuple[str, str]:
        """What the fault becomes, one of VERDICTS, and why."""
        try:
            groups = self.run(fault)[0]
        except Exception as error:  # of any type: it is seen, and nothing is learned
            return "error", f"{type(error).__name__}: {error}"
        episodes = _index(groups)
        struck = episodes[self.struck.episode]
        why = f"{struck.outcome}, reward {struck.reward:g} {struck.error}".strip()
        # A dead worker is dead whatever an action does.
        is_caused = fault.deed == _ACTED or (fault.place == "step" and fault.deed != _DEAD_WORKER)
        is_charged = fault.lasts and is_caused and (struck.outcome, struck.reward) == ("timeout", 0.0)
        changed = [name for name, episode in episodes.items() if episode.valid and episode != self.undisturbed[name]]
        if changed == [struck.episode] and is_charged:
            return "the action's doing", why
        if changed or (not struck.valid and self._learn(groups, struck, 0.0) != self._learn(groups, struck, 1.0)):
            return "reward", why
        return "unchanged" if struck.valid else "infrastructure loss", why

    def _learn(self, groups: list[Group], lost: Trajectory, reward: float) -> str:
        """The fingerprint of the weights after an update in which the lost episode has this reward."""
        altered = dataclasses.replace(lost, reward=reward)
        others = [[altered if episode is lost else episode for episode in group.trajectories] for group in groups]
        changed = [Group(group.task, tuple(episodes)) for group, episodes in zip(groups, others, strict=True)]
        return self.learner.fingerprint(self.learner.update(self._make_train_state(), changed)[0])

    def _make_train_state(self) -> Any:
        return self.learner.init(initialize(self.model, seed=0))


def _index(groups: list[Group]) -> dict[str, Trajectory]:
    return {episode.episode: episode for group in groups for episode in group.trajectories}


def main(*, as_json: bool) -> int:
    """Tries every fault and prints what it becomes. Returns 1 if one becomes a reward, else 0."""
    counts = dict.fromkeys(VERDICTS, 0)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling takes longer than running
    logging.disable(logging.WARNING)  # each lost episode is one
    try:
        trainer = Trainer()
        for fault in FAULTS:
            verdict, why = trainer.try_fault(fault)
            counts[verdict] += 1
            name = f"{fault.place} {fault.deed}, {'always' if fault.lasts else 'once'}"
            record = {"fault": name, "became": verdict, "why": why[:300]}
            print(json.dumps(record) if as_json else f"{verdict:20} {name:48} {why[:100]!a}", flush=True)
    finally:
        logging.disable(logging.NOTSET)
    trainer.engine.close()
    print(json.dumps({"faults": sum(counts.values()), "became": counts}) if as_json else counts, flush=True)
    return int(counts["reward"] > 0)
