"""A machine of many accelerators, from stated assumptions: what nobody here could measure.

The variation of episodes is that of measured ones; their means are assumed. The defaults are Qwen3-4B on H100s, all of
its weights learned with a reference, by its row of the compile table, and episodes as long as AppWorld's. Every figure
is an argument.
"""

import dataclasses
import math
import random
import statistics
from collections.abc import Sequence

from benchmarks.simulate.measured import draw_groups
from benchmarks.simulate.rollout import Work
from benchmarks.simulate.servers import Rates
from benchmarks.simulate.steps import System
from benchmarks.simulate.times import EpisodeTimes, TurnTimes


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Bytes, operations and seconds; rates are those of one accelerator.

    Accelerator: `peak` operations and `bandwidth` bytes of memory a second, `memory` bytes; `link` bytes a second to
    the other accelerators of a `node`, `network` beyond it. `compute_share`, `memory_share` and `network_share` are
    what is reached of these.

    Update: `update_operations` and `update_bytes` that a device computes and sends for each of its micro-batches of
    `row` tokens, one row a device, which overlap. A device without a row of its own waits.

    Server: on `per_server` accelerators; the model's `weights`, and `cache` bytes a token of context. Each decoding
    step takes `overhead` seconds besides the longer of reading memory and computing.

    Weights: written at `write` and read by every server at `read` bytes a second, and `switch` seconds more. A
    checkpoint of `state` bytes is written at `write` every 10 steps. `alternate` are the seconds to give the memory to
    the servers and back, where learner and servers share all accelerators.

    Episodes: mean `turns`, at most `max_turns`, with a mean of `sampled` and `prompt` tokens each, and `world`
    seconds; `opening` and `verdict` seconds. An evolution takes `evolution` seconds every `evolve_every` steps. `host`
    seconds an episode are those of signals, logs and records, measured by experiments.bench scale.
    """

    peak: float = 989e12
    bandwidth: float = 3.35e12
    memory: float = 80e9
    link: float = 450e9
    network: float = 50e9
    node: int = 8
    compute_share: float = 0.4
    memory_share: float = 0.6
    network_share: float = 0.7
    update_operations: float = 216.0e15 / 256
    update_bytes: float = 932e9 / 32
    row: int = 16_384
    per_server: int = 1
    parameters: float = 4.02e9
    weights: float = 8.04e9
    cache: float = 147_456.0
    overhead: float = 0.004
    write: float = 5e9
    read: float = 2e9
    switch: float = 2.0
    state: float = 48.3e9
    alternate: float = 10.0
    turns: float = 15.0
    max_turns: int = 40
    sampled: float = 150.0
    prompt: float = 300.0
    world: float = 0.8
    opening: float = 3.5
    verdict: float = 3.9
    evolution: float = 300.0
    evolve_every: int = 10
    host: float = 0.0003

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0 < value < math.inf:
                raise ValueError(f"{field.name} is {value}; expected a number above 0")

    @property
    def context(self) -> float:
        """Mean tokens of a conversation while it is sampled from: half of what it has at its end."""
        return (self.sampled + self.prompt) * (self.turns + 1) / 2

    @property
    def slots(self) -> int:
        """Conversations of a server, so that their caches fit at twice the mean context."""
        free_bytes = 0.85 * self.memory * self.per_server - self.weights
        return max(1, int(free_bytes / (2 * self.context * self.cache)))

    def rates(self) -> Rates:
        """Tokens a second of one server by its requests at once: the roofline of a decoding step."""
        request_counts = sorted({min(self.slots, 2**power) for power in range(16)})
        return Rates(
            tuple(
                (float(request_count), request_count / self._decoding(request_count))
                for request_count in request_counts
            )
        )

    def _decoding(self, request_count: int) -> float:
        bytes_per_s = self.per_server * self.memory_share * self.bandwidth
        read_s = (self.weights + request_count * self.context * self.cache) / bytes_per_s
        return self.overhead + max(read_s, request_count * self.per_token)

    @property
    def per_token(self) -> float:
        """Seconds in which a server computes one token of the forward pass."""
        return 2 * self.parameters / (self.per_server * self.compute_share * self.peak)

    def demand(self, turn: TurnTimes) -> float:
        """A turn's work in decoded tokens of a full server: its prompt costs its computation alone."""
        token_s = self._decoding(self.slots) / self.slots
        return turn.sampled + turn.prompt * self.per_token / token_s

    def update_seconds(self, token_count: float, device_count: int) -> float:
        """Seconds of an update of packed rows with these tokens."""
        micro_batches = math.ceil(max(1.0, token_count) / (self.row * device_count))
        link_rate = self.link if device_count <= self.node else self.network
        compute_s = self.update_operations / (self.compute_share * self.peak)
        send_s = self.update_bytes / (self.network_share * link_rate) if device_count > 1 else 0.0
        return micro_batches * max(compute_s, send_s)

    @property
    def sync_seconds(self) -> float:
        return self.weights / self.write + self.weights / self.read + self.switch


@dataclasses.dataclass(frozen=True)
class Layout:
    """How accelerators are used: so many for the learner and for servers; `shared` if they are the same ones."""

    learner: int
    serving: int
    shared: bool = False


def list_layouts(accelerator_count: int, assumptions: Assumptions) -> list[Layout]:
    """All shared, or an eighth, a quarter, a half or three quarters for the learner and the others for servers."""
    learner_counts = {max(1, round(accelerator_count * share)) for share in (1 / 8, 1 / 4, 1 / 2, 3 / 4)}
    separate_layouts = [
        Layout(learner_count, accelerator_count - learner_count)
        for learner_count in sorted(learner_counts)
        if accelerator_count - learner_count >= assumptions.per_server
    ]
    return [Layout(accelerator_count, accelerator_count, shared=True), *separate_layouts]


def shape_episodes(groups: Sequence[Sequence[EpisodeTimes]], assumed: Assumptions) -> list[list[EpisodeTimes]]:
    """Measured groups, stretched to the assumed means: turns and tokens vary as they did, a world's time does not."""
    episodes = [episode for group in groups for episode in group if episode.turns]
    turns = [turn for episode in episodes for turn in episode.turns]
    mean_turns = len(turns) / len(episodes)
    sampled, prompt = (
        max(1e-9, statistics.fmean(counts)) for counts in zip(*((t.sampled, t.prompt) for t in turns), strict=True)
    )

    def stretch_episode(episode: EpisodeTimes) -> EpisodeTimes:
        turn_count = min(assumed.max_turns, max(1, round(len(episode.turns) * assumed.turns / mean_turns)))
        return EpisodeTimes(
            assumed.opening,
            assumed.verdict,
            episode.reward,
            tuple(
                TurnTimes(
                    round(turn.prompt * assumed.prompt / prompt),
                    max(1, round(turn.sampled * assumed.sampled / sampled)),
                    0.0,
                    assumed.world,
                )
                for turn in (episode.turns[place % len(episode.turns)] for place in range(turn_count))
            ),
        )

    return [
        [stretch_episode(episode) for episode in group if episode.turns]
        for group in groups
        if any(e.turns for e in group)
    ]


def make_system(
    groups: Sequence[Sequence[EpisodeTimes]],
    assumed: Assumptions,
    layout: Layout,
    *,
    task_count: int,
    group_size: int,
    staleness: int,
    quorum: float,
) -> System:
    """The machine with this layout, whose episodes are drawn from `groups`, already stretched."""
    servers = max(1, layout.serving // assumed.per_server)
    checkpoint = assumed.state / assumed.write / 10

    def draw_works(rng: random.Random) -> list[list[Work]]:
        return [
            [
                Work(e.opening, tuple((assumed.demand(t), t.world) for t in e.turns), e.verdict, e.tokens, e.reward)
                for e in group
            ]
            for group in draw_groups(groups, task_count, group_size, rng)
        ]

    return System(
        groups=draw_works,
        rate=assumed.rates(),
        servers=servers,
        conversations=min(task_count * group_size, servers * assumed.slots),
        update=lambda rng, tokens: assumed.update_seconds(tokens, layout.learner),
        sync=lambda rng: assumed.sync_seconds + (assumed.alternate if layout.shared else 0.0),
        evolution=lambda rng: assumed.evolution,
        host=lambda rng, episodes: episodes * assumed.host + checkpoint,
        slots=assumed.slots,
        staleness=staleness,
        quorum=quorum,
        evolve_every=assumed.evolve_every,
        evolve_beside=True,
    )
