"""The half of the campaign that plays hostile episodes, many at once, and looks for leaks afterwards."""

import contextlib
import dataclasses
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from campaign import leaks, playing
from campaign.cases import EPISODES, Canary, Violation, kinds

# Episodes of each kind that run at the same time.
_AT_ONCE: Mapping[str, int] = {"appworld": 4, "bfcl": 6, "desk": 6, "wild": 4, "drafts": 2, "mcp": 2, "tools": 1}
# One episode in so many is rendered as training renders it.
_RENDERED = 10
# The part of the episodes after which memory is first measured: caches and allocators are full then.
_WARM = 0.25
# The most megabytes that a supervisor may hold, whatever its children send.
_PEAK = 160.0


@dataclasses.dataclass
class Half:
    """The results of one half: how many cases of each kind were played, the violations, and seconds."""

    played: Counter[str] = dataclasses.field(default_factory=Counter)
    violations: list[Violation] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


Say = Callable[[str], None]
Makers = Mapping[str, Callable[[Canary], playing.CaseSource]]


def sources() -> Makers:
    """The makers of each kind's cases; a kind's module is imported only if it is played."""

    def bfcl(canary: Canary) -> playing.CaseSource:
        from campaign.bfcl import BfclCases

        return BfclCases(canary)

    def appworld(canary: Canary) -> playing.CaseSource:
        from campaign.appworld import AppWorldCases

        return AppWorldCases(canary)

    def desk(canary: Canary) -> playing.CaseSource:
        from campaign.desk import DeskCases

        return DeskCases(canary)

    def wild(canary: Canary) -> playing.CaseSource:
        from campaign.hostile_cases import HostileCases

        return HostileCases(canary)

    def drafts(canary: Canary) -> playing.CaseSource:
        from campaign.drafts import DraftCases

        return DraftCases(canary)

    def mcp(canary: Canary) -> playing.CaseSource:
        from campaign.mcp import McpCases

        return McpCases(canary)

    def tools(canary: Canary) -> playing.CaseSource:
        from campaign.tools import ToolCases

        return ToolCases(canary)

    made = {"bfcl": bfcl, "appworld": appworld, "desk": desk, "wild": wild}
    return {**made, "drafts": drafts, "mcp": mcp, "tools": tools}


class Player:
    """Plays and judges cases of the chosen kinds."""

    def __init__(self, makers: Makers, chosen: Collection[str], seed: int, canary: Canary) -> None:
        self.seed, self.canary, self.rendering = seed, canary, playing.Rendering()
        self.sources: dict[str, playing.CaseSource] = {}
        self.stopped = threading.Event()
        try:
            for name in sorted(chosen):
                self.sources[name] = makers[name](canary)
            self.rendering.chat  # noqa: B018  made before anything is measured
        except BaseException:
            self.close()
            raise

    @property
    def supervisors(self) -> tuple[int, ...]:
        return tuple(pid for source in self.sources.values() for pid in source.supervisors())

    def play(self, kind: str, number: int) -> list[Violation]:
        """Plays one case; returns its violations."""
        id = f"e{number}"
        source = self.sources[kind]
        case = source.case(id, self.seed)
        if isinstance(source, playing.ExaminedCases):
            return source.examine(case, self.seed)
        trajectory = playing.play(source.environment, case, self.stopped.is_set)
        found = playing.judge(case, trajectory, self.canary)
        return found if number % _RENDERED else found + self.rendering.judge(case, trajectory)

    def close(self) -> None:
        self.stopped.set()
        for source in self.sources.values():
            source.close()


def plan(count: int, only: Collection[str] = ()) -> list[str]:
    """The kind of each episode."""
    cycle = kinds(EPISODES, only)
    return list(itertools.islice(itertools.cycle(cycle), count))


def run(
    count: int, seed: int, canary: Canary, say: Say, only: Collection[str] = (), makers: Makers | None = None
) -> Half:
    """Plays the episodes 0 … count - 1 of the seed."""
    half, began = Half(), time.monotonic()
    order = plan(count, only)
    start, moment = leaks.measure(), time.time()
    player = Player(makers or sources(), set(order), seed, canary)
    try:
        open_ = leaks.measure(player.supervisors)
        warm = int(_WARM * count)
        _play(player, list(enumerate(order))[:warm], half, count, say)
        full = leaks.measure(player.supervisors)
        _play(player, list(enumerate(order))[warm:], half, count, say)
        after = leaks.wait_until_settled(open_, player.supervisors)
        half.violations += leaks.leaked(open_, after, "episodes")
        half.violations += leaks.memory_growth(full if warm else open_, after, "episodes")
        half.violations += _peaks(player.supervisors)
    finally:
        player.close()
    half.violations += leaks.leaked(start, leaks.wait_until_settled(start), "episodes, closed")
    half.violations += leaks.traces(canary, moment)
    half.seconds = time.monotonic() - began
    return half


def one(number: int, seed: int, canary: Canary, only: Collection[str] = ()) -> list[Violation]:
    """Plays one episode alone."""
    kind = plan(number + 1, only)[number]
    with contextlib.closing(Player(sources(), {kind}, seed, canary)) as player:
        return player.play(kind, number)


def _play(player: Player, cases: Sequence[tuple[int, str]], half: Half, total: int, say: Say) -> None:
    """Plays the cases; each kind has threads of its own."""
    pools = {kind: ThreadPoolExecutor(_AT_ONCE[kind], f"campaign-{kind}") for kind in player.sources}
    waiting: dict[Future[list[Violation]], str] = {}
    try:
        waiting = {pools[kind].submit(player.play, kind, number): kind for number, kind in cases}
        for future in _done(waiting, half, total, say):
            half.played[waiting[future]] += 1
            half.violations += future.result()
    except BaseException:
        player.stopped.set()
        raise
    finally:
        for pool in pools.values():
            pool.shutdown(wait=True, cancel_futures=True)


def _done(
    waiting: Mapping[Future[list[Violation]], str], half: Half, total: int, say: Say
) -> Iterator[Future[list[Violation]]]:
    """The futures as they are done; reports progress every ten seconds."""
    reported = time.monotonic()
    for future in as_completed(waiting):
        yield future
        if time.monotonic() - reported > 10.0:
            reported = time.monotonic()
            say(f"{sum(half.played.values()):,} of {total:,} episodes, {len(half.violations)} violations")


def _peaks(supervisors: Sequence[int]) -> list[Violation]:
    peaks = ((pid, leaks.peak(pid)) for pid in supervisors)
    return [
        Violation("leaked", "episodes", f"supervisor {pid} held {held:.0f} MB, more than {_PEAK:.0f}")
        for pid, held in peaks
        if held > _PEAK
    ]
