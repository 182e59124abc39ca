"""`wherry ssh-key`: public keys, by which accounts reach their nodes over SSH."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from wherry.base.errors import Code, Refused
from wherry.cli.output import Output, age, emit, table
from wherry.client import Client

app = App(name="ssh-key", help="Public keys, by which one reaches one's nodes over SSH; EC2's key pairs are the same.")
_LONGEST = 16384


@app.command
def add(name: str, file: Path | None = None, /, *, user: str | None = None, output: Output = "text") -> None:
    """Have the daemon know a public key.

    Parameters
    ----------
    name
        A name for it.
    file
        The public key (*.pub); default: the first of ~/.ssh/id_ed25519.pub and ~/.ssh/id_rsa.pub that is there.
    user
        Whose it is; default: one's own account.
    """
    public = _read(file or _usual())
    with Client() as client:
        key = client.add_ssh_key(name, public, user)
    emit(output, "ssh-key", key, lambda: print(f"{key['user']} reaches nodes by {key['fingerprint']}: wherry ssh NODE"))


@app.command(name="list")
def list_(*, output: Output = "text") -> None:
    """List one's keys, an admin's: all."""
    with Client() as client:
        keys = client.ssh_keys()
    rows = [(key["name"], key["user"], key["type"], key["fingerprint"], age(key["created"])) for key in keys]
    header, none = ("KEY", "USER", "TYPE", "FINGERPRINT", "AGE"), "There are none. Next: wherry ssh-key add NAME"
    emit(output, "ssh-keys", {"keys": keys}, lambda: table(header, rows, none))


@app.command
def remove(key: str, /, *, user: str | None = None, output: Output = "text") -> None:
    """Have the daemon forget a key, and end the connections that it opened.

    Parameters
    ----------
    key
        Its name or id, as the list has it.
    user
        Whose it is; default: one's own account.
    """
    with Client() as client:
        found = client.remove_ssh_key(key, user)
    emit(output, "ssh-key", found, lambda: print(f"{found['name']} of {found['user']} is forgotten."))


def _usual() -> Path:
    """NOT_FOUND."""
    places = [Path.home() / ".ssh" / name for name in ("id_ed25519.pub", "id_rsa.pub")]
    for place in places:
        if place.is_file():
            return place
    what = f"there is neither {places[0]} nor {places[1].name}"
    raise Refused(Code.NOT_FOUND, what, "", "ssh-keygen -t ed25519, or name a file: wherry ssh-key add NAME FILE")


def _read(file: Path) -> str:
    """NOT_FOUND, USAGE. A private key is sent nowhere."""
    try:
        with open(file, "rb") as opened:
            text = opened.read(_LONGEST + 1).decode()
    except OSError as error:
        raise Refused(Code.NOT_FOUND, f"{file} cannot be read", error.strerror or "", "ls ~/.ssh/*.pub") from None
    except UnicodeDecodeError:
        text = ""
    if "PRIVATE KEY" in text:
        raise Refused(
            Code.USAGE, f"{file} is a private key", "it stays with you", f"wherry ssh-key add NAME {file}.pub"
        )
    if not text.strip() or len(text) > _LONGEST:
        raise Refused(Code.USAGE, f"{file} is no public key", "", "ssh-keygen -t ed25519")
    return text
