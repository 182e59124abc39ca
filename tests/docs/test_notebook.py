"""Runs the notebook of the Python client as a reader would: every cell of it, in its order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from names import own_name
from wherry import Client

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root"),
    pytest.mark.skipif(not shutil.which("mpicc"), reason="there is no mpicc for the notebook's program"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With the notebook and its program, for an instance of its own."""
    monkeypatch.setenv("WHERRY_INSTANCE", own_name("tnbk"))
    for name in ("client.ipynb", "pi.c"):
        shutil.copy(EXAMPLES / name, tmp_path)
    yield tmp_path
    subprocess.run([str(Path(sys.executable).parent / "wherry"), "down", "--all", "--yes"], check=True, timeout=100)


def test_the_notebook(directory: Path) -> None:
    notebook = nbformat.read(directory / "client.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the output of a run is not kept"
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(directory)}}).execute()
    shown = "\n".join(
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "median of 8 moves: downtime 0." in shown and "NOT_FOUND | no host is named 'nowhere'" in shown, shown
    assert "rank 0 of 2 on lab-0" in shown and shown.rstrip().endswith("'done'"), shown
    with Client(start=False) as client:
        assert client.clusters() == [] and len(client.moves()) == 8
