"""A testbed whose clusters are made and removed through the EC2 Query API, by botocore, as users of a private cloud do.

Invariants: a cluster is a reservation of the study's own account, and its programs run as that account; when the
testbed is closed, reservations, account and access key are gone, and the daemon listens and allows as before.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherry.base.units import parse_size
from wherry.lab.study.levels import RunFailed
from wherry.lab.study.testbed import ClusterShape, RunningJob, Testbed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wherry.model.owner import Owner

_NAME = "study"
"""Of the account, its access key and its placement group."""
_REGION = "local"
_LEAST_MEMORY = 512
"""MiB: instance types with less have a part of a CPU."""
_MOST_POLLS = 1800
"""How often the state of instances is asked for at most, once a second: emulated machines boot for minutes."""
_PROGRAMS = "/var/tmp"  # noqa: S108 - of the directory with copies of programs, which has a name of its own
_LIVES = ("pending", "running", "stopped")
"""States of instances that are not ended."""


class Reservations:
    """Clusters of one account, by `client`, botocore's of EC2. RunFailed has EC2's refusals."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def launch(self, shape: ClusterShape) -> str:
        """Makes the nodes of a shape, each on a host of its own at the first host's site; returns the cluster's
        name. Containers, or with a `nic` machines of the image `default` with the adapter that they have by default."""
        with _refusals():
            self._make_group()
            image = self._image("default" if shape.nic else "container")
            tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": shape.name}]}]
            placement = {"AvailabilityZone": shape.hosts[0][0], "GroupName": _NAME}
            made = self._client.run_instances(
                ImageId=image,
                InstanceType=self.instance_type(shape),
                MinCount=shape.nodes,
                MaxCount=shape.nodes,
                Placement=placement,
                TagSpecifications=tags,
            )["Instances"]
            self._await("instance_running", [one["InstanceId"] for one in made])
            return next(tag["Value"] for tag in made[0]["Tags"] if tag["Key"] == "wherry:cluster")

    def terminate(self, name: str = "*") -> None:
        """Ends the clusters of the shape of this name, with their jobs; of all shapes by default."""
        with _refusals():
            filters = [
                {"Name": "tag:Name", "Values": [name]},
                {"Name": "instance-state-name", "Values": list(_LIVES)},
            ]
            pages = self._client.get_paginator("describe_instances").paginate(Filters=filters)
            ids = [one["InstanceId"] for page in pages for each in page["Reservations"] for one in each["Instances"]]
            if ids:
                self._client.terminate_instances(InstanceIds=ids)
                self._await("instance_terminated", ids)

    def instance_type(self, shape: ClusterShape) -> str:
        """The smallest type with the CPUs and memory of a shape. RunFailed if there is none."""
        need = max(parse_size(shape.memory) >> 20, _LEAST_MEMORY)
        with _refusals():
            types = self._client.describe_instance_types()["InstanceTypes"]
        fit = [
            (one["MemoryInfo"]["SizeInMiB"], one["VCpuInfo"]["DefaultVCpus"], one["InstanceType"])
            for one in types
            if one["MemoryInfo"]["SizeInMiB"] >= need and one["VCpuInfo"]["DefaultVCpus"] >= shape.cpus
        ]
        if not fit:
            raise RunFailed(f"EC2 has no instance type with {shape.cpus:g} CPUs and {need} MiB")
        name: str = min(fit)[2]
        return name

    def _make_group(self) -> None:
        groups = self._client.describe_placement_groups()["PlacementGroups"]
        if _NAME not in {group["GroupName"] for group in groups}:
            self._client.create_placement_group(GroupName=_NAME, Strategy="spread")

    def _image(self, name: str) -> str:
        found = self._client.describe_images(Filters=[{"Name": "name", "Values": [name]}])["Images"]
        if not found:
            raise RunFailed(f"EC2 has no image {name}")
        id: str = found[0]["ImageId"]
        return id

    def _await(self, waiter: str, ids: Sequence[str]) -> None:
        config = {"Delay": 1, "MaxAttempts": _MOST_POLLS}
        self._client.get_waiter(waiter).wait(InstanceIds=list(ids), WaiterConfig=config)


@contextmanager
def _refusals() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise RunFailed(f"EC2: {error}") from None


class Ec2Testbed(Testbed):
    """Makes an account with an access key in the instance, and a listener at this machine's loopback address."""

    def __init__(self, out: Path) -> None:
        super().__init__(out)
        self._launched: dict[str, str] = {}
        """Name of a shape -> name of its cluster."""
        self._undo = ExitStack()
        self._reservations: Reservations | None = None
        self._owner: Owner | None = None
        self._programs: Path | None = None

    def ensure_cluster(self, cluster: ClusterShape) -> None:
        """Makes the cluster; a known good one is left alone, and after a failed run it is made again."""
        if cluster.name in self._launched.values():
            return
        if self._clusters.get(cluster.name) == cluster and cluster.name not in self._unchecked:
            return
        self.remove_cluster(cluster.name)
        self._clusters[cluster.name] = cluster
        self._unchecked.add(cluster.name)
        self._launched[cluster.name] = self._cloud().launch(cluster)
        self.await_operations()  # instances run before all of their cluster does
        self._unchecked.remove(cluster.name)

    def remove_cluster(self, name: str) -> None:
        """Terminates a cluster of the study with its jobs; a missing one is accepted."""
        if name in self._clusters:
            self._unchecked.add(name)
            self.await_operations()
            self._cloud().terminate(name)
            self._clusters.pop(name)
            self._launched.pop(name, None)
            self._unchecked.discard(name)

    def start_job(
        self,
        cluster: ClusterShape,
        argv: Sequence[str],
        ranks: int,
        directory: Path,
        mpi: str | None = None,
        env: Mapping[str, str] | None = None,
        site_collectives: bool = False,
        owner: Owner | None = None,
    ) -> RunningJob:
        """Starts an MPI program on a cluster as the account, which may read the program but not `directory`."""
        self.ensure_cluster(cluster)
        made = replace(cluster, name=self._launched[cluster.name])
        words = [self._readable(argv[0]), *argv[1:]]
        return super().start_job(
            made, words, ranks, directory, mpi, {**(env or {}), "HOME": "/"}, site_collectives, owner or self._owner
        )

    def close(self) -> None:
        """Terminates the clusters, then removes account, key and listener, also when a cluster stays."""
        try:
            if self._reservations:
                self._reservations.terminate()
                self._clusters.clear()
        finally:
            try:
                self._undo.close()
            finally:
                self._reservations = None
                super().close()

    def _cloud(self) -> Reservations:
        if self._reservations is None:
            self._reservations = Reservations(self._sign_in())
            self._reservations.terminate()  # clusters of a killed session
        return self._reservations

    def _sign_in(self) -> Any:
        """botocore's client for an access key of the study's account."""
        import botocore.session
        from botocore.config import Config

        from wherry.model.owner import Owner

        client = self.client
        listener = client.listener()
        if not listener["url"]:
            listener = client.listen({"address": "127.0.0.1", "port": _free_port()})
            self._undo.callback(client.listen, None)
        if client.allowed() == "off":
            client.allowed("nodes")
            self._undo.callback(client.allowed, "off")
        if _NAME not in {user["name"] for user in client.users()}:
            client.add_user(_NAME, "user", {"nodes": None, "cores": None, "memory": None})
        self._undo.callback(client.remove_user, _NAME)  # its keys end with it
        uid = int(client.user(_NAME)["uid"])
        self._owner = Owner(uid=uid, gid=uid, home="/", cwd="/")
        key = client.add_key(_NAME, 7, _NAME)
        return botocore.session.Session().create_client(
            "ec2",
            region_name=_REGION,
            endpoint_url=f"{str(listener['url']).rstrip('/')}/ec2",
            aws_access_key_id=key["key"]["id"],
            aws_secret_access_key=key["secret"],
            verify=listener["ca"] or True,
            config=Config(retries={"total_max_attempts": 1}, proxies={}),  # it is this machine
        )

    def _readable(self, program: str) -> str:
        """A copy of a program where every account may read it: containers of accounts hide the directories of users."""
        if self._programs is None:
            self._programs = Path(self._undo.enter_context(tempfile.TemporaryDirectory(dir=_PROGRAMS)))
            self._programs.chmod(0o755)
        copy = self._programs / Path(program).name
        if not copy.exists():
            shutil.copy(program, copy)
            copy.chmod(0o755)
        return str(copy)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
