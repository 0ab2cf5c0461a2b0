"""The clock of deadlines: it stands still while its process is stopped, and runs on otherwise."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from cojax.host.background import clock, running

ROOT = Path(__file__).parents[2]


def test_it_runs_as_time_does():
    running()
    began, seen = time.monotonic(), running()
    time.sleep(0.3)
    assert abs((running() - seen) - (time.monotonic() - began)) < 0.3


def test_a_gap_between_two_looks_counts_half_a_second():
    now = clock()
    began = now()
    time.sleep(1.5)
    assert 0.49 < now() - began < 0.6


def test_a_stop_does_not_count():
    code = "from cojax.host.background import running; running(); input(); print(running()); input(); print(running())"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        print("", file=process.stdin, flush=True)
        before = float(process.stdout.readline())
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(3.0)
        os.kill(process.pid, signal.SIGCONT)
        print("", file=process.stdin, flush=True)
        assert float(process.stdout.readline()) - before < 2.0


def test_a_forked_process_has_a_clock_of_its_own():
    code = """
import os, time
from cojax.host.background import running
running()
if os.fork() == 0:
    began = running(); time.sleep(1.5); print(running() - began > 1.0, flush=True); os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.stdout == "True\n", done.stderr
