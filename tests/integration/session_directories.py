"""Directories of Open MPI."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_session_directories(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Open MPI 4 has one directory for all launchers of a user, which one of them may remove while another, of a test
    beside this, makes its own in it."""
    monkeypatch.setenv("OMPI_MCA_orte_tmpdir_base", str(tmp_path_factory.getbasetemp()))
