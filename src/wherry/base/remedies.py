"""The command that installs things that Wherry lacks on this machine, for errors: a checkout has `make setup`, an
installed Wherry `wherry doctor --install`."""

from __future__ import annotations

from pathlib import Path

INSTALL = "sudo wherry doctor --install"
MACHINES = (
    "apt-get install python3-libvirt libvirt-clients libvirt-daemon libvirt-daemon-driver-qemu qemu-system-x86"
    " qemu-utils genisoimage busybox-static lz4 squashfs-tools zstd nfs-ganesha-vfs"
)
"""For virtual machines."""
_TARGETS = {"setup": INSTALL, "setup-vm": MACHINES}


def setup(target: str = "setup", installed: str = "") -> str:
    """`make TARGET`, or the command of an installed Wherry, which is `installed` if that is given."""
    return f"make {target}" if is_checkout() else installed or _TARGETS[target]


def packages(names: str) -> str:
    """The same for packages of Debian that `wherry doctor --install` leaves out, as only studies run them."""
    return setup(installed=f"apt-get install {names}")


def is_checkout() -> bool:
    """Whether this module runs out of a checkout, not out of an installed package."""
    return (Path(__file__).resolve().parents[3] / "scripts" / "setup").exists()
