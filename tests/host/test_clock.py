"""The clock of deadlines: it stands still while its process is stopped, and runs on otherwise."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cojax.host.background import make_clock, running

ROOT = Path(__file__).parents[2]


def test_it_runs_as_time_does():
    running()
    began, seen = time.monotonic(), running()
    time.sleep(0.3)
    assert abs((running() - seen) - (time.monotonic() - began)) < 0.3


def test_a_gap_between_two_looks_counts_half_a_second():
    now = make_clock()
    began = now()
    time.sleep(0.9)
    assert 0.49 < now() - began < 0.6


def test_a_stop_does_not_count():
    code = "from cojax.host.background import running\nrunning()\nfor _ in range(3): input(); print(running())"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def seen() -> float:
            print("", file=process.stdin, flush=True)
            return float(process.stdout.readline())

        seen()
        began, before = time.monotonic(), seen()
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.3)
        os.kill(process.pid, signal.SIGCONT)
        counted = seen() - before
        # Of the stop at most half a second counts, and all else at most as long as it took.
        assert counted < time.monotonic() - began - 0.6


def test_a_forked_process_has_a_clock_of_its_own():
    code = """
import os, time
from cojax.host.background import running
running()
if os.fork() == 0:
    def counted():
        began = running(); time.sleep(0.8); return running() - began
    print(any(counted() > 0.6 for _ in range(5)), flush=True); os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout == "True\n", done.stderr
