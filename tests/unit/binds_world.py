"""Users, a cluster and mount namespaces for directories that are bound into running nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.node.container import hot_bind

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users are root's")
ME = Owner(uid=os.getuid(), gid=os.getgid(), home="/root", cwd="/")
NOBODY = Owner(uid=65534, gid=65534, groups=(65534,), home="/", cwd="/")


def cluster_with(*binds: str, kind: str = "container") -> Cluster:
    spec = {"name": "n", "nodes": 1, "kind": kind}
    return Cluster.model_validate(
        {"name": "n", "spec": spec, "state": "running", "network": 1, "subnet": "10.0.0.0/24", "head_host": "a1",
         "owner_uid": ME.uid, "owner_gid": ME.gid, "binds": binds, "created": 0}
    )  # fmt: skip


@contextmanager
def mount_namespace(script: str) -> Iterator[int]:
    """That of a process which runs the script first."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{script} && echo up && exec sleep 600"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as node:
        assert node.stdout and node.stdout.readline() == b"up\n"
        descriptor = os.open(f"/proc/{node.pid}/ns/mnt", os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
            node.kill()


def inside(namespace: int, *words: str) -> str:
    """The output of a program in the mount namespace."""
    enter = ["nsenter", f"--mount=/proc/self/fd/{namespace}", "--wd=/", *words]
    return subprocess.run(enter, pass_fds=(namespace,), capture_output=True, text=True, check=True).stdout


def show(namespace: int, path: Path) -> None:
    opened = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        hot_bind.attach(namespace, opened, str(path))
    finally:
        os.close(opened)
