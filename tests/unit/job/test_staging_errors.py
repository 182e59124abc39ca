"""Files of a job that cannot be packed: the remedy names the full disk or the closed path."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from wherry.base.errors import Failed, Refused
from wherry.job import staging
from wherry.model.owner import Owner
from wherry.model.records import Cluster
from wherry.node.file_closure import FileSet

OWNER = Owner(uid=0, gid=0, home="/", cwd="/")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "large").write_bytes(os.urandom(1 << 20))
    files = FileSet()
    files.add(tmp_path / "large")
    monkeypatch.setattr(staging, "_SCRATCH", str(tmp_path / "small"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "wherry", str(tmp_path / "small")], check=True)
    try:
        with pytest.raises(Failed) as refused:
            staging._pack(files, OWNER, {})
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "small")], check=True)
    assert refused.value.next == f"df -h {tmp_path / 'small'}, then repeat the command"


def test_an_error_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: FileSet, _path: object) -> str:
        raise OSError("the mount is gone")

    monkeypatch.setattr(FileSet, "add_program", broken)
    cluster = Cluster.model_validate(
        {"name": "vm", "spec": {"name": "vm", "nodes": 1}, "state": "running", "network": 1,
         "subnet": "10.0.0.0/24", "head_host": "a", "owner_uid": 0, "owner_gid": 0, "created": 0}
    )  # fmt: skip
    with pytest.raises(Refused) as refused:
        staging.gather(cluster, [Path("/bin/true")], OWNER, {}, ())
    assert (refused.value.why, refused.value.next) == ("the mount is gone", "ls -l /bin/true")
