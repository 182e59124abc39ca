"""An unprivileged user gains no rights through the daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from names import own_name
from wherry.base.paths import Instance, native_program
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.owner import Owner
from wherry.node import elf
from wherry.node.as_user import as_user
from wherry.node.container.criu.probe import find as find_criu
from wherry.node.container.mounts import MASKED_DIRECTORIES, MASKED_FILES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

WHERRY = Path(sys.executable).parent / "wherry"
INSTANCE = own_name("tsec")
SECONDS = 240  # time limit of one command on a loaded machine
NOBODY = 65534
AS_NOBODY = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}


def wherry(*words: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
    return subprocess.run(
        [str(WHERRY), *words], cwd=cwd, env={**inherited, "WHERRY_INSTANCE": INSTANCE, **more}, capture_output=True,
        text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def case() -> Iterator[Path]:
    """Directories of user nobody: `open`, and `limited` (mounted read-only and noexec); and `closed` of root."""
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
    """One-node clusters of user nobody, each made in the directory of its name."""
    wherry("down", "--all", "--yes", cwd=case)
    for name in ("open", "limited", "closed"):
        file = case / f"{name}.yaml"
        file.write_text(f"kind: container\nversion: 1\nname: {name}\nnodes: 1\ncpus: 0.5\nmemory: 256MiB\n")
        up = wherry("up", str(file), cwd=case / name, **AS_NOBODY)
        assert up.returncode == 0, up.stderr
    listed = json.loads(wherry("status", "-o", "json", cwd=case).stdout)["clusters"]
    yield {cluster["name"]: cluster for cluster in listed}
    down = wherry("down", "--all", "--yes", cwd=case)
    assert down.returncode == 0, down.stderr


def mounts(node: str) -> dict[str, set[str]]:
    """Mount points inside the node -> their options."""
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


def test_mounts_of_a_node_keep_the_hosts_mount_flags(clusters: dict[str, dict[str, object]], case: Path) -> None:
    before = mounts("limited-0")
    masked = {*MASKED_FILES, *MASKED_DIRECTORIES}  # masked by /dev/null and by an empty directory
    for point, options in before.items():
        assert "nosuid" in options or point in masked, point
        assert "nodev" in options or point in ("/dev", "/dev/pts") or point in masked, point
    assert "ro" in before["/"] and "ro" in before["/sys"]
    assert {"ro", "noexec"} <= before[str(case / "limited")]
    assert "rw" in mounts("open-0")[str(case / "open")]
    if not find_criu().works:
        pytest.skip("no CRIU: not looked at after a move")
    host = json.loads(wherry("node", "show", "limited-0", "-o", "json", cwd=case).stdout)["node"]["host"]
    hosts = json.loads(wherry("host", "list", "-o", "json", cwd=case).stdout)["hosts"]
    moved = wherry("move", "limited-0", "--to", next(h["name"] for h in hosts if h["name"] != host), cwd=case)
    assert moved.returncode == 0, moved.stderr
    after = mounts("limited-0")
    assert after.keys() == before.keys()
    assert {point: after[point] for point in after if point not in masked} == {
        point: before[point] for point in before if point not in masked
    }


def test_directory_closed_to_the_user_is_not_bound_into_a_node(
    clusters: dict[str, dict[str, object]], case: Path
) -> None:
    assert clusters["closed"]["binds"] == []
    assert str(case / "closed") not in mounts("closed-0")
    done = wherry("run", "open", "-n", "1", "--", "/bin/true", cwd=case / "closed", **AS_NOBODY)
    assert done.returncode == 4 and f"{case}/closed is closed to you" in done.stderr and "next: cd " in done.stderr


@pytest.mark.smoke
def test_files_closed_to_the_user_are_hidden_in_nodes(clusters: dict[str, dict[str, object]], case: Path) -> None:
    secret = case / "closed" / "secret"
    secret.write_text("#!/bin/sh\n")
    secret.chmod(0o755)
    outputs = {}
    for name in ("secret", "missing"):
        word = str(case / "closed" / name)
        done = wherry("run", "open", "-n", "1", "--", word, cwd=case / "open", **AS_NOBODY)
        assert done.returncode == 3, done.stderr
        outputs[name] = done.stderr.replace(name, "X")
    assert outputs["secret"] == outputs["missing"]


@pytest.mark.smoke
def test_only_the_owner_of_a_cluster_runs_jobs_on_it(clusters: dict[str, dict[str, object]], case: Path) -> None:
    done = wherry("run", "open", "-n", "1", "--", "/bin/true", cwd=case / "open")
    assert done.returncode == 4 and "not yours" in done.stderr and "next: " in done.stderr
    more = {**AS_NOBODY, "SUDO_GID": "0"}
    done = wherry("run", "open", "-n", "1", "--", "/bin/true", cwd=case / "open", **more)
    assert done.returncode == 4 and "does not know your groups" in done.stderr and "next: wherry down" in done.stderr


def test_job_key_grants_no_more_than_the_users_rights(clusters: dict[str, dict[str, object]], case: Path) -> None:
    started = wherry("run", "open", "-n", "1", "--detach", "--", "/bin/sleep", "300", cwd=case / "open", **AS_NOBODY)
    assert started.returncode == 0, started.stderr
    id = started.stdout.strip()
    try:
        file = Instance(INSTANCE).state / "jobs" / id / "own" / "job"
        nobody = Owner(uid=NOBODY, gid=NOBODY, groups=(NOBODY,), home="/", cwd="/")
        words = as_user(nobody, file.read_text).split()
        address, key = words[words.index("node") + 2], words[words.index("node") + 4]
        (netns,) = Path("/run/netns").glob(f"wherry-{INSTANCE}*open-head*")
        node = AgentEndpoint(str(netns), address, key)
        assert node.run(["/usr/bin/id", "-u"], nobody, {}, 30).stdout == b"65534\n"
        for foreign in ({"uid": 0}, {"gid": 0}, {"groups": (0,)}, {"uid": 1}):
            with pytest.raises(AgentError, match="its cluster's user only"):
                node.run(["/usr/bin/id"], nobody.model_copy(update=foreign), {}, 30)
        status = node.run(["/bin/cat", "/proc/self/status"], nobody, {}, 30).stdout.decode()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["NoNewPrivs"] == "1"
        assert {int(fields[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Amb")} == {0}
    finally:
        wherry("cancel", id, cwd=case, **AS_NOBODY)


@pytest.mark.smoke
def test_root_loads_no_library_of_the_user() -> None:
    """User variables such as LD_PRELOAD reach the launcher through programs that still run as root."""
    for name in ("wherry-ns", "wherry-launch"):
        program = elf.read(native_program(name))
        assert program is not None and program.needed == ()
