"""The command line in the test's process, with a service in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command_line import Wherry
from rest_service import CLUSTER, FABRIC, Service, running

import wherry.client.client
from wherry.cli.main import _run


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The service that commands ask; the working directory has `hello.yaml` and `fabric.yaml`."""
    with running(tmp_path) as service:
        monkeypatch.setattr(wherry.client.client, "instance", lambda: service.place)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "hello.yaml").write_text(yaml.safe_dump(CLUSTER))
        (tmp_path / "fabric.yaml").write_text(yaml.safe_dump(FABRIC))
        yield service


@pytest.fixture
def wherry_(capfdbinary: pytest.CaptureFixture[bytes]) -> Wherry:
    """Runs a command."""

    def run(*words: str) -> tuple[int, str, str]:
        code = _run(list(words))
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run
