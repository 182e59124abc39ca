"""The limits of a node's processes leave room for a restore."""

from __future__ import annotations

import resource

import pytest

from wherry.node.container import limits


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ((1024, 1048576), (1024, 1047552)),
        ((20000, 20000), (18976, 18976)),
        ((1024, 1024), None),
    ],
)
def test_files_that_a_node_may_open(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, int], theirs: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_NOFILE: ours}.get)
    expected = [{"type": "RLIMIT_NOFILE", "soft": theirs[0], "hard": theirs[1]}] if theirs else []
    assert limits.open_files() == expected
