"""URIs of hosts that are reached by SSH: `ssh://USER@HOST[:PORT]`.

Invariant: an accepted URI has user, host and port only, and none of them begins with a hyphen, which ssh would take for
an option. All else (keys, jump hosts) is set in ~/.ssh/config.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEME = "ssh://"
_WHOLE = re.compile(
    r"ssh://(?:(?P<user>[A-Za-z_][A-Za-z0-9_.-]{0,31})@)?"
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::(?P<port>[1-9][0-9]{0,4}))?/?",
    re.ASCII,
)


@dataclass(frozen=True)
class SshUri:
    """The parts of a URI; a missing `user` or `port` is empty."""

    host: str
    user: str = ""
    port: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.destination}{f':{self.port}' if self.port else ''}"

    @property
    def destination(self) -> str:
        """`USER@HOST`, or the host alone."""
        return f"{self.user}@{self.host}" if self.user else self.host


def parse_ssh_uri(text: str) -> SshUri:
    """Parses a host's URI. ValueError explains what is wrong with it."""
    found = _WHOLE.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no host that SSH reaches: write it as ssh://root@10.0.0.1 or ssh://root@NAME:22")
    port = found["port"] or ""
    if port and int(port) > 65535:
        raise ValueError(f"{text!r}: {port!r} is no port")
    return SshUri(found["host"], found["user"] or "", port)
