"""Set-up says in the first second where a path would lead it astray."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def planned(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What make would do, also where a make runs this."""
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        ["make", "-n", *arguments], cwd=Path(__file__).parents[1], env=alone, capture_output=True, text=True
    )


def test_a_cache_with_spaces_is_refused_before_anything_is_done():
    for target in ("sglang", "test-real"):
        refused = planned(target, "COJAX_CACHE=/tmp/a b")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert 'the cache is "/tmp/a b/sglang", a path with spaces; name one without in COJAX_CACHE' in refused.stderr
    assert planned("test", "COJAX_CACHE=/tmp/a b").returncode == 0


def test_a_virtual_environment_with_spaces_is_refused():
    refused = planned("lint", "VENV=a b")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert 'VENV is "a b"; expected a path without spaces' in refused.stderr


def test_an_environment_of_another_interpreter_is_not_taken_for_the_one_that_is_named(tmp_path: Path):
    found = tmp_path / "bin/python"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\necho 3.9\n")
    found.chmod(0o755)
    refused = planned("demo", f"VENV={tmp_path}", f"PYTHON={sys.executable}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        f"{tmp_path} has Python 3.9, not {sys.executable}; remove it by make clean, or name another VENV"
        in refused.stderr
    )
    assert (
        planned("clean", f"VENV={tmp_path}").returncode
        == planned("demo", f"PYTHON={found}", f"VENV={tmp_path}").returncode
        == 0
    )


def test_the_pretrained_model_is_converted_once_and_the_folder_then_stays():
    made = planned("smollm2", "SMOLLM2=/tmp/no-such-folder/model")
    assert "-m experiments.convert smollm2 /tmp/no-such-folder/model\n" in made.stdout
    shown = planned("demo-lm", "SMOLLM2=/tmp/no-such-folder/model").stdout
    assert shown.index("experiments.convert smollm2") < shown.index("--config=experiments/desk_smollm2.py")
