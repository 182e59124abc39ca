"""The node's own cgroups, which its programs see read-only at /sys/fs/cgroup, as container engines show them.

There a program finds how much memory and how many processors its node may use: a JVM sizes its heap by it. In v1 each
hierarchy is a directory, with a link for every controller of several (`cpu` to `cpu,cpuacct`); in v2 there is one.
A cgroup namespace makes the node's cgroup the root of the paths in /proc/PID/cgroup, so a move changes no path.
"""

from __future__ import annotations

import functools
from pathlib import Path

from wherry.fabric import cpuset
from wherry.fabric.cgroup import Layout, machine_layout

INSIDE = "/sys/fs/cgroup"
_CONTROLLERS = ("memory", "cpu", "cpuacct", "pids")


@functools.cache
def hierarchies() -> dict[str, Path]:
    """The root of each hierarchy of this machine that nodes see, by its name below INSIDE, which in v2 is empty."""
    return named(machine_layout(), cpuset.v1_root())


def named(layout: Layout, sets: Path | None) -> dict[str, Path]:
    """The same of a layout, and of v1's root of CPU sets. Where both versions are mounted, v1's have the limits."""
    roots = dict[Path, list[str]]()
    for controller in _CONTROLLERS:
        if root := layout.v1.get(controller):
            roots.setdefault(root, []).append(controller)
    if sets:
        roots.setdefault(sets, []).append("cpuset")
    if roots:
        return {",".join(controllers): root for root, controllers in roots.items()}
    return {"": layout.v2} if layout.v2 else {}


def mount_points() -> list[str]:
    """Where a node sees them."""
    return [f"{INSIDE}/{name}".rstrip("/") for name in hierarchies()]


def mounts(cgroup: str, directory: Path) -> dict[str, str]:
    """The path of this machine that a node with this cgroup sees at each mount point; `fill` made `directory`."""
    shown = {point: str(root / cgroup) for point, root in zip(mount_points(), hierarchies().values(), strict=True)}
    return {INSIDE: str(directory), **shown} if shown else {}


def fill(directory: Path) -> None:
    """Makes the directory below which v1's hierarchies are mounted."""
    directory.mkdir()
    for name in filter(None, hierarchies()):
        (directory / name).mkdir()
        for controller in name.split(",") if "," in name else ():
            (directory / controller).symlink_to(name)


def as_root(cgroup: str) -> tuple[str, ...]:
    """Words for wherry-ns to run a program in a cgroup namespace with this cgroup as its root."""
    roots = dict.fromkeys([*hierarchies().values(), machine_layout().root("freezer")])
    return tuple(word for root in roots if root for word in ("--cgroup-root", str(root / cgroup / "cgroup.procs")))
