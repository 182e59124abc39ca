"""`wherry doctor --install`: has apt-get install the Debian packages that Wherry runs, and finds a CRIU that works.

`make setup` installs these for a checkout, beside compilers; the Debian package depends on them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from wherry.base.errors import Code, Failed, Refused
from wherry.node.container.criu import probe

REQUIRED = ("e2fsprogs", "iproute2", "nftables", "procps", "runc", "util-linux")
"""Without one of these no node runs."""
USEFUL = (
    "iptables", "iputils-ping", "libbpf1", "lxcfs", "openssh-sftp-server", "openssl", "openvpn", "wireguard-go",
    "wireguard-tools",
)  # fmt: skip
"""Each is for a feature that is refused or slower without it, and a release may lack some."""
_SECONDS = 1800


def install() -> dict[str, object]:
    """The names of the packages that were installed, and the CRIU. UNSUPPORTED without apt-get, PERMISSION, Failed."""
    if os.geteuid() != 0:
        raise Refused(Code.PERMISSION, "packages are installed by root", "", "sudo wherry doctor --install")
    lacking = _lacking((*REQUIRED, *USEFUL))
    if lacking and not shutil.which("apt-get"):
        what, why = "this machine has no apt-get", f"packages as of Debian are needed: {' '.join(REQUIRED)}"
        raise Refused(Code.UNSUPPORTED, what, why, "install them by hand, then: wherry doctor")
    if lacking:
        _apt("update")
        lacking = [name for name in lacking if name in REQUIRED or _is_known(name)]
        _apt("install", "-y", "--no-install-recommends", "--", *lacking)
    found = probe.ensure()
    return {"packages": lacking, "criu": found.version if found.works else "", "reason": found.reason}


def _lacking(names: Iterable[str]) -> list[str]:
    if not shutil.which("dpkg-query"):
        return list(names)
    return [name for name in names if _said("dpkg-query", "-W", "-f", "${db:Status-Status}", name) != "installed"]


def _is_known(name: str) -> bool:
    return bool(_said("apt-cache", "show", name))


def _said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout


def _apt(*words: str) -> None:
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *words]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        why = (done.stderr or done.stdout).strip()[-600:]
        remedy = "correct the network or /etc/apt, then: wherry doctor --install"
        raise Failed(Code.FAILED, f"apt-get {words[0]} failed", why, remedy)
