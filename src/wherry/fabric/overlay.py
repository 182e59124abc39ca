"""VPNs between the gateways of two sites, which are the sites' own namespaces: frames of one bridge reach the other
inside encrypted datagrams, as between sites that share nothing but the internet.

    site a:  bridge lan -- v1 (TAP) - openvpn - s1 [100.64.N.1] ---- link ---- [100.64.N.2] s0 - openvpn - (TAP) v0 ...

Both gateways trust exactly one certificate, that of the other (OpenVPN 2.6: --peer-fingerprint); both are made here,
for this link, and never leave the run directory. Invariant: a gateway is told by the file of its process id, and is
ours only when its command line names our directory: so a daemon that was killed finds it again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from wherry.base.errors import Code, Failed, Refused
from wherry.base.paths import native_program
from wherry.fabric import links
from wherry.fabric.links import Links
from wherry.model.spec import LinkSpec

PORT = 1194
"""The port that IANA gave to OpenVPN."""
TIMEOUT = 30.0
"""Seconds until a tunnel stands; the handshake alone is a few round trips."""
_NEEDED = {"openvpn": ("openvpn", "openssl")}


def check(link: LinkSpec) -> None:
    """Refuses an overlay that this machine cannot make, with the reason."""
    if link.overlay == "none":
        return
    if link.overlay == "wireguard":
        raise Refused(
            Code.UNSUPPORTED,
            f"the link {link.name} cannot have the overlay wireguard",
            "WireGuard carries packets, not frames, and is not offered between sites yet",
            "overlay: openvpn",
        )
    missing = [program for program in _NEEDED[link.overlay] if shutil.which(program) is None]
    if missing:
        raise Refused(
            Code.UNSUPPORTED,
            f"the link {link.name} cannot have the overlay {link.overlay}",
            f"not installed: {', '.join(missing)}",
            f"apt-get install {' '.join(missing)}",
        )


class Overlay:
    """The two gateways of one link. `ends` are the sites' namespaces and the wires there."""

    def __init__(self, directory: Path, name: str, ends: list[tuple[str, str]], index: int, bridge: str) -> None:
        self._directory = directory
        self._name = name
        self._ends = ends
        self._addresses = [f"100.64.{index}.{last}" for last in (1, 2)]
        self._bridge = bridge
        self._children: list[subprocess.Popen[bytes]] = []

    def up(self) -> None:
        """Starts what does not run; its frames pass as soon as both have found each other (see `wait`)."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        prints = [self._certificate(side) for side in (0, 1)]
        for side, (netns, wire) in enumerate(self._ends):
            links.inside(netns, functools.partial(Links.address, name=wire, address=f"{self._addresses[side]}/30"))
            if self._pid(side) is None:
                self._start(side, prints[1 - side])
        for netns, wire in self._ends:
            self._until(
                functools.partial(links.inside, netns, functools.partial(Links.there, name=_tap(wire))), "start"
            )
            join = functools.partial(Links.join, name=_tap(wire), bridge=self._bridge, mtu=links.UNDERLAY_MTU)
            links.inside(netns, join)

    def wait(self) -> None:
        """Until both have found each other. Failed with what they said last when one has ended or the time is up."""
        self._until(lambda: all(self._stands(side) for side in (0, 1)), "connect")

    def alive(self) -> bool:
        """True when both gateways run."""
        self._children = [child for child in self._children if child.poll() is None]  # reaps the dead
        return all(self._pid(side) is not None for side in (0, 1))

    def down(self) -> None:
        """Ends both and forgets their keys; also when there are none."""
        for side in (0, 1):
            pid = self._pid(side)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for child in self._children:
            child.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _until(self, done: Callable[[], bool], verb: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not done():
            if time.monotonic() > deadline or not self.alive():
                what = f"the gateways of the link {self._name} did not {verb}"
                raise Failed(Code.FAILED, what, self._last_words(), "wherry site link")
            time.sleep(0.02)

    def _start(self, side: int, peer: str) -> None:
        netns, wire = self._ends[side]
        directory = self._directory
        (directory / f"{side}.log").unlink(missing_ok=True)
        words = [
            *(
                "openvpn",
                "--dev",
                _tap(wire),
                "--dev-type",
                "tap",
                "--tun-mtu",
                str(links.UNDERLAY_MTU),
                "--mssfix",
                "0",
            ),
            *("--proto", "udp", "--port", str(PORT), "--remote", self._addresses[1 - side]),
            *("--local", self._addresses[side], "--txqueuelen", "10000", "--sndbuf", "4194304", "--rcvbuf", "4194304"),
            *("--cert", str(directory / f"{side}.crt"), "--key", str(directory / f"{side}.key")),
            *("--peer-fingerprint", peer, "--ping", "5", "--ping-restart", "30", "--persist-tun", "--persist-key"),
            *("--connect-retry", "1", "2", "--resolv-retry", "infinite", "--verb", "3", "--suppress-timestamps"),
            *(("--tls-server", "--dh", "none") if side == 0 else ("--tls-client",)),
        ]
        with open(directory / f"{side}.log", "wb") as log:
            child = subprocess.Popen(
                [str(native_program("wherry-ns")), "--net", netns, "--", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        self._children.append(child)
        (directory / f"{side}.pid").write_text(str(child.pid))

    def _pid(self, side: int) -> int | None:
        """The process id of a gateway that runs."""
        try:
            pid = int((self._directory / f"{side}.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except (OSError, ValueError):
            return None
        starts = not words and state != "Z"  # the kernel shows no words while a program takes another's place
        return pid if starts or str(self._directory).encode() in words else None

    def _stands(self, side: int) -> bool:
        with contextlib.suppress(OSError):
            return b"Initialization Sequence Completed" in (self._directory / f"{side}.log").read_bytes()
        return False

    def _last_words(self) -> str:
        texts = [self._directory / f"{side}.log" for side in (0, 1)]
        lines = [line for text in texts if text.exists() for line in text.read_text(errors="replace").splitlines()[-3:]]
        return "; ".join(lines)

    def _certificate(self, side: int) -> str:
        """The SHA-256 fingerprint of a gateway's certificate, which is made when it is not there."""
        key, certificate = (self._directory / f"{side}.{kind}" for kind in ("key", "crt"))
        if not certificate.exists():
            subject = f"/CN=wherry {self._name} gateway {side}"
            new = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650"]
            _openssl("req", *new, "-subj", subject, "-keyout", str(key), "-out", str(certificate))
        said = _openssl("x509", "-in", str(certificate), "-noout", "-fingerprint", "-sha256")
        return said.strip().partition("=")[2]


def _tap(wire: str) -> str:
    """`s1` -> `v1`."""
    return f"v{wire[1:]}"


def _openssl(*words: str) -> str:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Failed(Code.FAILED, "no certificate could be made", done.stderr.strip(), "apt-get install openssl")
    return done.stdout
