"""A Slurm cluster on the bare hosts of `sshhosts`: slurmctld beside the daemon, and a slurmd at each host.

    namespaces of `lab`: wherryd, slurmctld, squeue, …        namespaces of `h1`, `h2`, `h3`: sshd, slurmd

Its programs are those of Debian, unpacked by scripts/setup-test and not installed, as their packages would start munged
at every boot. So nobody proves here who he is (auth/none), and the network is the lab's own. slurmd has no cgroups
(proctrack/linuxproc): those of the machine are one for all hosts.
Invariant: slurmctld ends with the block, and a slurmd with its host.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sshhosts import ADDRESSES, LAB, SshLab

_UNPACKED = Path(__file__).resolve().parents[2] / "build/slurm"
_CLIENTS = ("squeue", "sbatch", "scancel", "scontrol", "sinfo")
_CALLS = "calls"
_STARTS = 30.0
"""Seconds in which slurmctld starts, or ends."""
_CONF = """\
ClusterName=wherry
SlurmctldHost={controller}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
StateSaveLocation={directory}/state
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmctldPort=6817
SlurmdPort=6818
SlurmdSpoolDir=/run/slurmd
SlurmdPidFile=/run/slurmd.pid
SlurmdLogFile=/tmp/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=60
KillWait=5
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE
"""


def missing() -> str:
    """Why there can be no Slurm here; empty when there can."""
    names = ("slurmctld", "slurmd", "slurmstepd", *_CLIENTS)
    if absent := [name for name in names if _program(_UNPACKED, name) is None]:
        return f"there is no {', no '.join(absent)} in build/slurm (scripts/setup-test)"
    for name in ("slurmctld", "slurmd", "squeue"):
        words = ["ldd", str(_program(_UNPACKED, name))]
        said = subprocess.run(words, env=_environment(_UNPACKED), capture_output=True, text=True, check=False).stdout
        if lacks := [line.split()[0] for line in said.splitlines() if "not found" in line]:
            return f"{name} lacks {', '.join(lacks)} here"
    return ""


class SlurmLab:
    """The cluster; `bin` has its programs for users, and `namespaces` and `hosts` are the lab's."""

    def __init__(self, lab: SshLab, directory: Path) -> None:
        self.lab, self.bin, self._calls = lab, directory / "bin", directory / _CALLS

    def run(self, *words: str) -> str:
        """Runs a program of Slurm beside the daemon, which must succeed; returns its output."""
        return self.lab.namespaces.run(str(self.bin / words[0]), *words[1:])

    def jobs(self, name: str) -> list[str]:
        """The states of the jobs of this name, without jobs that are about to be gone."""
        found = self.run("squeue", "--noheader", "--format=%T", f"--name={name}").split()
        return [state for state in found if state != "COMPLETING"]

    def calls(self, program: str) -> int:
        """How often a program of Slurm was run."""
        return self._calls.read_text().split().count(program) if self._calls.exists() else 0

    def states(self) -> dict[str, str]:
        """Node -> state."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines}


@contextmanager
def slurm_lab(lab: SshLab) -> Iterator[SlurmLab]:
    """Starts the daemons; all they need is below a directory that hosts see."""
    directory = lab.shared / "slurm"
    directory.mkdir()
    root, binaries, state = directory / "root", directory / "bin", directory / "state"
    shutil.copytree(_UNPACKED, root, symlinks=True)
    for each in (binaries, state):
        each.mkdir()
    conf = directory / "slurm.conf"
    nodes = [
        f"NodeName={name} NodeAddr={address} NodeHostname={name} CPUs=2 RealMemory=1024 State=UNKNOWN"
        for name, address in ADDRESSES.items()
    ]
    controller = socket.gethostname().partition(".")[0]
    plugins = _plugins(root)
    conf.write_text(
        _CONF.format(
            controller=controller, address=LAB, plugins=plugins, directory=directory, nodes="\n".join(nodes)
        )
    )  # fmt: skip
    (directory / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    for name in ("slurmctld", "slurmd", *_CLIENTS):
        _wrap(binaries / name, root, name, conf)
    words = [*lab.namespaces.enter, str(binaries / "slurmctld"), "-D", "-f", str(conf)]
    with open(directory / "slurmctld.out", "wb") as said:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        ping = [*lab.namespaces.enter, str(binaries / "scontrol"), "ping"]
        deadline = time.monotonic() + _STARTS
        while subprocess.run(ping, capture_output=True, check=False).returncode:
            assert process.poll() is None and time.monotonic() < deadline, (directory / "slurmctld.out").read_text()
            time.sleep(0.2)
        stepd = _program(root, "slurmstepd")
        for host in lab.hosts.values():
            host.run("sh", "-c", f"{binaries}/slurmd -f {conf} -d {stepd} >/tmp/slurmd.out 2>&1")
        yield SlurmLab(lab, directory)
    finally:
        process.terminate()
        try:
            process.wait(_STARTS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wrap(path: Path, root: Path, name: str, conf: Path) -> None:
    """A script that runs a program that is not installed, and notes that."""
    words = " ".join(f"{key}='{value}'" for key, value in _environment(root).items() if key != "PATH")
    call = f"echo {name} >>{conf.parent / _CALLS}"
    path.write_text(f'#!/bin/sh\n{call}\nexec env {words} SLURM_CONF={conf} {_program(root, name)} "$@"\n')
    path.chmod(0o755)


def _program(root: Path, name: str) -> Path | None:
    """Debian 12 adds `-wlm` to the names of daemons, and links them when it installs them."""
    found = [root / "usr" / place / f"{name}{end}" for place in ("bin", "sbin") for end in ("", "-wlm")]
    return next((path for path in found if path.is_file()), None)


def _plugins(root: Path) -> Path:
    return next(iter(root.glob("usr/lib/*/slurm-wlm")), root)


def _environment(root: Path) -> dict[str, str]:
    plugins = _plugins(root)
    return {"PATH": os.environ.get("PATH", ""), "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}"}
