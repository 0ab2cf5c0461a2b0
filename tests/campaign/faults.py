"""The half of the campaign that injects faults, each with a known right outcome."""

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from campaign import leaks, losses, servers
from campaign.cases import FAULTS, Violation, kinds
from campaign.episodes import Half, Say

# Injects faults of one kind, by their ids, and returns the violations; calls `done` once for each fault that is over.
Injector = Callable[[Sequence[str], int, Path, Callable[[], None]], list[Violation]]
# Faults of a kind that run at the same time.
_AT_ONCE = 6
# Kinds that run at the same time: runs are killed while the quick faults are injected.
_KINDS_AT_ONCE = 2


def injectors() -> Mapping[str, Injector]:
    """The injector of each kind; modules that load JAX are imported only when they are used."""

    def kill(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
        from campaign import runs

        return runs.inject(ids, seed, folder, done)

    def mutation(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
        from campaign import resumption

        return resumption.inject(ids, seed, folder, done)

    def foreign(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
        from campaign import foreign

        return foreign.inject(ids, seed, folder, done)

    def disk(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
        from campaign import disk

        return disk.inject(ids, seed, folder, done)

    workers, endpoints = each(losses.inject), each(servers.inject)
    made = {"kill": kill, "mutation": mutation, "disk": disk, "worker": workers, "server": endpoints}
    return {**made, "foreign": foreign}


def each(inject: Callable[[str, int], list[Violation]]) -> Injector:
    """An injector that calls `inject` for each fault, several at the same time."""

    def many(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
        def one(id: str) -> list[Violation]:
            found = inject(id, seed)
            done()
            return found

        with ThreadPoolExecutor(_AT_ONCE, "campaign-fault") as pool:
            try:
                return [violation for found in pool.map(one, ids) for violation in found]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    return many


def plan(count: int, only: Collection[str] = ()) -> list[str]:
    """The kind of each fault."""
    return list(itertools.islice(itertools.cycle(kinds(FAULTS, only)), count))


def run(
    count: int, seed: int, say: Say, only: Collection[str] = (), injecting: Mapping[str, Injector] | None = None
) -> Half:
    """Injects the faults 0 … count - 1 of the seed."""
    half, began, lock, stopped = Half(), time.monotonic(), threading.Lock(), threading.Event()
    by_kind: dict[str, list[str]] = {}
    for number, kind in enumerate(plan(count, only)):
        by_kind.setdefault(kind, []).append(f"f{number}")
    made = injecting or injectors()
    start = leaks.measure()

    def inject(kind: str) -> list[Violation]:
        def done() -> None:
            if stopped.is_set():
                raise InterruptedError("the campaign was stopped")
            with lock:
                half.played[kind] += 1

        return made[kind](by_kind[kind], seed, Path(folder), done)

    with (
        tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(_KINDS_AT_ONCE, "campaign-kind") as pool,
    ):
        waiting = [pool.submit(inject, kind) for kind in FAULTS if kind in by_kind]
        try:
            _watch(waiting, half, count, say)
        except BaseException:
            # Each kind ends with the faults that are under way.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        half.violations += [violation for future in waiting for violation in future.result()]
    half.violations += leaks.leaked(start, leaks.wait_until_settled(start), "faults")
    half.seconds = time.monotonic() - began
    return half


def _watch(waiting: Sequence[Future[list[Violation]]], half: Half, count: int, say: Say) -> None:
    """Reports progress every ten seconds until all are done."""
    reported = time.monotonic()
    while not all(future.done() for future in waiting):
        time.sleep(0.1)
        if time.monotonic() - reported > 10.0:
            reported = time.monotonic()
            say(f"{sum(half.played.values()):,} of {count:,} faults")


def one(number: int, seed: int, only: Collection[str] = ()) -> list[Violation]:
    """Injects one fault alone."""
    kind = plan(number + 1, only)[number]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        return injectors()[kind]([f"f{number}"], seed, Path(folder), lambda: None)
