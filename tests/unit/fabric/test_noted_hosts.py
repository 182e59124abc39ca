"""The note of hosts by SSH, by which they are found without the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ssh_world import spec
from test_ssh_hosts import Files

from wherry.base.paths import Instance
from wherry.fabric import ssh_hosts


def test_hosts_that_do_not_answer_stay_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    instance = Instance("main")
    kept = list[bool]()
    write = ssh_hosts.write_atomically

    def noting(*words: Any, lasting: bool = False) -> None:
        kept.append(lasting)
        write(*words, lasting=lasting)

    monkeypatch.setattr(ssh_hosts, "write_atomically", noting)
    ssh_hosts.remember(instance, spec())
    ssh_hosts.sweep(instance, Files({}))
    assert ssh_hosts.noted(instance).keys() == {"h1", "h2"}
    assert kept == [True, True], "after a power cut nobody else would know where nodes run on"
