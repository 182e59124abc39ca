"""Where nodes see their cgroups, whatever the machine has mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.fabric.cgroup import Layout
from wherry.node.container import shown_cgroups

ROOT = Path("/sys/fs/cgroup")
SEPARATE = {name: ROOT / name for name in ("memory", "cpu", "cpuacct", "freezer", "pids")}
TOGETHER = {"memory": ROOT / "m", "cpu": ROOT / "cpu,cpuacct", "cpuacct": ROOT / "cpu,cpuacct"}
V2 = frozenset({"cpu", "memory"})


@pytest.mark.parametrize(
    ("layout", "sets", "names"),
    [
        (Layout(SEPARATE), ROOT / "cpuset", ["memory", "cpu", "cpuacct", "pids", "cpuset"]),
        (Layout(TOGETHER), ROOT / "m", ["memory,cpuset", "cpu,cpuacct"]),
        (Layout(TOGETHER, ROOT / "unified"), None, ["memory", "cpu,cpuacct"]),
        (Layout({}, ROOT, V2), None, [""]),
        (Layout({}), None, []),
    ],
)
def test_hierarchies_have_the_names_of_their_controllers(layout: Layout, sets: Path | None, names: list[str]) -> None:
    assert list(shown_cgroups.named(layout, sets)) == names


def test_hierarchies_are_mounted_below_a_directory_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown_cgroups, "hierarchies", lambda: shown_cgroups.named(Layout(TOGETHER), ROOT / "m"))
    shown_cgroups.fill(tmp_path / "made")
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"memory", "cpu", "cpuset", "cpuacct"} | {
        *("memory,cpuset", "cpu,cpuacct")
    }
    assert (tmp_path / "made" / "cpu").readlink() == Path("cpu,cpuacct")
    assert shown_cgroups.mounts("w/a1/n-0", tmp_path / "made") == {
        "/sys/fs/cgroup": str(tmp_path / "made"),
        "/sys/fs/cgroup/memory,cpuset": "/sys/fs/cgroup/m/w/a1/n-0",
        "/sys/fs/cgroup/cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct/w/a1/n-0",
    }


def test_the_one_hierarchy_of_v2_is_mounted_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_cgroups, "hierarchies", lambda: {"": ROOT / "unified"})
    assert shown_cgroups.mount_points() == ["/sys/fs/cgroup"]
    assert shown_cgroups.mounts("w/a1/n-0", tmp_path) == {"/sys/fs/cgroup": "/sys/fs/cgroup/unified/w/a1/n-0"}
