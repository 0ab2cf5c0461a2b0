"""python -m experiments.campaign: plays hostile episodes, injects faults, and counts the violations.

    python -m experiments.campaign --episodes=10000 --faults=1000 --seed=0 [--json]
    python -m experiments.campaign --seed=0 --case=e123      one case alone; f123 is a fault

The last line is one JSON object: how many `episodes` and `faults` were played, and four counts of violations. `forged`:
verdicts forged, erased or denied, and tasks in the pool that must not be there. `traces`: of one episode in another, or
on disk. `lost`: records lost or changed, and faults without a report. `leaked`: processes, descriptors, memory, files.
The exit status is 0 if all four are 0, else 1; it is 2 for bad arguments.
"""

import argparse
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from campaign import episodes, faults, leaks
from campaign.cases import COUNTS, EPISODES, FAULTS, Canary
from campaign.episodes import Half
from cojax.command import CommandLineParser
from cojax.environment import EnvironmentFailure, InstallError

# The most violations that the JSON object names; all are printed.
_NAMED = 50
_STOPS = (signal.SIGINT, signal.SIGTERM)
# Python's callbacks, JAX's among them, whose exceptions it prints and forgets.
_SWALLOWING = ("_xla_gc_callback", "__del__")


def number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, found {text!r}")
    return int(text)


def case(text: str) -> str:
    if text[:1] not in ("e", "f") or not text[1:].isascii() or not text[1:].isdigit():
        raise argparse.ArgumentTypeError(f"expected an id like e123 (an episode) or f123 (a fault), found {text!r}")
    return text


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandLineParser("python -m experiments.campaign", __doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--episodes", type=number, default=10_000, help="episodes played (default: %(default)s)")
    parser.add_argument("--faults", type=number, default=1_000, help="faults injected (default: %(default)s)")
    parser.add_argument("--seed", type=number, default=0, help="what all cases derive from (default: %(default)s)")
    parser.add_argument("--only", default="", help=f"kinds: {', '.join((*EPISODES, *FAULTS))} (default: all)")
    parser.add_argument("--case", type=case, help="play this case alone")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object to stdout")
    options = parser.parse_args(argv)
    options.only = tuple(filter(None, options.only.split(",")))
    if unknown := set(options.only) - {*EPISODES, *FAULTS}:
        parser.error(f"--only names {', '.join(sorted(unknown))}; expected of {', '.join((*EPISODES, *FAULTS))}")
    if options.case and options.only:
        half = EPISODES if options.case[0] == "e" else FAULTS
        if not set(options.only) & half.keys():
            parser.error(f"--case={options.case} is of none of --only's kinds; expected some of {', '.join(half)}")
    if not (set(options.only) & EPISODES.keys() or not options.only):
        options.episodes = 0
    if not (set(options.only) & FAULTS.keys() or not options.only):
        options.faults = 0
    return options


def summary(seed: int, played: Half, injected: Half) -> dict[str, Any]:
    """The JSON object."""
    violations = [*played.violations, *injected.violations]
    counts: dict[str, Any] = {name: sum(violation.count == name for violation in violations) for name in COUNTS}
    return {
        "episodes": sum(played.played.values()),
        "faults": sum(injected.played.values()),
        **counts,
        "seed": seed,
        "seconds": round(played.seconds + injected.seconds, 1),
        "kinds": dict(sorted({**played.played, **injected.played}.items())),
        "violations": [f"{found.count} {found.case}: {found.reason}" for found in violations[:_NAMED]],
    }


def run(
    options: argparse.Namespace,
    sources: episodes.Makers | None = None,
    injectors: Mapping[str, faults.Injector] | None = None,
) -> int:
    """Runs the campaign; returns the exit status. `sources` and `injectors` replace the campaign's own."""
    stream = sys.stderr if options.json else sys.stdout
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {line}", file=stream, flush=True)

    def tell(half: Half, name: str) -> None:
        for found in half.violations:
            only = f" --only={','.join(options.only)}" if options.only else ""
            again = f"; again: --seed={options.seed}{only} --case={found.case}" if found.case[1:].isdigit() else ""
            say(f"violation: {found.count}, {found.case}: {found.reason}{again}")
        say(f"{sum(half.played.values()):,} {name} in {half.seconds:.0f} s, {len(half.violations)} violations")

    canary = Canary(secrets.token_hex(16))
    played, injected = Half(), Half()
    if options.case:
        number, episode = int(options.case[1:]), options.case.startswith("e")
        half = played if episode else injected
        half.played[options.case] += 1
        half.violations = (
            episodes.one(number, options.seed, canary, options.only)
            if episode
            else faults.one(number, options.seed, options.only)
        )
        tell(half, "case")
    else:
        if options.episodes:
            say(f"{options.episodes:,} episodes of seed {options.seed}")
            played = episodes.run(options.episodes, options.seed, canary, say, options.only, sources)
            tell(played, "episodes")
        if options.faults:
            say(f"{options.faults:,} faults of seed {options.seed}")
            injected = faults.run(options.faults, options.seed, say, options.only, injectors)
            tell(injected, "faults")
    found = summary(options.seed, played, injected)
    print(json.dumps(found), flush=True)
    return int(any(found[name] for name in COUNTS))


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Sets a temporary folder of our own; at the end removes it and ends every new descendant process."""
    folder = tempfile.mkdtemp(prefix="cojax-campaign-")
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        with leaks.ending_descendants():
            yield
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Turns off the logs: the campaign loses episodes on purpose."""
    before = {name: logging.getLogger(name).level for name in ("cojax", "environments", "httpx", "openai")}
    for name in before:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def stopped_once() -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into a KeyboardInterrupt."""
    before = {number: signal.signal(number, interrupt) for number in (*_STOPS, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupt(number: int, frame: types.FrameType | None) -> None:
    """Raises KeyboardInterrupt; ignores further signals, so that the campaign can end in order.

    What a callback of the garbage collector raises is lost: there the signal waits for its end.
    """
    while frame is not None:
        if frame.f_code.co_name in _SWALLOWING:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            return
        frame = frame.f_back
    for signalled in (*_STOPS, signal.SIGALRM):
        signal.signal(signalled, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(
    argv: Sequence[str] | None = None,
    sources: episodes.Makers | None = None,
    injectors: Mapping[str, faults.Injector] | None = None,
) -> int:
    options = arguments(argv)
    try:
        with quiet_logs(), stopped_once(), own_folder():
            return run(options, sources, injectors)
    except (InstallError, EnvironmentFailure, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, RuntimeError) as error:
        # An interrupt that falls into one of Python's own locks ends in a RuntimeError of that lock.
        if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__context__)):
            raise
        print("stopped; nothing is counted", file=sys.stderr)
        return 130
