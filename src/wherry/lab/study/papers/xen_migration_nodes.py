"""Hosts and clusters of `xen-migration`, by its settings. One site, as the paper's cluster: each node of HPL's
and SP's has a host of its own, and one host more is free for the node that moves.

Invariant: nodes whose moves are compared have the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wherry.lab.study.papers.xen_migration_design import (
    HOST,
    NODE_MEMORY,
    TALK_MEMORY,
    VM,
    VM_MOVED,
    VM_NODES,
    VM_NODES_MOVED,
    VM_TALK,
    XenDesign,
)
from wherry.lab.study.testbed import FABRIC, ClusterShape

_HPCC = ("/usr/bin/hpcc",)
_IDLE = "a4"
"""Host of the node that moves while nothing runs on it."""
BESIDE = {"linpack": "vm", "netpipe": "vm-two-hosts"}
"""Test -> the idle VM nodes beside the programs on their hosts."""
NODES_OF = {
    "hpl3": "three",
    "hpl3-long": "three",
    "hpl3-emulated": "three",
    "hpl6": "six",
    "sp": "four",
    "sp-emulated": "four",
    "shallow": "long",
}
"""Test -> cluster, named by its nodes in the paper."""
_TEST_OF = {"three": "hpl3", "six": "hpl6", "four": "sp", "long": "shallow"}
_CLUSTERS_ON_HOST = 16
"""So many nodes of a host have room at the same time."""


def fabric(design: XenDesign) -> Mapping[str, Any]:
    """As many hosts as the largest test needs, with room for the nodes of all tests."""
    largest = max(design.value(NODE_MEMORY), design.value(TALK_MEMORY))
    memory = NODE_MEMORY.shown(max(16 << 30, _CLUSTERS_ON_HOST * largest))
    return {
        **{key: value for key, value in FABRIC.items() if key != "links"},
        "sites": [{"name": "a"}],
        "hosts": [{"name": name, "site": "a", "cores": 16, "memory": memory} for name in design.all_hosts()],
    }


def shapes(design: XenDesign) -> dict[str, ClusterShape]:
    """The clusters by name."""
    memory = NODE_MEMORY.shown(design.value(NODE_MEMORY))
    talk = TALK_MEMORY.shown(design.value(TALK_MEMORY))
    found = [
        ClusterShape("idle", 1, (_IDLE,), memory=memory),
        ClusterShape("vm", 1, (_IDLE,), memory=memory, nic="virtio"),
    ]
    for kind, nic in (("", ""), ("vm-", "virtio")):
        found += [
            ClusterShape(f"{kind}two-hosts", 2, ("a1", "a2"), memory=talk, nic=nic),
            ClusterShape(f"{kind}one-host", 2, ("a1",), memory=talk, spread="pack", nic=nic),
            ClusterShape(f"{kind}one-node", 1, ("a2",), cpus=2.0, memory=talk, nic=nic),
        ]
        for name, test in _TEST_OF.items():
            needs = _HPCC if nic and test.startswith("hpl") else ()
            hosts = design.all_hosts()[: design.hosts(test)]
            shape = ClusterShape(f"{kind}{name}", design.nodes(test), hosts, memory=memory, nic=nic, needs=needs)
            found.append(shape)
    return {shape.name: shape for shape in found}


def machines(design: XenDesign, test: str, how: str) -> ClusterShape | None:
    """The VM nodes that a run needs."""
    there = shapes(design)
    if how == HOST:
        return there[BESIDE[test]]
    if how in (VM, VM_MOVED):
        return there["vm"]
    if how in (VM_NODES, VM_NODES_MOVED):
        return there[f"vm-{NODES_OF[test]}"]
    return there[how] if how in VM_TALK else None


def places(cluster: ClusterShape) -> tuple[str, ...]:
    """The hosts that a cluster's nodes may be on: its own, and the one behind them, which is free at first."""
    return (*cluster.hosts, f"a{int(cluster.hosts[-1][1:]) + 1}")
