"""Suite `worlds`: seconds to open, act in and judge many AppWorld worlds at once, and the memory of each.

It runs on the tiny data: python -m environments.install appworld --data=tiny
"""

import itertools
import threading
import time
from collections import defaultdict

from benchmarks.results import Row, Spread
from cojax.host.processes import family, read_memory
from cojax.types import Action
from environments.appworld import make
from environments.appworld.environment import AppWorld, AppWorldEpisode

_PRINTING_ACTION = Action("```python\nprint(1)\n```")
_CALLING_ACTION = Action("```python\nfor number in range(10):\n    apis.spotify.show_song(song_id=1 + number)\n```")
_LAST_ACTION = Action("```python\napis.supervisor.complete_task()\n```")


def worlds(*, batch: int = 16, repeats: int = 5) -> list[Row]:
    """`batch` worlds at once, `repeats` times: seconds of each call while others run, MB of private memory."""
    environment = make(data="tiny")
    try:
        _play_round(environment, batch)
        seconds_by_call: dict[str, list[float]] = defaultdict(list)
        megabytes_by_worker: dict[str, list[float]] = defaultdict(list)
        started_at = time.perf_counter()
        for _ in range(repeats):
            for name, values in _play_round(environment, batch, megabytes_by_worker).items():
                seconds_by_call[name] += values
        total_s = time.perf_counter() - started_at
    finally:
        environment.close()
    row: dict[str, object] = {"worlds": batch, "episodes_per_second": batch * repeats / total_s}
    row |= {f"{name}_seconds": Spread(tuple(values)) for name, values in seconds_by_call.items()}
    return [row | {f"{name}_mb": Spread(tuple(values)) for name, values in megabytes_by_worker.items()}]


def _play_round(
    environment: AppWorld, batch: int, megabytes_by_worker: dict[str, list[float]] | None = None
) -> dict[str, list[float]]:
    """Plays an episode in each world; seconds of each kind of call. Memory is measured while all are open."""
    tasks = itertools.islice(itertools.cycle(environment.tasks("train", batch)), batch)
    seconds_by_call: dict[str, list[float]] = defaultdict(list)
    barrier = threading.Barrier(batch + 1)

    def time_call(call_name: str, call, *arguments: object) -> None:  # type: ignore[no-untyped-def]
        started_at = time.perf_counter()
        call(*arguments)
        seconds_by_call[call_name].append(time.perf_counter() - started_at)

    def play_episode(episode: AppWorldEpisode) -> None:
        time_call("start", episode.reset)
        time_call("step", episode.step, _PRINTING_ACTION)
        time_call("ten_calls", episode.step, _CALLING_ACTION)
        time_call("last_step", episode.step, _LAST_ACTION)
        time_call("evaluate", episode.evaluate)
        barrier.wait()
        barrier.wait()
        episode.close()

    threads = [threading.Thread(target=play_episode, args=(environment.start(task),)) for task in tasks]
    for thread in threads:
        thread.start()
    barrier.wait()
    if megabytes_by_worker is not None:
        for worker_name, worker in (("world", environment.play), ("judge", environment.judge)):
            children = family(worker.supervisor)[2:]
            megabytes_by_worker[worker_name].append(
                sum(read_memory(child, "Private_Dirty") for child in children) / batch
            )
    barrier.wait()
    for thread in threads:
        thread.join()
    return seconds_by_call
