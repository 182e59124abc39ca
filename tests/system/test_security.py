"""What a user who is not root gets through the daemon, which is: nothing that the user does not have outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wherry.node.criu import find as find_criu

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

WHERRY = Path(sys.executable).parent / "wherry"
INSTANCE = "tsec"
SECONDS = 240  # for one command, on a loaded machine
NOBODY = 65534
AS_NOBODY = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}


def wherry(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    return subprocess.run(
        [str(WHERRY), *words], cwd=cwd, env={**kept, "WHERRY_INSTANCE": INSTANCE, **more}, capture_output=True,
        text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def case() -> Iterator[Path]:
    """Directories of nobody's: `open`, and `limited`, a mount without writing and programs; and `closed`, root's."""
    with tempfile.TemporaryDirectory(prefix="wherry-tsec-") as name:
        top = Path(name)
        top.chmod(0o755)
        for directory in ("open", "limited", "closed"):
            (top / directory).mkdir()
        os.chown(top / "open", NOBODY, NOBODY)
        (top / "closed").chmod(0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,noexec,mode=0777", "tmpfs", top / "limited"], check=True)
        try:
            yield top
        finally:
            subprocess.run(["umount", top / "limited"], check=True)


@pytest.fixture(scope="module")
def clusters(case: Path) -> Iterator[dict[str, dict[str, object]]]:
    """Clusters of nobody's, made in the directory of the same name, of one node each."""
    wherry("down", "--all", cwd=case)
    for name in ("open", "limited", "closed"):
        file = case / f"{name}.yaml"
        file.write_text(f"kind: container\nversion: 1\nname: {name}\nnodes: 1\ncpus: 0.5\nmemory: 256MiB\n")
        up = wherry("up", str(file), cwd=case / name, **AS_NOBODY)
        assert up.returncode == 0, up.stderr
    listed = json.loads(wherry("status", "-o", "json", cwd=case).stdout)["clusters"]
    yield {cluster["name"]: cluster for cluster in listed}
    down = wherry("down", "--all", cwd=case)
    assert down.returncode == 0, down.stderr


def mounts(node: str) -> dict[str, set[str]]:
    """Mount points inside the node, each with its options."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_bytes().startswith(b"/run/wherry/init"):
                uts = subprocess.run(
                    ["nsenter", "--uts", "--target", entry.name, "hostname"], capture_output=True, text=True, check=True
                )
                if uts.stdout.strip() == node:
                    lines = (entry / "mountinfo").read_text().splitlines()
                    return {line.split()[4]: set(line.split()[5].split(",")) for line in lines}
        except OSError:
            continue
    pytest.fail(f"{node} has no first process")


def test_mounts_of_a_node_allow_no_more_than_those_of_the_host(
    clusters: dict[str, dict[str, object]], case: Path
) -> None:
    before = mounts("limited-0")
    for point, options in before.items():
        assert "nosuid" in options, point
        assert "nodev" in options or point == "/dev", point
    assert "ro" in before["/"] and "ro" in before["/sys"]
    assert {"ro", "noexec"} <= before[str(case / "limited")]
    assert "rw" in mounts("open-0")[str(case / "open")]
    if not find_criu().works:
        pytest.skip("no CRIU: not looked at after a move")
    host = json.loads(wherry("node", "show", "limited-0", "-o", "json", cwd=case).stdout)["node"]["host"]
    hosts = json.loads(wherry("host", "list", "-o", "json", cwd=case).stdout)["hosts"]
    moved = wherry("move", "limited-0", "--to", next(h["name"] for h in hosts if h["name"] != host), cwd=case)
    assert moved.returncode == 0, moved.stderr
    assert mounts("limited-0") == before
