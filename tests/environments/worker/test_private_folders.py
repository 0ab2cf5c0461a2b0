"""Workers work from a checkout that is private to its owner, wherever it lies."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ordinary
import pytest
from patience import patience
from worker_trials import ROOT, program

from environments.worker import kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")

# Environment code that only the episode imports, data beside it, and scratch files as ever.
CODE = """
world = isolate("hostile", visible=(os.path.join(os.getcwd(), "data"),))
print(attempt(world, "legitimate", "environments.desk").turns[0].observation.text)
print(attempt(world, "read", os.path.join(os.getcwd(), "data", "text")).turns[0].observation.text)
print(attempt(world, "write", os.path.join(os.getcwd(), "data", "text")).turns[0].observation.text)
print(attempt(world, "list", os.getcwd()).turns[0].observation.text)
world.close()
"""


@contextlib.contextmanager
def private_checkout(parent: str, owner: int) -> Iterator[Path]:
    """Our packages in a folder that mktemp made, where nobody but its owner may read anything."""
    with tempfile.TemporaryDirectory(dir=parent) as made:
        checkout = Path(made, "checkout")
        for name in ("cojax", "environments"):
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tests", "data"):
            (checkout / name).mkdir()
        for helper in (ROOT / "tests").glob("*.py"):
            shutil.copy(helper, checkout / "tests")
        (checkout / "data" / "text").write_text("data")
        for path in (Path(made), *Path(made).rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
            if os.geteuid() == 0:
                os.chown(path, owner, owner)
        yield checkout


@pytest.mark.parametrize(
    ("user", "refuse", "parent"),
    [
        ("root", "", "/tmp"),
        ("root", "", "/var/tmp"),
        ("root", "unshare", "/var/tmp"),
        ("ordinary", "", "/tmp"),
        ("ordinary", "unshare", "/tmp"),
    ],
)
def test_late_imports_work_from_a_private_folder(user, refuse, parent):
    if user == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if refuse and not kernel.landlock_version():
        pytest.skip("needs Landlock")
    with private_checkout(parent, 0 if user == "root" else ordinary.USER) as checkout:
        script = str(checkout / "tests" / "ordinary.py")
        command = ordinary.command(program(CODE, checkout), refuse=refuse, root=user == "root", script=script)
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=patience(60))
    honest, read, written, listed = done.stdout.splitlines() or [done.stderr[-3_000:], "", "", ""]
    assert honest == "0 1 loop [(1,)] program environments.desk trespass.py"
    assert read == "data"
    assert "Read-only" in written or "Permission denied" in written
    assert listed in ("cojax data environments tests", "refused: [Errno 13] Permission denied: '" + str(checkout) + "'")
