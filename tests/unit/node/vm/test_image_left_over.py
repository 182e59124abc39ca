"""A daemon that is killed while it builds an image leaves a directory as large as one: the next build removes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.base.errors import Failed
from wherry.base.paths import images_directory
from wherry.node.vm.image import build


def test_what_killed_builds_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    top = images_directory()
    for name in (".default.ab12", ".other-one.cd34", ".gone.removed-0m", ".kernels", "default", "a.b"):
        (top / name / "image").mkdir(parents=True)

    def stop(_programs: object) -> None:
        raise Failed("FAILED", "as far as that")  # type: ignore[arg-type]

    monkeypatch.setattr(build, "collect", stop)
    with pytest.raises(Failed, match="as far as that"):
        build.build("new", (), lambda _: None, lambda: None)
    assert sorted(path.name for path in top.iterdir()) == [".kernels", ".lock", "a.b", "default"]
