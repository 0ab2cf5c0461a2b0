"""The notebook runs from its first cell to its last, as a reader runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "train_and_look.ipynb"

pytestmark = [pytest.mark.real, pytest.mark.nightly]


def test_the_notebook_trains_twenty_steps_and_looks_at_them(tmp_path: Path) -> None:
    # `make test` collects this file and has neither.
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in data for data in shown)
    metrics = (tmp_path / "runs" / "notebook" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 20
    assert "origin" in str(shown)
