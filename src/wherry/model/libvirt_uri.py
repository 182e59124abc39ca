"""URIs of real hosts' libvirtds: `qemu+ssh://HOST/system` or `xen+ssh://HOST/`; `tls` or `tcp` instead of `ssh`, too.

Invariant: an accepted URI consists of hypervisor, transport, user, host and port only, since libvirt's parameters
(`?command=…`) can name programs to run, and ssh takes a host that begins with a hyphen for an option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TRANSPORTS = ("tcp", "tls", "ssh")
PATHS = {"qemu": "/system", "xen": "/"}
"""The hypervisors that hosts can run, and the path of each in a URI."""
_NAMES = {"qemu": "QEMU", "xen": "Xen"}
_WHOLE = re.compile(
    r"(?P<hypervisor>[a-z]+)(?:\+(?P<transport>[a-z0-9]+))?://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(?P<more>[?#].*)?",
    re.ASCII,
)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


@dataclass(frozen=True)
class HostUri:
    """The parts of a URI; a missing `user` or `port` is empty."""

    hypervisor: str
    transport: str
    host: str
    user: str = ""
    port: str = ""

    def __str__(self) -> str:
        user, port = f"{self.user}@" if self.user else "", f":{self.port}" if self.port else ""
        return f"{self.hypervisor}+{self.transport}://{user}{self.host}{port}{PATHS[self.hypervisor]}"


def parse_uri(text: str) -> HostUri:
    """Parses a host's URI. ValueError explains what is wrong with it."""
    example = "write it as qemu+ssh://root@10.0.0.1/system, qemu+tls://… or qemu+tcp://…, and for Xen as xen+ssh://…/"
    found = _WHOLE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no URI of a libvirtd: {example}")
    hypervisor = str(found["hypervisor"])
    if hypervisor not in PATHS:
        raise ValueError(f"{text!r}: the hypervisor must be qemu or xen; {example}")
    if found["transport"] not in TRANSPORTS:
        raise ValueError(f"{text!r}: the transport must be ssh, tls or tcp; {example}")
    if found["more"]:
        raise ValueError(f"{text!r}: parameters are refused; set them in /etc/libvirt/libvirt.conf or ~/.ssh/config")
    if found["path"] not in (None, "/", "/system"):
        raise ValueError(f"{text!r}: the path of a {_NAMES[hypervisor]} host is {PATHS[hypervisor]}")
    user, at, rest = found["authority"].rpartition("@")
    host, colon, port = rest.partition(":")
    if at and (found["transport"] != "ssh" or not _USER.fullmatch(user)):
        raise ValueError(f"{text!r}: a user is a name, and for {hypervisor}+ssh only")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is no name or IPv4 address of a host")
    if colon and not (_PORT.fullmatch(port) and int(port) < 65536):
        raise ValueError(f"{text!r}: {port!r} is no port")
    return HostUri(hypervisor, str(found["transport"]), host, user, port)
