"""An NPB job over two fully occupied sites: common base of `balance` and `balance-overhead`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from wherry.base.paths import native_program
from wherry.client import Client
from wherry.lab.bench.definition import Benchmark
from wherry.model.owner import Owner
from wherry.model.records import Job

_HOSTS = 3
"""Hosts at each site."""
JOB = "job"
"""The cluster that the program runs on."""


@dataclass(frozen=True)
class TwoSitesBenchmark(Benchmark):
    """Settings, fabric and clusters of the job."""

    nodes: int = 6
    """Nodes of the job at each site."""
    ranks: int = 16
    latency: str = "10ms"
    """One-way latency of the link."""
    bandwidth: str = "1Gbit/s"
    mpi: Literal["openmpi", "mpich"] = "openmpi"

    def make_fabric(self, client: Client) -> None:
        """Makes two sites, each with capacity for all nodes of the job."""
        cores = -(-2 * self.nodes // _HOSTS)
        hosts = [
            {"name": f"{site}{number}", "site": site, "cores": cores, "memory": "4GiB"}
            for site in "ab"
            for number in range(1, _HOSTS + 1)
        ]
        link = {"between": ["a", "b"], "latency": self.latency, "bandwidth": self.bandwidth}
        about = {"kind": "fabric", "version": 1, "name": "two-sites", "sites": [{"name": "a"}, {"name": "b"}]}
        client.wait(client.fabric_up({**about, "hosts": hosts, "links": [link]}, "the benchmark's fabric").id)

    def make_clusters(self, client: Client, owner: Owner) -> None:
        """Makes the job's cluster over both sites, and at each site a cluster that occupies the rest of it."""
        _up(client, owner, JOB, 2 * self.nodes, {"placement": "spread"})
        for site in ("a", "b"):
            _up(client, owner, f"guest{site}", self.nodes, {"sites": [site], "memory": "32MiB"})

    def start_program(self, client: Client, name: str, directory: Path, owner: Owner) -> Job:
        """Starts an NPB program, given as PROGRAM:CLASS."""
        program, _, size = name.partition(":")
        path = directory / f"npb-{program}"
        shutil.copy(native_program(f"npb-{program}-{self.mpi}"), path)
        return client.run(JOB, [str(path), size], self.ranks, self.mpi, owner=owner)

    def settings_text(self) -> str:
        """The settings as text for a title."""
        return f"{self.nodes} + {self.nodes} nodes, {self.ranks} ranks, {self.latency}"


def _up(client: Client, owner: Owner, name: str, nodes: int, options: dict[str, Any]) -> None:
    spec = {"name": name, "nodes": nodes, "cpus": 1, "memory": "256MiB", **options}
    client.wait(client.up(spec, "the benchmark's cluster", owner).id)
