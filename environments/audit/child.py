"""A process that plays some actions in a world and writes the traces, perhaps with a shifted clock.

It reads one JSON object from stdin (see `repetition.play_elsewhere`) and writes one as its last line. What the world
prints goes to stderr.
"""

import dataclasses
import datetime
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

# How far the clock moves between two plays. Each task has three, so a few tasks see all weekdays, months and hours.
_STEP_S = (35 * 24 + 9.1) * 3600.0


@dataclasses.dataclass
class Clock:
    """By how many seconds the time of day of this process is shifted, and how many it gains at every reading."""

    shift_s: float = 0.0
    gain_s: float = 0.0

    def read_shift(self) -> float:
        self.shift_s += self.gain_s
        return self.shift_s


def shift_clock(clock: Clock) -> None:
    """Shifts the time of day of this process: of `time`, `datetime` and SQLite's functions, not of the system."""
    read_time, read_ns, real_gmtime, real_localtime = time.time, time.time_ns, time.gmtime, time.localtime
    format_time, real_ctime = time.strftime, time.ctime
    time.time = lambda: read_time() + clock.read_shift()
    time.time_ns = lambda: read_ns() + int(clock.read_shift() * 1e9)
    time.gmtime = lambda seconds=None: real_gmtime(time.time() if seconds is None else seconds)
    time.localtime = lambda seconds=None: real_localtime(time.time() if seconds is None else seconds)
    time.ctime = lambda seconds=None: real_ctime(time.time() if seconds is None else seconds)
    time.strftime = lambda text, moment=None: format_time(text, time.localtime() if moment is None else moment)
    _shift_datetime(lambda: datetime.timedelta(seconds=clock.read_shift()))
    _shift_sqlite()


def _shift_datetime(read_shift: Callable[[], datetime.timedelta]) -> None:
    real_datetime, real_date = datetime.datetime, datetime.date

    class Kind(type):
        """Values of the real class count as values of the shifted one."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real_datetime if cls.__name__ == "datetime" else real_date)

    now = classmethod(lambda cls, tz=None: real_datetime.now(tz) + read_shift())
    utcnow = classmethod(lambda cls: real_datetime.now(datetime.UTC).replace(tzinfo=None) + read_shift())
    today = classmethod(lambda cls: (real_datetime.now() + read_shift()).date())
    shifted_datetime = Kind("datetime", (real_datetime,), {"now": now, "today": now, "utcnow": utcnow})
    shifted_date = Kind("date", (real_date,), {"today": today})
    datetime.datetime, datetime.date = shifted_datetime, shifted_date  # type: ignore[assignment, misc]


def _shift_sqlite() -> None:
    """Gives every connection functions of time for which "now" is the shifted time; CURRENT_TIMESTAMP stays."""
    real_connect = sqlite3.connect
    plain = real_connect(":memory:", check_same_thread=False)

    def shift(function: str, fixed: int) -> Any:
        def call(*arguments: Any) -> Any:
            values = [*arguments, "now"] if len(arguments) == fixed else list(arguments)
            moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            values = [moment if str(value).lower() == "now" else value for value in values]
            places = ", ".join("?" * len(values))
            return plain.execute(f"SELECT {function}({places})", values).fetchone()[0]

        return call

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = real_connect(*arguments, **options)
        for function in ("date", "time", "datetime", "julianday", "unixepoch", "strftime"):
            connection.create_function(function, -1, shift(function, int(function == "strftime")))
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]


def main() -> None:
    """Plays what stdin asks for."""
    request = json.loads(sys.stdin.buffer.read())
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    first_shift_s = 0.0
    origin, surroundings = request["origin"], request["surroundings"]
    clock = Clock(gain_s=surroundings["gain_s"])
    if moment := surroundings["moment"]:
        clock.shift_s = first_shift_s = datetime.datetime.fromisoformat(moment).timestamp() - time.time()
        shift_clock(clock)
    # The world and what it imports come after the shift.
    from cojax import imports, worlds
    from cojax.types import Action, Task, from_json
    from .player import Attempt, Player

    imports.add_current_folder()
    player = Player(worlds.load_from_json(origin["name"], origin["settings"]))
    traces = []
    for number, replayed in enumerate(request["plays"]):
        clock.shift_s = first_shift_s + number * _STEP_S
        task = from_json(Task, replayed["task"])
        before, actions = (from_json(tuple[Action, ...], replayed[key]) for key in ("before", "actions"))
        if surroundings["plays_before"]:
            player.play(task, Attempt("before", before), "clock")
        trace = player.play(task, Attempt("elsewhere", actions), "clock").trace()
        traces.append({**trace, "states": [list(state.items()) for state in trace["states"]]})
    output.write("\n" + json.dumps({"traces": traces}) + "\n")
    output.flush()
    # Threads of a world that hangs must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
