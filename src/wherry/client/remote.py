"""A daemon that is asked over the network: where it is, by which token, and which certificates are trusted.

`WHERRY_URL`, `WHERRY_TOKEN` and `WHERRY_CA` say it, else the file that `wherry login` writes. Invariant: a token is
sent to nobody but a server whose certificate is good for the name in the URL, and is taken from no file that others can
read.
"""

from __future__ import annotations

import json
import os
import ssl
import stat
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, LostContact, Refused

PORT = 7443
"""Where a URL without a port leads."""
_KEYS = ("url", "token", "ca")


@dataclass(frozen=True)
class Remote:
    """`ca`: path of the certificates to trust; empty: the certificates that this machine trusts."""

    url: str
    token: str = field(default="", repr=False)
    ca: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port. USAGE when the text is not a URL of a daemon."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port or PORT
        except ValueError as error:
            raise self._no_url(str(error)) from None
        if parts.scheme != "https" or not host or parts.path.strip("/") or parts.query or parts.username is not None:
            raise self._no_url("it must be https://HOST:PORT")
        return host, port

    def _no_url(self, why: str) -> Refused:
        return Refused(Code.USAGE, f"{self.url!r} is no address of a daemon", why, "WHERRY_URL=https://HOST:PORT")

    def context(self) -> ssl.SSLContext:
        """The settings of TLS. NOT_FOUND, INVALID_FILE when there are no such certificates."""
        return _context(self.ca)


@cache
def _context(ca: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except FileNotFoundError:
        raise Refused(Code.NOT_FOUND, f"there is no file {ca}", "it has whom to trust", "WHERRY_CA=FILE") from None
    except (OSError, ssl.SSLError) as error:
        raise Refused(Code.INVALID_FILE, f"{ca} has no certificates", str(error), "WHERRY_CA=FILE") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def configured() -> Remote | None:
    """The daemon to ask over the network; None for this machine's own. An empty WHERRY_URL means that, too."""
    if (url := os.environ.get("WHERRY_URL")) is not None:
        remote = Remote(url, os.environ.get("WHERRY_TOKEN", ""), os.environ.get("WHERRY_CA", "")) if url else None
    else:
        remote = _from_file()
    if remote:
        _ = remote.address  # a malformed URL is refused at once
    return remote


def file() -> Path:
    """The file of `wherry login`."""
    top = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(top) / "wherry" / "client.json"


def save(remote: Remote) -> Path:
    """Writes the file, which nobody but this user can read."""
    path = file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, json.dumps(asdict(remote), indent=2).encode(), 0o600)
    return path


def forget() -> bool:
    """Removes the file; False when there is none."""
    try:
        file().unlink()
    except FileNotFoundError:
        return False
    return True


def _from_file() -> Remote | None:
    """The daemon of the file. Another user's file (sudo keeps HOME) is not this user's. PERMISSION when others may
    read it."""
    path = file()
    try:
        with open(path) as opened:
            found = os.fstat(opened.fileno())
            if found.st_uid != os.geteuid():
                return None
            if stat.S_IMODE(found.st_mode) & 0o077:
                what, why = f"{path} is not used", f"others may read the token in it: mode {found.st_mode & 0o777:04o}"
                raise Refused(Code.PERMISSION, what, why, f"chmod 600 {path}; and, if others were here, wherry login")
            text = opened.read(65536)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    try:
        data = json.loads(text)
        return Remote(**{key: str(data[key]) for key in _KEYS})
    except (ValueError, KeyError, TypeError):
        raise Refused(Code.INVALID_FILE, f"{path} is damaged", "", f"rm {path}, then: wherry login URL") from None


def refuse(option: str) -> None:
    """USAGE for an option that names something of the daemon's machine, where that is not this one."""
    if remote := configured():
        why = f"it names a directory of the daemon's machine, which is asked over the network ({remote.url})"
        raise Refused(Code.USAGE, f"{option} cannot be used here", why, f"leave {option} out")


def not_trusted(remote: Remote, error: ssl.SSLError) -> LostContact:
    """The error for a server whose certificate is not good."""
    why = getattr(error, "verify_message", "") or error.reason or str(error)
    remedy = "WHERRY_CA=FILE with the daemon's ca.pem; wherry daemon listen, there, names it"
    return LostContact(Code.UNREACHABLE, f"{remote.url} is not trusted", str(why), remedy)
