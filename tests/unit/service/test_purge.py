"""The error when an instance's directory cannot be removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from rest_service import Here

from wherry.base.errors import Code, Failed
from wherry.service import purge


def test_a_directory_that_stays_is_told_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else there is is removed all the same."""
    place = Here("test", tmp_path)
    place.run.mkdir()
    place.state.mkdir(exist_ok=True)
    removed: list[Path] = []

    def remove(path: Path) -> None:
        if path == place.run:
            raise Failed(Code.FAILED, f"{path} was not removed", "it is busy")
        removed.append(path)
        path.rmdir()

    for name in ("_remove_cgroups", "forget"):
        monkeypatch.setattr(purge, name, lambda _: None)
    monkeypatch.setattr(purge, "_helpers", lambda _: set())
    monkeypatch.setattr(purge, "purge_machine", lambda _: {})
    monkeypatch.setattr(purge, "hosts_used", lambda _: ((), {}))
    monkeypatch.setattr(purge, "InstanceLock", lambda _: type("Lock", (), {"release": lambda self: None})())
    monkeypatch.setattr(
        purge, "remains", lambda of: {"directories": [str(path) for path in (of.run, of.state) if path.exists()]}
    )
    monkeypatch.setattr(purge, "remove_tree", remove)
    with pytest.raises(Failed, match="removed in part") as failed:
        purge.purge(place)
    assert failed.value.code == Code.PARTLY_DONE
    assert f"{place.run} was not removed: it is busy" in failed.value.why
    assert removed == [place.state] and not place.state.exists()
