"""The emulator of virtual machines here, and its refusals: KVM that does not work, an old QEMU, no libvirt."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wherry.base.errors import Code, Refused
from wherry.node.vm import libvirt_client, qemu_probe
from wherry.node.vm.image.catalog import VmImage


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Answers are kept while a process lives, and while the machine is up."""
    monkeypatch.setattr(qemu_probe, "CACHE", tmp_path / "cache")
    for known in (qemu_probe.version, qemu_probe.kvm):
        known.cache_clear()
    yield
    for known in (qemu_probe.version, qemu_probe.kvm):
        known.cache_clear()


def qemu(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A QEMU that is this script of the shell."""
    program = directory / qemu_probe.EMULATOR
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def images(directory: Path) -> list[VmImage]:
    """Two of one kernel."""
    kernel = directory / "kernel"
    kernel.write_bytes(b"Linux")
    return [VmImage(kernel, directory / name, "default", name) for name in ("one", "two")]


@pytest.mark.parametrize(
    ("version", "told"), [("7.2.9 (Debian 1:7.2+dfsg)", "QEMU 7.2 can lose"), ("9.0.0", ""), ("10.0.2", "")]
)
def test_an_old_qemu_is_not_trusted_with_moves_under_emulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, told: str
) -> None:
    qemu(tmp_path, monkeypatch, f'echo "QEMU emulator version {version}"')
    why = qemu_probe.unsafe_moves(emulated=True)
    assert why.startswith(told) and bool(why) == bool(told)
    assert qemu_probe.unsafe_moves(emulated=False) == ""


@pytest.mark.parametrize(("says", "works"), [("Linux version 6.1.0", True), ("", False)])
def test_kvm_is_believed_only_when_a_kernel_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, works: bool
) -> None:
    """Once after each boot of the machine, for all images with that kernel."""
    asked = tmp_path / "asked"
    qemu(tmp_path, monkeypatch, f'case $1 in --version) echo version 10.0;; *) echo x >>{asked}; echo "{says}";; esac')
    monkeypatch.setattr(qemu_probe.os, "access", lambda _path, _mode: True)
    for image in images(tmp_path):
        assert qemu_probe.kvm(image) == ("" if works else "a kernel does not boot under /dev/kvm")
        qemu_probe.kvm.cache_clear()
    assert asked.read_text() == "x\n"


def test_a_kernel_that_computes_and_says_nothing_does_not_boot_for_any_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    script = f"case $1 in --version) echo version 10.0;; *) echo x >>{asked}; while :; do :; done;; esac"
    qemu(tmp_path, monkeypatch, script)
    monkeypatch.setattr(qemu_probe.os, "access", lambda _path, _mode: True)
    monkeypatch.setattr(qemu_probe, "_SILENT", 1)
    for image in images(tmp_path):
        assert "does not boot" in qemu_probe.kvm(image)
        qemu_probe.kvm.cache_clear()
    assert asked.read_text() == "x\n"


def test_vhost_wants_kvm_and_the_kernels_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu_probe.os, "access", lambda _path, _mode: False)
    assert "needs KVM" in qemu_probe.no_vhost(emulated=True)
    assert "modprobe vhost_net" in qemu_probe.no_vhost(emulated=False)


def test_without_qemu_there_is_no_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert qemu_probe.version() == (0, 0) and qemu_probe.emulator() == ""


def test_without_libvirts_binding_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *words: Any) -> Any:
        if name == "libvirt":
            raise ImportError(name)
        return real(name, *words)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Refused) as refused:
        libvirt_client.load.__wrapped__()  # not the kept result: its loop of events runs on for other tests
    assert refused.value.code == Code.UNSUPPORTED and "make setup-vm" in refused.value.next
