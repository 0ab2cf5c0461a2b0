"""Suite `worlds`: seconds to open, act in and judge many AppWorld worlds at once, and the memory of each.

It runs on the tiny data: python -m environments.install appworld --data=tiny
"""

import itertools
import threading
import time
from collections import defaultdict

from benchmarks.results import Row, Spread
from cojax.host.processes import family, memory
from cojax.types import Action
from environments.appworld import make
from environments.appworld.environment import AppWorld, AppWorldEpisode

_PLAIN = Action("```python\nprint(1)\n```")
_CALLING = Action("```python\nfor number in range(10):\n    apis.spotify.show_song(song_id=1 + number)\n```")
_LAST = Action("```python\napis.supervisor.complete_task()\n```")


def worlds(*, batch: int = 16, repeats: int = 5) -> list[Row]:
    """`batch` worlds at once, `repeats` times: seconds of each call while others run, MB of private memory."""
    environment = make(data="tiny")
    try:
        _round(environment, batch)
        seconds: dict[str, list[float]] = defaultdict(list)
        megabytes: dict[str, list[float]] = defaultdict(list)
        began = time.perf_counter()
        for _ in range(repeats):
            for name, values in _round(environment, batch, megabytes).items():
                seconds[name] += values
        total = time.perf_counter() - began
    finally:
        environment.close()
    row: dict[str, object] = {"worlds": batch, "episodes_per_second": batch * repeats / total}
    row |= {f"{name}_seconds": Spread(tuple(values)) for name, values in seconds.items()}
    return [row | {f"{name}_mb": Spread(tuple(values)) for name, values in megabytes.items()}]


def _round(
    environment: AppWorld, batch: int, megabytes: dict[str, list[float]] | None = None
) -> dict[str, list[float]]:
    """Plays an episode in each world; seconds of each kind of call. Memory is measured while all are open."""
    tasks = itertools.islice(itertools.cycle(environment.tasks("train", batch)), batch)
    seconds: dict[str, list[float]] = defaultdict(list)
    gate = threading.Barrier(batch + 1)

    def time_call(name: str, call, *arguments: object) -> None:  # type: ignore[no-untyped-def]
        began = time.perf_counter()
        call(*arguments)
        seconds[name].append(time.perf_counter() - began)

    def live(episode: AppWorldEpisode) -> None:
        time_call("start", episode.reset)
        time_call("step", episode.step, _PLAIN)
        time_call("ten_calls", episode.step, _CALLING)
        time_call("last_step", episode.step, _LAST)
        time_call("evaluate", episode.evaluate)
        gate.wait()
        gate.wait()
        episode.close()

    threads = [threading.Thread(target=live, args=(environment.start(task),)) for task in tasks]
    for thread in threads:
        thread.start()
    gate.wait()
    if megabytes is not None:
        for name, worker in (("world", environment.play), ("judge", environment.judge)):
            children = family(worker.supervisor)[2:]
            megabytes[name].append(sum(memory(child, "Private_Dirty") for child in children) / batch)
    gate.wait()
    for thread in threads:
        thread.join()
    return seconds
