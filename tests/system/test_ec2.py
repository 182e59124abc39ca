"""boto3 and aws-cli, unmodified, over TLS: a cluster is made as one reservation, waited for, runs a job, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import forked
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from realworld import SECONDS, WHERRY, Completed, RealInstance, real_instance, ring_program

from ports import reserved

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="clusters are made by root")
PASSWORD = "four words are long"
AWS = Path(sys.executable).parent / "aws"


@dataclass
class Cloud:
    """A daemon with its listener, and the environment that `wherry ec2-env` printed for a user who signed in."""

    root: RealInstance
    home: str
    environment: dict[str, str]

    def wherry(self, *words: str) -> Completed:
        """A command of the user."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
        own = {"XDG_CONFIG_HOME": self.home, "WHERRY_INSTANCE": "nowhere"}
        return forked.run(words, Path("/"), {**kept, **own}, SECONDS)

    def aws(self, *words: str) -> Any:
        """The JSON that a command of aws-cli prints; None for nothing."""
        done = self.told(*words)
        assert done.returncode == 0, (words, done.stderr)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def told(self, *words: str) -> Completed:
        """A command of aws-cli."""
        kept = {"PATH": os.environ["PATH"], "HOME": self.home, "AWS_EC2_METADATA_DISABLED": "true", "AWS_PAGER": ""}
        return subprocess.run(
            [sys.executable, str(AWS), "ec2", *words, "--output", "json"], env={**kept, **self.environment},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    def client(self) -> Any:
        """boto3's."""
        return boto3.session.Session().client(
            "ec2", endpoint_url=self.environment["AWS_ENDPOINT_URL_EC2"],
            region_name=self.environment["AWS_DEFAULT_REGION"],
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"], verify=self.environment["AWS_CA_BUNDLE"],
            config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with (
        reserved() as port,
        real_instance("tec2", below=Path("/var/tmp")) as root,
        tempfile.TemporaryDirectory() as home,
    ):
        root.json("daemon", "start")
        state = root.json("daemon", "listen", f"127.0.0.1:{port}")
        cloud = Cloud(root, home, {})
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHERRY_", "SUDO_"))}
        for words, more in (
            (("user", "add", "ann"), {"WHERRY_INSTANCE": root.instance.name}),
            (("login", state["url"], "--user", "ann", "--ca", state["ca"]), {"XDG_CONFIG_HOME": home}),
        ):
            done = subprocess.run(
                [str(WHERRY), *words], cwd="/", env={**kept, **more}, input=f"{PASSWORD}\n", capture_output=True,
                text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        root.json("user", "allow", "jobs")
        printed = cloud.wherry("ec2-env")
        assert printed.returncode == 0, printed.stderr
        shown = subprocess.run(
            ["bash", "-c", 'eval "$1" && env -0', "bash", printed.stdout], env={"PATH": os.environ["PATH"]},
            capture_output=True, text=True, timeout=SECONDS, check=True,
        )  # fmt: skip
        pairs = (line.partition("=") for line in shown.stdout.split("\0"))
        cloud.environment = {name: value for name, _, value in pairs if name.startswith("AWS_")}
        yield cloud


def cluster_of(instance: dict[str, Any]) -> str:
    return next(tag["Value"] for tag in instance["Tags"] if tag["Key"] == "wherry:cluster")


def test_aws_cli_launches_waits_runs_and_terminates(cloud: Cloud) -> None:
    images = cloud.aws("describe-images", "--owners", "self", "--filters", "Name=name,Values=container")["Images"]
    zones = cloud.aws("describe-availability-zones")["AvailabilityZones"]
    assert [zone["ZoneName"] for zone in zones] == ["a", "b"]
    made = cloud.aws(
        "run-instances", "--image-id", images[0]["ImageId"], "--instance-type", "w1.nano", "--count", "2",
        "--tag-specifications", "ResourceType=instance,Tags=[{Key=Name,Value=lu}]",
        "--user-data", "#!/bin/sh\nhostname >/tmp/told\n",
    )  # fmt: skip
    ids = [one["InstanceId"] for one in made["Instances"]]
    assert len(ids) == 2
    cloud.aws("wait", "instance-running", "--instance-ids", *ids)
    cloud.aws("wait", "instance-status-ok", "--instance-ids", *ids)
    (found,) = cloud.aws("describe-instances", "--filters", "Name=tag:Name,Values=lu")["Reservations"]
    assert {one["State"]["Name"] for one in found["Instances"]} == {"running"}
    cluster = cluster_of(found["Instances"][0])
    deadline = time.monotonic() + SECONDS
    while (told := cloud.wherry("exec", f"{cluster}-1", "--", "cat", "/tmp/told")).returncode:
        assert time.monotonic() < deadline, told.stderr
        time.sleep(0.5)
    assert told.stdout.strip() == f"{cluster}-1"
    cloud.aws("reboot-instances", "--instance-ids", ids[1])
    cloud.aws("wait", "instance-running", "--instance-ids", *ids)
    assert cloud.wherry("exec", f"{cluster}-1", "--", "cat", "/tmp/told").returncode == 1, "its own files are gone"
    assert cloud.wherry("exec", f"{cluster}-0", "--", "cat", "/tmp/told").stdout.strip() == f"{cluster}-0"
    program = ring_program("openmpi", cloud.root.directory)
    ran = cloud.wherry("run", cluster, "-n", "2", "--", program, "--seconds", "2", "--memory", "2", "--size", "4096")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["errors"] == 0
    table = subprocess.run(
        [sys.executable, str(AWS), "ec2", "describe-instances", "--output", "table"],
        env={"PATH": os.environ["PATH"], "HOME": cloud.home, **cloud.environment}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert table.returncode == 0 and ids[0] in table.stdout, table.stderr
    cloud.aws("terminate-instances", "--instance-ids", *ids)
    cloud.aws("wait", "instance-terminated", "--instance-ids", *ids)
    listed = cloud.wherry("status", "-o", "json")
    assert json.loads(listed.stdout)["clusters"] == []


def test_boto3_launches_waits_and_terminates(cloud: Cloud) -> None:
    client = cloud.client()
    (image,) = client.describe_images(Filters=[{"Name": "name", "Values": ["container"]}])["Images"]
    client.create_placement_group(GroupName="near", Strategy="cluster")
    made = client.run_instances(
        ImageId=image["ImageId"], InstanceType="w1.nano", MinCount=1, MaxCount=2, Placement={"GroupName": "near"}
    )
    ids = [one["InstanceId"] for one in made["Instances"]]
    client.get_waiter("instance_running").wait(InstanceIds=ids, WaiterConfig={"Delay": 1, "MaxAttempts": SECONDS})
    (found,) = client.describe_instances(InstanceIds=ids)["Reservations"]
    node = f"{cluster_of(found['Instances'][0])}-0"
    done = cloud.wherry("exec", node, "--", "/bin/hostname")
    assert (done.returncode, done.stdout.strip()) == (0, node), done.stderr
    begun = cloud.wherry("exec", node, "--", "/bin/sh", "-c", "sleep 1000 & echo $!")
    assert begun.returncode == 0, begun.stderr
    restarted = cloud.wherry("node", "restart", node)
    assert (restarted.returncode, restarted.stdout) == (0, f"{node}: started anew.\n"), restarted.stderr
    assert cloud.wherry("exec", node, "--", "kill", "-0", begun.stdout.strip()).returncode != 0, "its programs ended"
    client.terminate_instances(InstanceIds=ids)
    client.get_waiter("instance_terminated").wait(InstanceIds=ids, WaiterConfig={"Delay": 1, "MaxAttempts": SECONDS})
    client.delete_placement_group(GroupName="near")
    made = client.create_key_pair(KeyName="near", KeyType="ed25519")
    assert "PRIVATE KEY" in made["KeyMaterial"]


def test_refusals_over_tls(cloud: Cloud) -> None:
    done = cloud.told("describe-instances", "--instance-ids", "i-00000000000000000")
    assert done.returncode != 0 and "InvalidInstanceID.NotFound" in done.stderr
    done = cloud.told("describe-instances", "--filters", "Name=none,Values=x")
    assert done.returncode != 0 and "InvalidParameterValue" in done.stderr
    done = cloud.told("describe-regions", "--region", "us-east-1")
    assert done.returncode != 0 and "AuthFailure" in done.stderr
    with pytest.raises(ClientError, match="UnsupportedOperation"):
        cloud.client().run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, UserData="#cloud-config")


def test_the_database_outlives_the_daemon_and_old_requests_do_not(cloud: Cloud) -> None:
    """A key works after a restart; a launch that is repeated by its token then is the same one."""
    client = cloud.client()
    (image,) = client.describe_images(Filters=[{"Name": "name", "Values": ["container"]}])["Images"]
    words = {"ImageId": image["ImageId"], "InstanceType": "w1.nano", "MinCount": 1, "MaxCount": 1, "ClientToken": "t"}
    made = client.run_instances(**words)
    ids = [one["InstanceId"] for one in made["Instances"]]
    client.get_waiter("instance_running").wait(InstanceIds=ids, WaiterConfig={"Delay": 1, "MaxAttempts": SECONDS})
    cloud.root.json("daemon", "stop")
    cloud.root.json("daemon", "start")
    again = cloud.client().run_instances(**words)
    assert again["ReservationId"] == made["ReservationId"]
    cloud.client().terminate_instances(InstanceIds=ids)
    cloud.client().get_waiter("instance_terminated").wait(
        InstanceIds=ids, WaiterConfig={"Delay": 1, "MaxAttempts": SECONDS}
    )


def test_keys_by_command(cloud: Cloud) -> None:
    made = json.loads(cloud.wherry("key", "create", "spare", "-o", "json").stdout)
    id, secret = made["key"]["id"], made["secret"]
    kept, cloud.environment = cloud.environment, {
        **cloud.environment, "AWS_ACCESS_KEY_ID": id, "AWS_SECRET_ACCESS_KEY": secret,
    }  # fmt: skip
    try:
        assert cloud.aws("describe-regions")["Regions"][0]["RegionName"] == "local"
        listed = cloud.wherry("key", "list")
        assert id in listed.stdout and "spare" in listed.stdout and secret not in listed.stdout
        revoked = cloud.wherry("key", "revoke", id)
        assert revoked.returncode == 0 and "ended" in revoked.stdout
        done = cloud.told("describe-regions")
        assert done.returncode != 0 and "AuthFailure" in done.stderr
    finally:
        cloud.environment = kept
    assert cloud.wherry("key", "revoke", id).returncode == 3
    by_root = cloud.root("ec2-env", "--user", "ann")
    assert by_root.returncode == 0 and "export AWS_ENDPOINT_URL_EC2=https://" in by_root.stdout
    assert cloud.root("ec2-env").returncode == 2, "root has no keys of its own"
    log = (cloud.root.instance.state / "log").read_text()
    assert secret not in log and kept["AWS_SECRET_ACCESS_KEY"] not in log
