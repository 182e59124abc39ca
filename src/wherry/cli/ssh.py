"""`wherry ssh`: a shell on a node; `wherry ssh-config`: nodes as hosts of OpenSSH's programs.

Over the network OpenSSH's own client does it, as the account, by its key. At the socket the
caller is known already, and the program runs as by `wherry exec`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wherry.base.atomic_write import write_atomically
from wherry.base.errors import Code, Refused
from wherry.cli.exec import exec_
from wherry.cli.names import NodeName
from wherry.cli.options import checked
from wherry.client import Client, existing, remote

_SHELL = "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"
_ALIAS = "wherry-{}-{}"
"""The name of the daemon's key in the file of known keys: by host and port."""


def ssh(
    node: NodeName,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    identity: Annotated[Path | None, Parameter(name=["--identity", "-i"])] = None,
) -> int:
    """Open a shell on a node, or run a command line there: wherry ssh NODE, wherry ssh NODE -- ls -l

    Accounts are known by their SSH keys (wherry ssh-key add), so nobody types a password. The session continues while
    its node moves, and its programs end with it.

    Parameters
    ----------
    node
        The node.
    command
        A command line for the node's shell, after `--`.
    identity
        The private key, as for ssh; default: the keys that ssh itself takes.
    """
    checked("NODE", "spec.base:ShortText", node, "wherry ssh")
    there = remote.configured()
    if there is None:
        if identity:
            why = "users of the daemon's machine are known by its socket"
            raise Refused(Code.USAGE, "--identity is for a daemon over the network", why, f"wherry ssh {node}")
        line = ("-c", " ".join(command)) if command else ("-c", _SHELL)
        return exec_(node, "/bin/sh", *line)
    program = shutil.which("ssh")
    if program is None:
        raise Refused(Code.UNSUPPORTED, "there is no ssh on this machine", "", "apt install openssh-client")
    with existing(f"node {node!r}") as client:
        client.node(node)
        options = _options(client, there, identity)
    user = options.pop("User")
    words = [f"-o{name}={value}" for name, value in options.items()]
    host, port = there.address
    os.execv(program, [program, *words, "-p", str(port), "--", f"{user}+{node}@{host}", *command])  # noqa: S606


def ssh_config(*, identity: Annotated[Path | None, Parameter(name=["--identity", "-i"])] = None) -> None:
    """Print one's nodes as hosts for ssh, scp, sftp and rsync: wherry ssh-config >> ~/.ssh/config

    Parameters
    ----------
    identity
        The private key; default: the keys that ssh itself takes.
    """
    there = remote.configured()
    if there is None:
        why = "users of the daemon's machine reach nodes by its socket"
        raise Refused(Code.USAGE, "SSH is for a daemon over the network", why, "wherry ssh NODE, or wherry cp")
    with Client() as client:
        options = _options(client, there, identity)
        nodes = [node.name for node in client.nodes()]
    host, port = there.address
    user = options.pop("User")
    for node in nodes:
        lines = {"HostName": host, "Port": str(port), "User": f"{user}+{node}", **options}
        print(f"Host {node}")
        print("".join(f"    {name} {_quoted(value)}\n" for name, value in lines.items()))


def _options(client: Client, there: remote.Remote, identity: Path | None) -> dict[str, str]:
    """Options of ssh by which it takes the daemon's own key for right, and no other. WRONG_STATE."""
    access = client.ssh()
    host, port = there.address
    known, alias = remote.file().parent / "known_hosts", _ALIAS.format(host.replace(":", "."), port)
    known.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        others = [line for line in known.read_text().splitlines() if line.split(" ")[0] != alias]
    except FileNotFoundError:
        others = []
    write_atomically(known, "".join(f"{line}\n" for line in [*others, f"{alias} {access['host_key']}"]).encode(), 0o600)
    return {
        "User": access["user"], "UserKnownHostsFile": str(known), "HostKeyAlias": alias,
        "StrictHostKeyChecking": "yes", "PasswordAuthentication": "no",
        **({"IdentityFile": str(identity.absolute()), "IdentitiesOnly": "yes"} if identity else {}),
    }  # fmt: skip


def _quoted(value: str) -> str:
    """A value in ssh_config(5)."""
    return f'"{value}"' if " " in value else value
