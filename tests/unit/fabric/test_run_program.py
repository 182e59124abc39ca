"""Programs that hang or that somebody removed: an error with a reason, or none where they are not needed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rest_service import Here

from wherry.base.errors import Code, Failed
from wherry.fabric import host_facts
from wherry.fabric.run_program import succeeds
from wherry.node import elf
from wherry.node.container import local_host
from wherry.node.vm import qemu_probe
from wherry.node.vm.image import kernel
from wherry.node.vm.image.catalog import VmImage


def test_what_does_not_end_proves_nothing() -> None:
    assert succeeds(["true"], "tried") and not succeeds(["false"], "tried")
    with pytest.raises(Failed) as ended:
        succeeds(["sleep", "60"], "tried", 0.2)
    assert ended.value.code is Code.TIMED_OUT and ended.value.what == "tried"


def test_a_runtime_that_does_not_run_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o755)
    monkeypatch.setenv("WHERRY_RUNTIME", str(broken))
    host_facts.runtime_version.cache_clear()
    try:
        assert host_facts.runtime_version() == "broken"
    finally:
        host_facts.runtime_version.cache_clear()


def test_a_container_is_removed_though_its_runtime_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = local_host.LocalHost(Here("test", tmp_path), cast(Any, None))
    place = cast(Any, SimpleNamespace(node=SimpleNamespace(name="hello-0"), host="a1"))
    state = made._runtime_root() / "hello-0.a1"
    state.mkdir(parents=True)
    monkeypatch.setenv("WHERRY_RUNTIME", "/nonexistent/runc")
    made._forget_runtime(place)
    assert not state.exists()


def gone(*_: object, **__: object) -> None:
    raise FileNotFoundError(2, "No such file or directory")


def test_without_ldconfig_libraries_are_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", gone)
    elf._cache.cache_clear()
    try:
        assert elf.find_library("libmpi.so.40", elf.Elf(Path("/x"), (), (), ()), "") is None
    finally:
        elf._cache.cache_clear()


def test_a_kernel_that_cannot_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Failed) as refused:
        kernel._unpacked(b"\x28\xb5\x2f\xfd" + bytes(10))
    assert refused.value.code is Code.UNSUPPORTED and refused.value.next == "apt-get install zstd"


def test_what_was_found_out_about_kvm_need_not_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text(json.dumps({}))
    monkeypatch.setattr(qemu_probe, "CACHE", tmp_path / "file" / "cache")  # no directory can be made there
    monkeypatch.setattr(qemu_probe.os, "access", lambda *_: True)
    monkeypatch.setattr(qemu_probe, "_boots", lambda _image: True)
    qemu_probe.kvm.cache_clear()
    try:
        assert qemu_probe.kvm(VmImage(tmp_path / "file", Path("/i"), "default", "0" * 64)) == ""
    finally:
        qemu_probe.kvm.cache_clear()
