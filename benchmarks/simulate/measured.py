"""Distributions from the times of runs: the servers' rate by concurrency, and what the other parts of a step cost."""

import dataclasses
import heapq
import random
import statistics
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import nnls

from benchmarks.simulate.rollout import Played, Rollout, Work
from benchmarks.simulate.servers import Rates, Server
from benchmarks.simulate.steps import System
from benchmarks.simulate.times import EpisodeTimes, RunTimes, StepTimes, TurnTimes

# Numbers of requests at once between which rates are averaged.
_RATE_EDGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096)
_MIN_BUCKET_S = 0.2  # spent at a number of requests, below which its rate is not counted


@dataclasses.dataclass(frozen=True)
class Cost:
    """`fixed` + `each` · units seconds, times a ratio drawn from those that were measured."""

    fixed: float
    each: float
    ratios: tuple[float, ...]

    def __call__(self, rng: random.Random, units: float = 0.0) -> float:
        return (self.fixed + self.each * units) * rng.choice(self.ratios)


def fit_cost(units: Sequence[float], seconds: Sequence[float]) -> Cost:
    """The cost that is nearest to measured seconds in squares, with no negative part; all zero where nothing was."""
    if not seconds or not any(seconds):
        return Cost(0.0, 0.0, (1.0,))
    (fixed, each), _ = nnls(np.column_stack([np.ones(len(units)), units]), np.asarray(seconds, float))
    expected = [fixed + each * unit for unit in units]
    return Cost(
        float(fixed),
        float(each),
        tuple(second / expected_s for second, expected_s in zip(seconds, expected, strict=True) if expected_s > 0),
    )


@dataclasses.dataclass(frozen=True)
class Demand:
    """The work of a turn, linear in its tokens; in units in which the mean turn measured has the work 1."""

    request: float
    sampled: float
    prompt: float

    def __call__(self, turn: TurnTimes) -> float:
        return self.request + self.sampled * turn.sampled + self.prompt * turn.prompt


@dataclasses.dataclass(frozen=True)
class Measured:
    """What runs with one number of servers measured. `rates` are those of one server, in mean turns a second.

    `pace` are the seconds of each rollout measured, divided by those of its simulation with the same episodes.
    """

    servers: int
    groups: tuple[tuple[EpisodeTimes, ...], ...]
    demand: Demand
    rates: Rates
    pace: Cost
    update: Cost
    sync: Cost
    evolution: Cost
    host: Cost
    evolve_every: int

    def system(self, tasks: int, group_size: int, conversations: int) -> System:
        """The measured machine with other numbers of tasks a step, episodes of each, and conversations at once."""
        return System(
            groups=lambda rng: [
                _make_works(self.demand, group) for group in draw_groups(self.groups, tasks, group_size, rng)
            ],
            rate=self.rates,
            pace=self.pace,
            servers=self.servers,
            conversations=conversations,
            update=lambda rng, tokens: self.update(rng, tokens) if tokens else 0.0,
            sync=self.sync,
            evolution=self.evolution,
            host=self.host,
            evolve_every=self.evolve_every,
        )


def draw_groups(
    groups: Sequence[Sequence[EpisodeTimes]], task_count: int, group_size: int, rng: random.Random
) -> list[list[EpisodeTimes]]:
    """Groups drawn from those measured, each whole where it has `group_size` episodes, else drawn from again."""
    chosen_groups = rng.choices(groups, k=task_count)
    return [list(group) if len(group) == group_size else rng.choices(group, k=group_size) for group in chosen_groups]


def measure_runs(runs: Sequence[RunTimes], servers: int) -> Measured:
    """The distributions of the runs with so many servers.

    Raises ValueError if there is none, and for a run with a staleness or a quorum: its steps do not show how long its
    rollouts took.
    """
    if mixed_sizes := [run.name for run in runs if run.staleness or run.quorum < 1.0]:
        raise ValueError(
            f"{mixed_sizes[0]} has a staleness or a quorum; distributions need runs of staleness 0 and quorum 1"
        )
    chosen_runs = [run for run in runs if run.servers == servers]
    if not chosen_runs:
        server_counts = ", ".join(str(count) for count in sorted({run.servers for run in runs}))
        raise ValueError(
            f"no run with {servers} servers is given, only with {server_counts or 'none'}; add one of them"
        )
    steps = [step for run in chosen_runs for step in run.steps]
    turns = [turn for step in steps for episode in step.episodes for turn in episode.turns]
    demand = fit_demand(turns)
    rates = fit_rates([(step, run.conversations) for run in chosen_runs for step in run.steps], demand, servers)
    expected = [
        replay_step(step, run.conversations, demand, rates, servers).seconds
        for run in chosen_runs
        for step in run.steps
    ]
    plain, evolved = [s for s in steps if not s.evolved], [s for s in steps if s.evolved]
    return Measured(
        servers=servers,
        groups=tuple(group for step in steps for group in step.groups),
        demand=demand,
        rates=rates,
        pace=Cost(1.0, 0.0, tuple(step.rollout / wanted for step, wanted in zip(steps, expected, strict=True))),
        update=fit_cost(
            *_unzip_pairs((_count_live_tokens(s), s.seconds.get("update", 0.0)) for s in steps if _count_live_tokens(s))
        ),
        sync=fit_cost([0.0] * len(steps), [s.seconds.get("sync", 0.0) for s in steps]),
        evolution=fit_cost([0.0] * len(evolved), [_sum_thinking_s(s) for s in evolved]),
        host=fit_cost(
            *_unzip_pairs(
                (len(s.episodes), _sum_thinking_s(s) + s.seconds.get("checkpoint", 0.0) + s.other) for s in plain
            )
        ),
        evolve_every=min(run.evolve_every for run in chosen_runs),
    )


def replay_step(step: StepTimes, conversations: int, demand: Demand, rates: Rates, servers: int) -> Played:
    """The simulated rollout of a step's own episodes."""
    engines: list[Server[int]] = [Server(rates) for _ in range(servers)]
    return Rollout([_make_works(demand, group) for group in step.groups], engines, conversations).play()


def fit_demand(turns: Sequence[TurnTimes]) -> Demand:
    """The work of turns, from how long the engine took for each: least squares without a negative part."""
    features = np.array([[1.0, turn.sampled, turn.prompt] for turn in turns])
    coefficients, _ = nnls(features, np.array([turn.engine for turn in turns]))
    mean = float((features @ coefficients).mean())
    if mean <= 0:
        return Demand(1.0, 0.0, 0.0)
    request, sampled, prompt = (float(part) / mean for part in coefficients)
    return Demand(request, sampled, prompt)


def fit_rates(steps: Sequence[tuple[StepTimes, int]], demand: Demand, servers: int) -> Rates:
    """The work a second of one server by its requests at once, from steps and how many conversations they had at once.

    When each request began follows from the order in which episodes begin and from how long their parts took. A request
    is taken to advance evenly; requests are taken to be spread evenly over the servers.
    """
    seconds, work_sums, edge_requests = ([0.0] * len(_RATE_EDGES) for _ in range(3))
    for step, conversations in steps:
        for spent_s, requests, rate in _list_moments(list(_list_requests(step, conversations, demand))):
            bucket = max(i for i, edge in enumerate(_RATE_EDGES) if edge <= requests)
            seconds[bucket] += spent_s
            work_sums[bucket] += spent_s * rate
            edge_requests[bucket] += spent_s * requests
    return Rates(
        tuple(
            (number / spent / servers, work / spent / servers)
            for number, work, spent in zip(edge_requests, work_sums, seconds, strict=True)
            if spent >= min(_MIN_BUCKET_S, max(seconds))
        )
    )


def _list_requests(step: StepTimes, conversations: int, demand: Demand) -> Iterator[tuple[float, float, float]]:
    """(begin, end, work) of every request of a step, whose episodes begin in their order as others end."""
    free = [0.0] * conversations
    for episode in step.episodes:
        now = heapq.heappop(free) + episode.opening
        for turn in episode.turns:
            yield now, now + turn.engine, demand(turn)
            now += turn.engine + turn.world
        heapq.heappush(free, now + episode.verdict)


def _list_moments(requests: Sequence[tuple[float, float, float]]) -> Iterator[tuple[float, int, float]]:
    """(seconds, requests at once, work a second) of each stretch in which the same requests run."""
    changes = [
        (time, sign, sign * work / max(end - begin, 1e-9))
        for begin, end, work in requests
        for time, sign in ((begin, 1), (end, -1))
    ]
    previous_time, count, rate = 0.0, 0, 0.0
    for time, change_sign, change in sorted(changes):
        if count and time > previous_time:
            yield time - previous_time, count, rate
        previous_time, count, rate = time, count + change_sign, rate + change


def _make_works(demand: Demand, group: Sequence[EpisodeTimes]) -> list[Work]:
    return [Work(e.opening, tuple((demand(t), t.world) for t in e.turns), e.verdict, e.tokens, e.reward) for e in group]


def _count_live_tokens(step: StepTimes) -> float:
    """The tokens that the step's update reads: those of groups whose rewards differ."""
    return sum(e.tokens for group in step.groups if len({e.reward for e in group}) > 1 for e in group)


def _sum_thinking_s(step: StepTimes) -> float:
    return step.seconds.get("feedback", 0.0) + step.seconds.get("evaluation", 0.0)


def _unzip_pairs(pairs: Iterator[tuple[float, float]]) -> tuple[list[float], list[float]]:
    pair_list = list(pairs)
    return [units for units, _ in pair_list], [seconds for _, seconds in pair_list]


def median_step(run: RunTimes) -> float:
    """The median seconds of a run's steps."""
    return statistics.median(step.seconds["total"] for step in run.steps)
