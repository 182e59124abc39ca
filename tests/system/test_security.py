"""An unprivileged user gains no rights through the daemon."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from realworld import Completed, RealInstance

from wherry.base.paths import native_program
from wherry.job.agent_client import AgentEndpoint, AgentError
from wherry.model.owner import Owner
from wherry.node import elf
from wherry.node.as_user import as_user
from wherry.node.container.criu.probe import find as find_criu
from wherry.node.container.mounts import MASKED_DIRECTORIES, MASKED_FILES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")

NOBODY = 65534
AS_NOBODY = {"SUDO_UID": str(NOBODY), "SUDO_GID": str(NOBODY)}


def typed(four: RealInstance, directory: Path, *words: str, **more: str) -> Completed:
    """A command that is typed in a directory of one's own."""
    return RealInstance(four.instance.name, directory)(*words, **more)


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
def clusters(four: RealInstance, case: Path) -> Iterator[None]:
    """One-node clusters of user nobody, each made in the directory of its name."""

    def make() -> None:
        for name in ("open", "limited", "closed"):
            file = four.directory / four.cluster_file(name, 1)
            up = typed(four, case / name, "up", str(file), **AS_NOBODY)
            assert up.returncode == 0, up.stderr

    with four.kept.also(make):
        yield


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


def test_mounts_of_a_node_keep_the_hosts_mount_flags(four: RealInstance, clusters: None, case: Path) -> None:
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
    host = four.hosts_of("limited")["limited-0"]
    four.move("limited-0", next(other for other in four.hosts() if other != host))
    after = mounts("limited-0")
    assert after.keys() == before.keys()
    assert {point: after[point] for point in after if point not in masked} == {
        point: before[point] for point in before if point not in masked
    }


def test_directory_closed_to_the_user_is_not_bound_into_a_node(four: RealInstance, clusters: None, case: Path) -> None:
    (closed,) = [one for one in four.json("status")["clusters"] if one["name"] == "closed"]
    assert closed["binds"] == []
    assert str(case / "closed") not in mounts("closed-0")
    done = typed(four, case / "closed", "run", "open", "-n", "1", "--", "/bin/true", **AS_NOBODY)
    assert done.returncode == 4 and f"{case}/closed is closed to you" in done.stderr and "next: cd " in done.stderr


def test_files_closed_to_the_user_are_hidden_in_nodes(four: RealInstance, clusters: None, case: Path) -> None:
    secret = case / "closed" / "secret"
    secret.write_text("#!/bin/sh\n")
    secret.chmod(0o755)
    outputs = {}
    for name in ("secret", "missing"):
        word = str(case / "closed" / name)
        done = typed(four, case / "open", "run", "open", "-n", "1", "--", word, **AS_NOBODY)
        assert done.returncode == 3, done.stderr
        outputs[name] = done.stderr.replace(name, "X")
    assert outputs["secret"] == outputs["missing"]


def test_only_the_owner_of_a_cluster_runs_jobs_on_it(four: RealInstance, clusters: None, case: Path) -> None:
    done = typed(four, case / "open", "run", "open", "-n", "1", "--", "/bin/true")
    assert done.returncode == 4 and "not yours" in done.stderr and "next: " in done.stderr
    more = {**AS_NOBODY, "SUDO_GID": "0"}
    done = typed(four, case / "open", "run", "open", "-n", "1", "--", "/bin/true", **more)
    assert done.returncode == 4 and "does not know your groups" in done.stderr and "next: wherry down" in done.stderr


def test_job_key_grants_no_more_than_the_users_rights(four: RealInstance, clusters: None, case: Path) -> None:
    started = typed(four, case / "open", "run", "open", "-n", "1", "--detach", "--", "/bin/sleep", "300", **AS_NOBODY)
    assert started.returncode == 0, started.stderr
    id = started.stdout.strip()
    try:
        file = four.instance.state / "jobs" / id / "own" / "job"
        nobody = Owner(uid=NOBODY, gid=NOBODY, groups=(NOBODY,), home="/", cwd="/")
        words = as_user(nobody, file.read_text).split()
        address, key = words[words.index("node") + 2], words[words.index("node") + 4]
        (netns,) = Path("/run/netns").glob(f"{four.instance.prefix}*open-head*")
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
        four("job", "cancel", id)


@pytest.mark.smoke
def test_root_loads_no_library_of_the_user() -> None:
    """User variables such as LD_PRELOAD reach the launcher through programs that still run as root."""
    for name in ("wherry-ns", "wherry-launch", "wherry-confined"):
        program = elf.read(native_program(name))
        assert program is not None and program.needed == ()
