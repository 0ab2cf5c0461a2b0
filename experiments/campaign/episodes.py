"""The half of the campaign that plays hostile episodes, many at once, and looks at what they leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from experiments.campaign import playing, residue
from experiments.campaign.cases import EPISODES, Canary, Violation, kinds

# Episodes of a kind at once.
_AT_ONCE: Mapping[str, int] = {"appworld": 4, "bfcl": 6, "desk": 6, "wild": 4, "drafts": 2}
# One episode in so many is rendered as training would.
_RENDERED = 10
# Part of the episodes after which memory is first looked at: caches and allocators are full then.
_WARM = 0.25
# Megabytes that a supervisor may hold at most, whatever its children say.
_PEAK = 160.0


@dataclasses.dataclass
class Half:
    """What came of one half: how many cases of each kind were played, what may not be, and seconds."""

    played: Counter[str] = dataclasses.field(default_factory=Counter)
    violations: list[Violation] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


Say = Callable[[str], None]
Makers = Mapping[str, Callable[[Canary], playing.World]]


def worlds() -> Makers:
    """How each kind's world is made; imported only where it is played."""

    def bfcl(canary: Canary) -> playing.World:
        from experiments.campaign.bfcl import BfclCases

        return BfclCases(canary)

    def appworld(canary: Canary) -> playing.World:
        from experiments.campaign.appworld import AppWorldCases

        return AppWorldCases(canary)

    def desk(canary: Canary) -> playing.World:
        from experiments.campaign.desk import DeskCases

        return DeskCases(canary)

    def wild(canary: Canary) -> playing.World:
        from experiments.campaign.wild import WildCases

        return WildCases(canary)

    def drafts(canary: Canary) -> playing.World:
        from experiments.campaign.drafts import DraftCases

        return DraftCases(canary)

    return {"bfcl": bfcl, "appworld": appworld, "desk": desk, "wild": wild, "drafts": drafts}


class Stage:
    """The worlds in use, and the rules by which an episode is judged."""

    def __init__(self, makers: Makers, chosen: Collection[str], seed: int, canary: Canary) -> None:
        self.seed, self.canary, self.rendering = seed, canary, playing.Rendering()
        self.worlds: dict[str, playing.World] = {}
        self.stopped = threading.Event()
        try:
            for name in sorted(chosen):
                self.worlds[name] = makers[name](canary)
            self.rendering.chat  # noqa: B018  made before anything is counted
        except BaseException:
            self.close()
            raise

    @property
    def supervisors(self) -> tuple[int, ...]:
        return tuple(pid for world in self.worlds.values() for pid in world.supervisors())

    def play(self, kind: str, number: int) -> list[Violation]:
        """Plays one case; what of it may not be."""
        id = f"e{number}"
        world = self.worlds[kind]
        case = world.case(id, self.seed)
        if isinstance(world, playing.Examined):
            return world.examine(case, self.seed)
        trajectory = playing.play(world.environment, case, self.stopped.is_set)
        found = playing.judge(case, trajectory, self.canary)
        return found if number % _RENDERED else found + self.rendering.judge(case, trajectory)

    def close(self) -> None:
        self.stopped.set()
        for world in self.worlds.values():
            world.close()


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
    start, moment = residue.measure(), time.time()
    stage = Stage(makers or worlds(), set(order), seed, canary)
    try:
        open_ = residue.measure(stage.supervisors)
        warm = int(_WARM * count)
        _play(stage, list(enumerate(order))[:warm], half, count, say)
        full = residue.measure(stage.supervisors)
        _play(stage, list(enumerate(order))[warm:], half, count, say)
        after = residue.settled(open_, stage.supervisors)
        half.violations += residue.grown(open_, after, "episodes")
        half.violations += residue.swollen(full if warm else open_, after, "episodes")
        half.violations += _peaks(stage.supervisors)
    finally:
        stage.close()
    half.violations += residue.grown(start, residue.settled(start), "episodes, closed")
    half.violations += [
        Violation("traces", "episodes", f"{path} bears a canary") for path in residue.marks(canary, moment)
    ]
    half.seconds = time.monotonic() - began
    return half


def one(number: int, seed: int, canary: Canary, only: Collection[str] = ()) -> list[Violation]:
    """Plays one episode alone."""
    kind = plan(number + 1, only)[number]
    with contextlib.closing(Stage(worlds(), {kind}, seed, canary)) as stage:
        return stage.play(kind, number)


def _play(stage: Stage, cases: Sequence[tuple[int, str]], half: Half, total: int, say: Say) -> None:
    """Plays the cases, those of each kind on threads of its own."""
    pools = {kind: ThreadPoolExecutor(_AT_ONCE[kind], f"campaign-{kind}") for kind in stage.worlds}
    waiting: dict[Future[list[Violation]], str] = {}
    try:
        waiting = {pools[kind].submit(stage.play, kind, number): kind for number, kind in cases}
        for future in _done(waiting, half, total, say):
            half.played[waiting[future]] += 1
            half.violations += future.result()
    except BaseException:
        stage.stopped.set()
        raise
    finally:
        for pool in pools.values():
            pool.shutdown(wait=True, cancel_futures=True)


def _done(
    waiting: Mapping[Future[list[Violation]], str], half: Half, total: int, say: Say
) -> Iterator[Future[list[Violation]]]:
    """The futures as they are done; tells of progress now and then."""
    told = time.monotonic()
    for future in as_completed(waiting):
        yield future
        if time.monotonic() - told > 10.0:
            told = time.monotonic()
            say(f"{sum(half.played.values()):,} of {total:,} episodes, {len(half.violations)} violations")


def _peaks(supervisors: Sequence[int]) -> list[Violation]:
    peaks = ((pid, residue.peak(pid)) for pid in supervisors)
    return [
        Violation("leaked", "episodes", f"supervisor {pid} held {held:.0f} MB, more than {_PEAK:.0f}")
        for pid, held in peaks
        if held > _PEAK
    ]
