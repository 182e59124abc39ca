"""WireGuard between real hosts, below the VXLANs of clusters' networks.

    namespace of the host                                                the machine's own network
    cN (bridge) ── xN ~~ VXLAN ~~ eNAME [the host's address] ~~ WireGuard ~~ UDP ── address ══ wire ══ other hosts

The interface is in the host's namespace, its socket in the machine's network, where it was made. So the VXLANs of a
namespace get packets that WireGuard has verified, and no others: packets that somebody sends to the machine's address
are in another network. In the namespace each host has the address that it has on the wire, and the clusters' heads have
INSIDE.

The kernel's WireGuard is used if it has one, else the program `wireguard-go`. Invariants: a private key is made at its
end and never leaves it; the daemon hands out public keys by the connections to the agents.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import Instance
from wherry.fabric import netns_links, wireguard
from wherry.fabric.netns_links import MACHINE
from wherry.fabric.run_program import output_of
from wherry.fabric.vpn_gateway import Gateway, inside

HEADERS = 60
"""Bytes of a packet on the wire that packets inside do not have (IPv4, UDP and WireGuard's own)."""
PORT, HEAD_PORT = 51840, 51841
"""UDP ports of hosts, and of the daemon's machine, which may be a host, too."""
INSIDE = "100.127.255.254"
"""The address of clusters' heads in the namespaces; of the range for networks of carriers (RFC 6598), as no host's."""
_KEEPALIVE = 25
"""Seconds between packets that keep a session, also through a router that translates addresses; the first is sent at
once."""
_STARTS = 30.0
"""Seconds within which wireguard-go must answer, which takes milliseconds."""
_REMEDY = "apt-get install wireguard-tools wireguard-go; or encryption: never, in the fabric file"


class WirePeer(BaseModel):
    """Another end: its public key, its address in the namespaces, its address and UDP port on the wire, and whether
    sessions with it are begun here: one of two does it, as simultaneous handshakes invalidate each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    inside: str
    endpoint: str
    begins_here: bool


class EncryptedWire:
    """One end. Every call makes missing parts and keeps existing ones. Safe from several threads."""

    def __init__(self, instance: Instance, name: str, netns: str, port: int) -> None:
        """`name`: of the host; `netns`: the path of its namespace."""
        self._directory, self._netns, self._port = directory(instance) / name, netns, port
        self._name = name
        self._link = f"e{zlib.crc32(f'{instance.prefix}-{name}'.encode()):08x}"  # unique on this machine
        self._program = Gateway(self._directory, 0, MACHINE)
        self._lock = threading.Lock()

    def make(self, address: str, mtu: int) -> str:
        """Makes this end, with its address in the namespace and the MTU of packets there; returns its public key.
        Refused where the machine has no WireGuard."""
        with self._lock:
            if lacking := wireguard.missing():
                what = f"the network between hosts cannot be encrypted at {self._name}"
                raise Refused(Code.UNSUPPORTED, what, f"{' and '.join(lacking)} not installed there", _REMEDY)
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._exists():
                self._create()
            public = self._public_key()
            netns_links.inside(self._netns, lambda ip: ip.attach(self._link, None, mtu))
            netns_links.inside(self._netns, lambda ip: ip.address(self._link, f"{address}/32"))
            return public

    def set_peers(self, peers: Sequence[WirePeer]) -> None:
        """Replaces the other ends; sessions with ends that stay continue."""
        rows = "".join(
            f"[Peer]\nPublicKey = {peer.key}\nAllowedIPs = {peer.inside}/32\nEndpoint = {peer.endpoint}\n"
            f"PersistentKeepalive = {_KEEPALIVE if peer.begins_here else 'off'}\n"
            for peer in peers
        )
        with self._lock:
            own = f"[Interface]\nPrivateKey = {self._key.read_text().strip()}\nListenPort = {self._port}\n"
            text = (own + rows).encode()
            if not self._settings.exists() or self._settings.read_bytes() != text:
                new = self._settings.with_suffix(".new")
                write_atomically(new, text, 0o600)
                what = "WireGuard did not take the keys of the other hosts"
                output_of(inside(self._netns, "wg", "syncconf", self._link, str(new)), what, _REMEDY)
                new.replace(self._settings)
            reached = [peer.inside for peer in peers]
            netns_links.inside(self._netns, lambda ip: ip.route_only(self._link, reached))

    def lost(self) -> bool:
        """True when this end was made, and its interface or its program is gone."""
        with self._lock:
            return self._settings.exists() and os.path.exists(self._netns) and not self._exists()

    def remove(self) -> None:
        """Removes this end and its key."""
        with self._lock:
            _end(self._directory)
            for empty in (self._directory.parent, self._directory.parent.parent):
                with contextlib.suppress(OSError):
                    empty.rmdir()
            if os.path.exists(self._netns):
                netns_links.inside(self._netns, lambda ip: ip.remove(self._link))

    @property
    def _key(self) -> Path:
        return self._directory / "key"

    @property
    def _settings(self) -> Path:
        """With the key and the peers that the interface has."""
        return self._directory / "settings"

    def _public_key(self) -> str:
        """Makes the private key if it is missing."""
        if not self._key.exists():
            made = output_of(["wg", "genkey"], "no key could be made", _REMEDY)
            write_atomically(self._key, made.encode(), 0o600)
        return output_of(["wg", "pubkey"], "the key cannot be read", _REMEDY, self._key.read_text()).strip()

    def _exists(self) -> bool:
        if not netns_links.inside(self._netns, lambda ip: ip.exists(self._link)):
            return False
        return wireguard.kernel() or (self._program.pid() is not None and wireguard.answers(self._link))

    def _create(self) -> None:
        for old in (self._key, self._settings):  # a new key, as the other ends believe in sessions of the old one
            old.unlink(missing_ok=True)
        with open(self._netns) as target:
            if wireguard.kernel():
                netns_links.inside(MACHINE, lambda ip: ip.wireguard_for(target.fileno(), self._link))
                return
            self._program.end()
            wireguard.forget_socket(self._link)  # of a dead one, which answers nothing
            write_atomically(self._directory / "link", self._link.encode(), 0o600)
            self._program.start([wireguard.PROGRAM, "-f", self._link], {"LOG_LEVEL": "error"})
            deadline = time.monotonic() + _STARTS
            while not wireguard.answers(self._link):
                if time.monotonic() > deadline or self._program.pid() is None:
                    what = f"{wireguard.PROGRAM} did not start"
                    raise Failed(Code.FAILED, what, self._program.output().strip()[-500:], "wherry doctor")
                time.sleep(0.01)
            netns_links.inside(MACHINE, lambda ip: ip.give(self._link, target.fileno()))


def directory(instance: Instance) -> Path:
    """The directory with one for each end that the instance has on this machine."""
    return instance.run / "wire"


def sweep(instance: Instance) -> None:
    """Ends the programs of all ends here, and removes their keys."""
    if directory(instance).is_dir():
        for one in directory(instance).iterdir():
            _end(one)
        shutil.rmtree(directory(instance), ignore_errors=True)


def _end(end: Path) -> None:
    Gateway(end, 0, MACHINE).end()
    if (link := end / "link").exists():
        wireguard.forget_socket(link.read_text())
    shutil.rmtree(end, ignore_errors=True)
