"""Ports on a fabric of their own, for tests of the netns fabric."""

from __future__ import annotations

import os
import socket
import subprocess

from names import own_name
from wherry.base.paths import Instance
from wherry.fabric import named_netns
from wherry.fabric.netns import NetnsFabric
from wherry.model.network import ClusterNetwork, Port, address_of, mac_of

INSTANCE = Instance(own_name("tfab"))


def left() -> set[str]:
    """Namespaces and cgroups with the instance's prefix, and the machine's own interfaces."""
    walk = os.walk("/sys/fs/cgroup")  # others come and go meanwhile
    groups = {path for path, *_ in walk if path.endswith(f"/{INSTANCE.prefix}")}
    return set(named_netns.names(INSTANCE.prefix)) | groups | {f"link {name}" for _, name in socket.if_nameindex()}


def port_of(network: ClusterNetwork, index: int, host: str) -> Port:
    address, mac = address_of(network, index), mac_of(network, index)
    return Port(owner=f"t-{index}", index=index, host=host, network=network, address=address, mac=mac)


def plugged(fabric: NetnsFabric, network: ClusterNetwork, index: int, host: str) -> Port:
    port = port_of(network, index, host)
    fabric.port_up(port)
    fabric.port_plug(port)
    return port


def ping(fabric: NetnsFabric, source: Port, address: str, *options: str) -> bool:
    command = ["ping", "-c1", "-W2", *options, address]
    return named_netns.inside(
        fabric.port_netns(source), lambda: subprocess.run(command, capture_output=True, timeout=30).returncode == 0
    )


def listen(fabric: NetnsFabric, port: Port) -> socket.socket:
    return named_netns.inside(fabric.port_netns(port), lambda: socket.create_server((port.address, 5000)))


def connect(fabric: NetnsFabric, port: Port, to: Port) -> socket.socket:
    return named_netns.inside(fabric.port_netns(port), lambda: socket.create_connection((to.address, 5000), timeout=20))
