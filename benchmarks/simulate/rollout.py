"""Simulates the episodes of a step: conversations alternate between a server and their world until enough ended."""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Sequence

from benchmarks.simulate.servers import Server


@dataclasses.dataclass(frozen=True)
class Work:
    """One episode: seconds to start it, (work for the server, seconds of the world) of each turn, seconds to judge it.

    `tokens` are those that an update reads, and `reward` tells whether its group has anything to learn from.
    """

    opening: float
    turns: tuple[tuple[float, float], ...]
    verdict: float
    tokens: int = 0
    reward: float = 0.0


@dataclasses.dataclass(frozen=True)
class Played:
    """A rollout: its seconds, those in which a server worked, and how many episodes ended, were cut and not begun."""

    seconds: float
    engine: float
    finished: int
    cut: int
    unbegun: int


class Rollout:
    """Plays the episodes of `groups`, at most `conversations` at once, until the share `quorum` of each has ended.

    A conversation stays on the server that it began on, which is the one with the fewest.
    """

    def __init__(
        self, groups: Sequence[Sequence[Work]], servers: Sequence[Server[int]], conversations: int, quorum: float = 1.0
    ) -> None:
        self._episodes = [work for group in groups for work in group]
        self._group = [place for place, group in enumerate(groups) for _ in group]
        self._needed = [min(len(group), math.ceil(quorum * len(group) - 1e-9)) for group in groups]
        self._short = sum(needed > 0 for needed in self._needed)  # groups that lack episodes
        self._servers, self._conversations = servers, conversations
        # (sessions, requests, place) is compared to choose a server; a heap keeps the choice cheap with thousands.
        self._sessions = [(0, place) for place in range(len(servers))]
        self._loads = [0] * len(servers)
        self._server = [0] * len(self._episodes)
        self._turn = [0] * len(self._episodes)
        self._events: list[tuple[float, int, Callable[[float, int], None], int]] = []
        self._numbers = itertools.count()
        self._planned = [0] * len(servers)  # number of the event that ends the next request of each server
        self._begun = self._finished = 0
        self._requests, self._since, self._engine = 0, 0.0, 0.0

    def play(self) -> Played:
        """Runs the simulation from time 0."""
        now = 0.0
        while self._begun < min(self._conversations, len(self._episodes)):
            self._begin(now)
        while self._short and self._events:
            now, number, act, place = heapq.heappop(self._events)
            if act == self._served and number != self._planned[place]:
                continue  # the server got or lost a request since, and its next end was planned again
            act(now, place)
        engine = self._engine + (now - self._since if self._requests else 0.0)
        return Played(now, engine, self._finished, self._begun - self._finished, len(self._episodes) - self._begun)

    def _at(self, time: float, act: Callable[[float, int], None], place: int) -> int:
        number = next(self._numbers)
        heapq.heappush(self._events, (time, number, act, place))
        return number

    def _begin(self, now: float) -> None:
        episode = self._begun
        self._begun += 1
        load, server = heapq.heappop(self._sessions)
        while load != self._loads[server]:
            load, server = heapq.heappop(self._sessions)
        self._server[episode] = server
        self._hold(server, +1)
        self._at(now + self._episodes[episode].opening, self._ask, episode)

    def _hold(self, server: int, change: int) -> None:
        self._loads[server] += change
        heapq.heappush(self._sessions, (self._loads[server], server))

    def _ask(self, now: float, episode: int) -> None:
        """The next action is asked for, or the verdict is, after the last."""
        turns, turn = self._episodes[episode].turns, self._turn[episode]
        if turn == len(turns):
            self._at(now + self._episodes[episode].verdict, self._end, episode)
            return
        if not self._requests:
            self._since = now
        self._requests += 1
        self._servers[self._server[episode]].arrive(now, turns[turn][0], episode)
        self._plan(self._server[episode])

    def _plan(self, server: int) -> None:
        ends = self._servers[server].ends()
        self._planned[server] = -1 if ends is None else self._at(ends, self._served, server)

    def _served(self, now: float, server: int) -> None:
        episode = self._servers[server].end(now)
        self._requests -= 1
        if not self._requests:
            self._engine += now - self._since
        self._plan(server)
        seconds = self._episodes[episode].turns[self._turn[episode]][1]
        self._turn[episode] += 1
        self._at(now + seconds, self._ask, episode)

    def _end(self, now: float, episode: int) -> None:
        self._finished += 1
        self._hold(self._server[episode], -1)
        group = self._group[episode]
        self._needed[group] -= 1
        self._short -= self._needed[group] == 0
        if self._short and self._begun < len(self._episodes):
            self._begin(now)
