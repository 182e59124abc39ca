"""The baselines of the benchmark `engine`: each moves a container for real and leaves nothing on the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from wherry.base.errors import Failed
from wherry.base.paths import Instance
from wherry.lab.bench.baseline_container import ContainerByHand, Writing, closed_at_the_end
from wherry.lab.bench.baseline_criu import BaselineCriu
from wherry.lab.bench.baseline_podman import BaselinePodman, podman_obstacle

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
WRITING = Writing(8 << 20, 20e6, 4 << 20)
OF_PODMAN = ("/dev/shm/libpod_lock", "/run/libpod", "/run/containers", "/var/lib/containers")
KINDS: tuple[type[ContainerByHand], ...] = (BaselineCriu, BaselinePodman)


@pytest.fixture
def place() -> Iterator[Instance]:
    place = Instance("byhand")
    place.run.mkdir(parents=True)
    yield place
    for path in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()):
        if (path / place.prefix).is_dir():
            (path / place.prefix).rmdir()
    shutil.rmtree(place.run)


def traces(place: Instance) -> set[str]:
    """Objects of a baseline on the machine, and the paths that podman uses when it gets no others."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounts = [line for line in lines if str(place.run) in line or place.prefix in line]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{place.prefix}/*/")]
    spaces = [str(path) for path in Path("/run/netns").glob(f"{place.prefix}-*")]
    return {*mounts, *groups, *spaces, *(path for path in OF_PODMAN if Path(path).exists()), *programs()}


def programs() -> Iterator[str]:
    """Programs whose command line names a baseline's directory or its writer's peer."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            text = path.read_bytes()
            if b"/by-hand/" in text or b"wherry-writer" in text and b"\x0010.0.0.1\0" in text:
                yield repr(text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_goes_on_and_nothing_is_left(kind: type[ContainerByHand], place: Instance) -> None:
    before = traces(place)
    if kind is BaselinePodman and podman_obstacle():
        pytest.skip(podman_obstacle())
    with closed_at_the_end(kind(place, WRITING)) as container:
        row = container.run()
    assert row["wrong"] == row["lost"] == 0 and row["mib"] > WRITING.memory / 2**20
    assert 0 < row["gap"] <= row["total"] + 1 and row["peer_gap"] >= row["gap"] / 2
    assert traces(place) == before


@pytest.mark.parametrize("kind", KINDS)
def test_after_an_error_nothing_is_left(
    kind: type[ContainerByHand], place: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container runs, and cannot be dumped for its connection."""
    before = traces(place)
    if kind is BaselinePodman and podman_obstacle():
        pytest.skip(podman_obstacle())
    monkeypatch.setattr(f"{kind.__module__}._OPTIONS", ())
    with pytest.raises(Failed, match="tcp-established"), closed_at_the_end(kind(place, WRITING)) as container:
        container.run()
    assert traces(place) == before
