"""The seed for cloud-init (data source NoCloud), which configures a cloud image at its first boot.

    meta-data, network-config, user-data      cloud-init's own, in YAML
    guest, init                               wherry-guest and the agent
    description, key, hosts                   input of wherry-guest --join (native/guest/main.c)

cloud-init sets name, network and user, and at the end of the boot starts the agent from the seed. Nothing is installed
in the image. Commands are lists of words, so no user's text is interpreted by a shell.
Source: https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html
"""

from __future__ import annotations

import json
import pwd
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from wherry.base.paths import native_program
from wherry.model.network import PREFIX
from wherry.node.protocol import Placement
from wherry.node.vm.disk import run
from wherry.node.vm.guest_config import identity

_LABEL = "cidata"
"""The volume label by which cloud-init finds the seed."""
_PANIC = "echo -1 >/proc/sys/kernel/panic"
"""Reboots the machine on a panic, which ends the node, as with our own image; the default is to hang for ever."""
_WHERE = "/run/wherry"
"""Mount point of the seed in the machine."""


def write_seed(path: Path, placement: Placement, id: str, directories: Iterable[str]) -> None:
    """Writes the seed. `id` is unique for each machine; `directories` are created for the node's user."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        top = Path(scratch)
        shutil.copy(native_program("wherry-guest"), top / "guest")
        shutil.copy(native_program("wherry-init"), top / "init")
        files = {
            "description": " ".join(identity(placement)) + "\n",
            "key": placement.key.get_secret_value(),
            "hosts": placement.hosts_file,
            "meta-data": _yaml({"instance-id": id, "local-hostname": placement.node.name}),
            "network-config": _yaml(_network(placement)),
            "user-data": "#cloud-config\n" + _yaml(_user_data(placement, directories)),
        }
        for name, text in files.items():
            (top / name).touch(mode=0o600)
            (top / name).write_text(text)
        run("genisoimage", "-quiet", "-volid", _LABEL, "-rock", "-output", str(path), str(top))


def _user_data(placement: Placement, directories: Iterable[str]) -> dict[str, object]:
    owner = placement.owner
    commands = [["mkdir", "-p", _WHERE], ["mount", "-o", "ro", f"LABEL={_LABEL}", _WHERE]]
    for directory in directories:
        commands.append(["install", "-d", "-o", str(owner.uid), "-g", str(owner.gid), "-m", "0755", directory])
    commands.append([f"{_WHERE}/guest", "--join", _WHERE])
    told: dict[str, object] = {
        "bootcmd": [["sh", "-c", _PANIC]],
        "runcmd": commands,
        "ssh_genkeytypes": ["ed25519"],
        "locale": False,
    }
    if owner.uid:
        told["users"] = [{"name": _name(owner.uid), "uid": owner.uid, "lock_passwd": True}]
    return told


def _network(placement: Placement) -> dict[str, object]:
    node = placement.node
    interface = {
        "match": {"macaddress": node.mac},
        "set-name": "eth0",
        "addresses": [f"{node.address}/{PREFIX}"],
        "mtu": placement.nic.mtu,
    }
    return {"version": 2, "ethernets": {"eth0": interface}}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user{uid}"


def _yaml(data: dict[str, object]) -> str:
    """JSON is a subset of YAML, with unambiguous quoting."""
    return json.dumps(data, indent=1) + "\n"
