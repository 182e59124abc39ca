"""Every action of the EC2 Query API, asked by botocore's own client."""

from __future__ import annotations

from typing import Any

import pytest
from accounts_world import Accounts
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from ec2_world import Ec2World, filter_of, ids
from rest_service import CLUSTER, Service

import waiting
from wherry.model.accounts import Quota
from wherry.model.ec2 import Reservation, Tags
from wherry.model.job_request import ExecRequest
from wherry.model.records import NodeState, Operation
from wherry.service.ec2 import reservations
from wherry.service.ec2.actions import ACTIONS
from wherry.service.exec_commands import ExecCommands


@pytest.fixture
def world(service: Service) -> Ec2World:
    """Two users who may start clusters."""
    accounts = Accounts(service)
    accounts.add("ann")
    accounts.add("bob")
    accounts.allow()
    return Ec2World(accounts)


def cluster_of(reservation: dict[str, Any]) -> str:
    return next(t["Value"] for t in reservation["Instances"][0]["Tags"] if t["Key"] == "wherry:cluster")


def test_a_reservation_is_a_cluster(world: Ec2World) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "<b>lu</b> & co"}]}]
    made = world.run(count=3, Placement={"AvailabilityZone": "a"}, TagSpecifications=tags)
    store = world.accounts.service.context.store
    (cluster,) = store.clusters()
    assert cluster.name == cluster_of(made) == f"ec2-{made['ReservationId'][2:14]}"
    assert cluster.owner_uid == int(made["OwnerId"]) and cluster.spec.sites == ("a",)
    nodes = store.nodes(cluster.name)
    assert [(node.cpus, node.memory) for node in nodes] == [(0.25, 128 * 2**20)] * 3
    for index, (one, node) in enumerate(zip(made["Instances"], nodes, strict=True)):
        assert one["AmiLaunchIndex"] == index and one["PrivateIpAddress"] == node.address
        assert one["Placement"]["AvailabilityZone"] == "a" and one["InstanceType"] == "w1.nano"
        assert {"Key": "Name", "Value": "<b>lu</b> & co"} in one["Tags"]
        assert {"Key": "wherry:node", "Value": node.name} in one["Tags"]
    assert len(set(ids(made))) == 3


def test_waiters_paginators_and_filters(world: Ec2World) -> None:
    client = world.client("ann")
    one, two = world.run(count=3), world.run(count=4, InstanceType="w1.micro")
    client.get_waiter("instance_running").wait(InstanceIds=ids(one))
    client.get_waiter("instance_status_ok").wait(InstanceIds=ids(one))
    pages = list(client.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5}))
    assert len(pages) == 2
    seen = [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]
    assert seen == [*ids(one), *ids(two)]
    first = one["Instances"][0]
    for name, value, count in (
        ("instance-id", first["InstanceId"], 1), ("instance-state-name", "run*", 7), ("instance-state-code", "16", 7),
        ("image-id", first["ImageId"], 7), ("instance-type", "w1.micro", 4),
        ("reservation-id", one["ReservationId"], 3),
        ("private-ip-address", first["PrivateIpAddress"], 1), ("owner-id", one["OwnerId"], 7),
        ("client-token", first["ClientToken"], 3), ("tag:wherry:cluster", cluster_of(two), 4), ("tag-key", "Name", 0),
        ("vpc-id", first["VpcId"], 7), ("subnet-id", "subnet-none", 0), ("key-name", "none", 0),
        ("placement-group-name", "none", 0), ("instance-state-name", "stopped", 0),
    ):  # fmt: skip
        found = client.describe_instances(Filters=filter_of(name, value))["Reservations"]
        assert sum(len(r["Instances"]) for r in found) == count, (name, value)
    zones = filter_of("availability-zone", "a", "b")
    assert len(client.describe_instance_status(Filters=zones)["InstanceStatuses"]) == 7


def test_clusters_of_other_interfaces_are_reservations_too(world: Ec2World) -> None:
    spec = {**CLUSTER, "nodes": 2, "cpus": 0.3, "memory": "64MiB"}
    world.accounts.done("ann", "POST", "/v1/clusters", {"spec": spec})
    (found,) = world.client("ann").describe_instances()["Reservations"]
    assert cluster_of(found) == "hello" and {one["InstanceType"] for one in found["Instances"]} == {"w1.other"}
    assert world.client("ann").describe_instances()["Reservations"] == [found], "ids stay"
    client = world.client("ann")
    client.create_tags(Resources=ids(found), Tags=[{"Key": "k", "Value": "v"}])
    client.terminate_instances(InstanceIds=ids(found))
    gone = world.until("ann", found["ReservationId"], "terminated")
    assert ids(gone) == ids(found) and not world.accounts.service.context.store.clusters()
    world.accounts.done("ann", "POST", "/v1/clusters", {"spec": spec})
    assert len(client.describe_instances()["Reservations"]) == 2, "the name is of another cluster now"


def test_tags_of_a_cluster_of_another_interface_end_with_it(world: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, client, store = {**CLUSTER, "nodes": 1}, world.client("ann"), world.accounts.service.context.store
    world.accounts.done("ann", "POST", "/v1/clusters", {"spec": spec})
    (first,) = client.describe_instances()["Reservations"]
    client.create_tags(Resources=ids(first), Tags=[{"Key": "k", "Value": "v"}])
    assert {"Key": "k", "Value": "v"} in client.describe_instances()["Reservations"][0]["Instances"][0]["Tags"]
    world.accounts.done("ann", "DELETE", f"/v1/clusters/{CLUSTER['name']}")
    world.accounts.done("ann", "POST", "/v1/clusters", {"spec": spec})
    gone, second = client.describe_instances()["Reservations"]
    assert ids(gone) == ids(first) and gone["Instances"][0]["State"]["Name"] == "terminated"
    assert {"Key": "k", "Value": "v"} not in second["Instances"][0]["Tags"]
    monkeypatch.setattr(reservations, "KEPT_SECONDS", -1.0)
    assert client.describe_instances()["Reservations"] == [second] and not store.ec2.all(Tags)


def test_a_launch_that_is_terminated_at_once(world: Ec2World) -> None:
    words = {"ImageId": world.image(), "InstanceType": "w1.nano", "MinCount": 2, "MaxCount": 2}
    made = world.client("ann").run_instances(**words)
    world.client("ann").terminate_instances(InstanceIds=ids(made))
    gone = world.until("ann", made["ReservationId"], "terminated")
    assert gone["Instances"][0]["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert not world.accounts.service.context.store.nodes()


def test_termination_ends_jobs_and_stays_to_be_seen(world: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
    client, store = world.client("ann"), world.accounts.service.context.store
    made = world.run(TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "k", "Value": "v"}]}])
    world.accounts.done("ann", "POST", "/v1/jobs", {"cluster": cluster_of(made), "argv": ["sleep"], "ranks": 1})
    changes = client.terminate_instances(InstanceIds=ids(made))["TerminatingInstances"]
    assert {(c["PreviousState"]["Name"], c["CurrentState"]["Name"]) for c in changes} == {("running", "shutting-down")}
    gone = world.until("ann", made["ReservationId"], "terminated")
    client.get_waiter("instance_terminated").wait(InstanceIds=ids(made))
    assert gone["Instances"][0]["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert not store.clusters() and not store.nodes()
    world.another_key()
    again = world.client("ann").terminate_instances(InstanceIds=ids(made))["TerminatingInstances"]
    assert {c["CurrentState"]["Name"] for c in again} == {"terminated"}
    monkeypatch.setattr(reservations, "KEPT_SECONDS", -1.0)
    assert client.describe_instances()["Reservations"] == []
    assert not store.ec2.all(Reservation) and not store.ec2.all(Tags)


def test_what_ended_by_another_interface_is_terminated(world: Ec2World) -> None:
    made = world.run()
    world.accounts.done("ann", "DELETE", f"/v1/clusters/{cluster_of(made)}")
    world.until("ann", made["ReservationId"], "terminated")


def test_a_part_of_a_reservation_stays(world: Ec2World) -> None:
    made = world.run()
    assert world.refused("ann", "terminate_instances", InstanceIds=ids(made)[:1]) == "UnsupportedOperation"
    world.until("ann", made["ReservationId"], "running")


def test_a_client_token_begins_one_cluster(world: Ec2World) -> None:
    client, image = world.client("ann"), world.image()
    words = {"ImageId": image, "InstanceType": "w1.nano", "MinCount": 1, "MaxCount": 2, "ClientToken": "once"}
    one, two = client.run_instances(**words), client.run_instances(**words)
    assert one["ReservationId"] == two["ReservationId"] and ids(one) == ids(two)
    assert len(world.accounts.service.context.store.ec2.all(Reservation)) == 1
    assert world.refused("ann", "run_instances", **{**words, "MaxCount": 1}) == "IdempotentParameterMismatch"
    other = world.client("bob").run_instances(**words)
    assert other["ReservationId"] != one["ReservationId"], "a token is an account's own"
    for reservation, who in ((one, "ann"), (other, "bob")):
        world.until(who, reservation["ReservationId"], "running")


def test_a_launch_that_the_daemon_did_not_begin_is_begun_by_its_repetition(world: Ec2World) -> None:
    words = {"ImageId": world.image(), "InstanceType": "w1.nano", "MinCount": 1, "MaxCount": 1, "ClientToken": "once"}
    made = world.client("ann").run_instances(**words)
    world.until("ann", made["ReservationId"], "running")
    store = world.accounts.service.context.store
    (row,) = store.ec2.all(Reservation)
    world.accounts.done("ann", "DELETE", f"/v1/clusters/{row.cluster}")
    store.ec2.put(row.model_copy(update={"operation": ""}))
    world.another_key()
    again = world.client("ann").run_instances(**words)
    assert again["ReservationId"] != row.id
    world.until("ann", again["ReservationId"], "running")


def test_as_many_as_there_is_room_for(world: Ec2World) -> None:
    words = {"ImageId": world.image(), "InstanceType": "w1.small", "MaxCount": 40}
    assert world.refused("ann", "run_instances", MinCount=40, **words) == "InsufficientInstanceCapacity"
    made = world.client("ann").run_instances(MinCount=1, **words)
    assert len(made["Instances"]) == 6, "three hosts of two cores"
    world.until("ann", made["ReservationId"], "running")


def test_as_many_as_the_quota_has(world: Ec2World) -> None:
    world.accounts.add("cat", quota=Quota(nodes=3, cores=None, memory=None))
    words = {"ImageId": world.image("cat"), "InstanceType": "w1.nano", "MaxCount": 9}
    assert world.refused("cat", "run_instances", MinCount=4, **words) == "InstanceLimitExceeded"
    assert not world.accounts.service.context.store.ec2.all(Reservation)
    made = world.client("cat").run_instances(MinCount=2, **words)
    assert len(made["Instances"]) == 3
    attributes = world.client("cat").describe_account_attributes(AttributeNames=["max-instances"])["AccountAttributes"]
    assert attributes[0]["AttributeValues"] == [{"AttributeValue": "3"}]


def test_placement_groups(world: Ec2World) -> None:
    client, store = world.client("ann"), world.accounts.service.context.store
    for name, strategy, spread in (
        ("near", "cluster", "pack"),
        ("far", "spread", "host"),
        ("part", "partition", "site"),
    ):
        made = client.create_placement_group(GroupName=name, Strategy=strategy)["PlacementGroup"]
        assert (made["GroupName"], made["Strategy"], made["State"]) == (name, strategy, "available")
        run = world.run(Placement={"GroupName": name})
        cluster = store.cluster(cluster_of(run))
        assert cluster and cluster.spec.placement.spread == spread
        assert cluster.spec.placement.max_per_host == (1 if strategy == "spread" else None)
        assert {one["Placement"]["GroupName"] for one in run["Instances"]} == {name}
    assert [g["GroupName"] for g in client.describe_placement_groups()["PlacementGroups"]] == ["far", "near", "part"]
    assert [g["GroupName"] for g in client.describe_placement_groups(GroupNames=["far"])["PlacementGroups"]] == ["far"]
    assert world.refused("ann", "create_placement_group", GroupName="far") == "InvalidPlacementGroup.Duplicate"
    assert world.refused("ann", "delete_placement_group", GroupName="far") == "InvalidPlacementGroup.InUse"
    assert world.refused("bob", "delete_placement_group", GroupName="far") == "InvalidPlacementGroup.Unknown"
    client.create_placement_group(GroupName="free")
    client.delete_placement_group(GroupName="free")
    code = world.refused("ann", "describe_placement_groups", GroupNames=["free"])
    assert code == "InvalidPlacementGroup.Unknown"


def test_tags(world: Ec2World) -> None:
    client = world.client("ann")
    made = world.run()
    first, second = ids(made)
    client.create_tags(Resources=[first, second], Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}])
    client.create_tags(Resources=[first], Tags=[{"Key": "a", "Value": "2"}])

    def told(id: str) -> dict[str, str]:
        found = client.describe_tags(Filters=filter_of("resource-id", id))["Tags"]
        assert {one["ResourceType"] for one in found} == {"instance"}
        return {one["Key"]: one.get("Value", "") for one in found if not one["Key"].startswith("wherry:")}

    assert told(first) == {"a": "2", "b": ""} and told(second) == {"a": "1", "b": ""}
    assert [t["ResourceId"] for t in client.describe_tags(Filters=filter_of("tag:a", "1"))["Tags"]] == [second]
    client.delete_tags(Resources=[first], Tags=[{"Key": "a", "Value": "1"}, {"Key": "b"}])
    assert told(first) == {"a": "2"}, "a value that is given must be the tag's"
    client.delete_tags(Resources=[second])
    assert told(second) == {}
    too_many = [{"Key": f"k{n}", "Value": ""} for n in range(51)]
    assert world.refused("ann", "create_tags", Resources=[first], Tags=too_many) == "TagLimitExceeded"
    for key in ("aws:x", "wherry:node", "", "k" * 129):
        code = world.refused("ann", "create_tags", Resources=[first], Tags=[{"Key": key, "Value": ""}])
        assert code == "InvalidParameterValue", key
    one = [{"Key": "k", "Value": ""}]
    assert world.refused("bob", "create_tags", Resources=[first], Tags=one) == "InvalidInstanceID.NotFound"
    assert world.refused("ann", "create_tags", Resources=["vol-1"], Tags=one) == "InvalidID"
    assert told(first) == {"a": "2"}


def test_key_pairs(world: Ec2World) -> None:
    client = world.client("ann")
    small = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    large = rsa.generate_private_key(65537, 2048).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    one = client.import_key_pair(
        KeyName="small", PublicKeyMaterial=small + b" ann@home\n",
        TagSpecifications=[{"ResourceType": "key-pair", "Tags": [{"Key": "k", "Value": "v"}]}],
    )  # fmt: skip
    two = client.import_key_pair(KeyName="large", PublicKeyMaterial=large)
    assert one["KeyPairId"].startswith("key-") and len(two["KeyFingerprint"].split(":")) == 16
    pairs = client.describe_key_pairs(IncludePublicKey=True)["KeyPairs"]
    assert [(p["KeyName"], p["KeyType"], p["PublicKey"].encode()) for p in pairs] == [
        ("large", "rsa", large), ("small", "ed25519", small),
    ]  # fmt: skip
    (tagged,) = client.describe_key_pairs(Filters=filter_of("tag:k", "v"))["KeyPairs"]
    assert tagged["KeyName"] == "small" and "PublicKey" not in tagged
    made = world.run(KeyName="small")
    assert {one["KeyName"] for one in made["Instances"]} == {"small"}
    words = {"KeyName": "small", "PublicKeyMaterial": small}
    assert world.refused("ann", "import_key_pair", **words) == "InvalidKeyPair.Duplicate"
    for wrong in (b"", b"ssh-rsa AAAA", b"-----BEGIN RSA PRIVATE KEY-----", small[:-9], b"x" * 20000):
        words = {"KeyName": "wrong", "PublicKeyMaterial": wrong}
        assert world.refused("ann", "import_key_pair", **words) == "InvalidKey.Format", wrong[:20]
    assert world.client("bob").describe_key_pairs()["KeyPairs"] == []
    assert world.refused("bob", "describe_key_pairs", KeyNames=["small"]) == "InvalidKeyPair.NotFound"
    client.delete_key_pair(KeyName="small")
    client.delete_key_pair(KeyPairId=two["KeyPairId"])
    client.delete_key_pair(KeyName="small")
    assert client.describe_key_pairs()["KeyPairs"] == []


def test_a_key_pair_is_made(world: Ec2World) -> None:
    client = world.client("ann")
    for kind, head in (("rsa", "-----BEGIN RSA PRIVATE KEY-----"), ("ed25519", "-----BEGIN OPENSSH PRIVATE KEY-----")):
        made = client.create_key_pair(KeyName=kind, KeyType=kind)
        assert made["KeyMaterial"].startswith(head) and made["KeyPairId"].startswith("key-")
        key = load_private(made["KeyMaterial"])
        (kept,) = client.describe_key_pairs(KeyNames=[kind], IncludePublicKey=True)["KeyPairs"]
        assert kept["PublicKey"].encode() == key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        assert (kept["KeyType"], kept["KeyFingerprint"]) == (kind, made["KeyFingerprint"])
    assert client.create_key_pair(KeyName="usual")["KeyMaterial"].startswith("-----BEGIN RSA")
    for words, code in (
        ({"KeyName": "rsa"}, "InvalidKeyPair.Duplicate"), ({"KeyName": "x", "KeyType": "dsa"}, "InvalidParameterValue"),
        ({"KeyName": "x", "KeyFormat": "ppk"}, "UnsupportedOperation"), ({"KeyName": ""}, "InvalidParameterValue"),
        ({"KeyName": "x", "DryRun": True}, "DryRunOperation"),
    ):  # fmt: skip
        assert world.refused("ann", "create_key_pair", **words) == code, words
    assert len(client.describe_key_pairs()["KeyPairs"]) == 3


def load_private(text: str) -> Any:
    load = load_ssh_private_key if "OPENSSH" in text else load_pem_private_key
    return load(text.encode(), None)


def test_what_there_is(world: Ec2World) -> None:
    client = world.client("ann")
    assert [r["RegionName"] for r in client.describe_regions()["Regions"]] == ["local"]
    zones = client.describe_availability_zones()["AvailabilityZones"]
    assert [(z["ZoneName"], z["State"], z["RegionName"]) for z in zones] == [
        ("a", "available", "local"), ("b", "available", "local"),
    ]  # fmt: skip
    assert len(client.describe_availability_zones(ZoneNames=["b"])["AvailabilityZones"]) == 1
    types = {t["InstanceType"]: t for t in client.describe_instance_types()["InstanceTypes"]}
    assert types["w1.large"]["VCpuInfo"]["DefaultVCpus"] == 2 and types["w1.nano"]["MemoryInfo"]["SizeInMiB"] == 128
    pages = client.get_paginator("describe_instance_types").paginate(PaginationConfig={"PageSize": 5})
    assert [len(page["InstanceTypes"]) for page in pages] == [5, 3]
    (image,) = client.describe_images(Owners=["self"], Filters=filter_of("name", "container"))["Images"]
    assert client.describe_images(ImageIds=[image["ImageId"]])["Images"] == [image] and image["State"] == "available"
    assert client.describe_images(Owners=["099720109477"])["Images"] == []
    (vpc,) = client.describe_vpcs(Filters=filter_of("is-default", "true"))["Vpcs"]
    subnets = client.describe_subnets(Filters=filter_of("vpc-id", vpc["VpcId"]))["Subnets"]
    assert [s["AvailabilityZone"] for s in subnets] == ["a", "b"]
    (group,) = client.describe_security_groups(Filters=filter_of("group-name", "default"))["SecurityGroups"]
    made = world.run(SubnetId=subnets[1]["SubnetId"], SecurityGroupIds=[group["GroupId"]])
    assert {one["SubnetId"] for one in made["Instances"]} == {subnets[1]["SubnetId"]}
    attributes = client.describe_account_attributes()["AccountAttributes"]
    assert {a["AttributeName"] for a in attributes} == {"supported-platforms", "default-vpc", "max-instances"}


def test_instances_are_rebooted(world: Ec2World) -> None:
    client, store = world.client("ann"), world.accounts.service.context.store
    one, two = world.run(count=3), world.run(count=1)
    world.accounts.done("ann", "POST", "/v1/jobs", {"cluster": cluster_of(one), "argv": ["sleep"], "ranks": 1})
    client.reboot_instances(InstanceIds=[*ids(one)[:2], *ids(two)])
    assert ids(world.until("ann", one["ReservationId"], "running")) == ids(one)
    world.until("ann", two["ReservationId"], "running")
    told = {event.target: event.text for event in store.events() if event.kind == "cluster.restart"}
    name = cluster_of(one)
    assert told == {name: f"restarted: {name}-0, {name}-1", cluster_of(two): f"restarted: {cluster_of(two)}-0"}
    assert {node for _, node in world.accounts.service.jobs.lost} == {f"{name}-0", f"{name}-1"}
    assert world.refused("bob", "reboot_instances", InstanceIds=ids(one)) == "InvalidInstanceID.NotFound"
    assert world.refused("ann", "reboot_instances", InstanceIds=[]) == "MissingParameter"
    assert world.refused("ann", "reboot_instances", InstanceIds=ids(one), DryRun=True) == "DryRunOperation"
    client.terminate_instances(InstanceIds=ids(two))
    world.until("ann", two["ReservationId"], "terminated")
    assert world.refused("ann", "reboot_instances", InstanceIds=ids(two)) == "IncorrectInstanceState"


def test_a_lost_node_is_stopped_and_can_be_started(world: Ec2World) -> None:
    client, store = world.client("ann"), world.accounts.service.context.store
    made = world.run()
    node = store.node(f"{cluster_of(made)}-1")
    assert node
    store.put_node(node.model_copy(update={"state": NodeState.LOST}))
    (stopped,) = client.describe_instances(Filters=filter_of("instance-state-name", "stopped"))["Reservations"]
    assert ids(stopped) == ids(made)[1:] and "lost" in stopped["Instances"][0]["StateReason"]["Message"]
    changes = client.start_instances(InstanceIds=ids(made))["StartingInstances"]
    assert [c["CurrentState"]["Name"] for c in changes] == ["running", "pending"]
    world.until("ann", made["ReservationId"], "running")
    assert world.refused("bob", "start_instances", InstanceIds=ids(made)) == "InvalidInstanceID.NotFound"


def test_what_terraform_and_ansible_ask_of_an_instance(world: Ec2World) -> None:
    client = world.client("ann")
    (subnet, *_), (group,) = client.describe_subnets()["Subnets"], client.describe_security_groups()["SecurityGroups"]
    tags = [{"ResourceType": kind, "Tags": [{"Key": "k", "Value": "v"}]} for kind in ("instance", "volume")]
    interface = {"DeviceIndex": 0, "SubnetId": subnet["SubnetId"], "Groups": [group["GroupId"]]}
    made = world.run(count=1, TagSpecifications=tags, NetworkInterfaces=[interface])
    (one,) = made["Instances"]
    assert one["SubnetId"] == subnet["SubnetId"] and {"Key": "k", "Value": "v"} in one["Tags"]

    def told(attribute: str) -> Any:
        found = client.describe_instance_attribute(InstanceId=one["InstanceId"], Attribute=attribute)
        return {name: value for name, value in found.items() if name not in ("ResponseMetadata", "InstanceId")}

    assert told("disableApiTermination") == {"DisableApiTermination": {"Value": False}}
    assert told("instanceType") == {"InstanceType": {"Value": "w1.nano"}}
    assert told("userData") == {"UserData": {}} and told("groupSet")["Groups"][0]["GroupId"] == group["GroupId"]
    words = {"InstanceId": one["InstanceId"], "Attribute": "kernel"}
    assert world.refused("ann", "describe_instance_attribute", **words) == "InvalidParameterValue"
    assert world.refused("bob", "describe_instance_attribute", **words) == "InvalidInstanceID.NotFound"


def test_nodes_cannot_be_stopped_and_containers_have_no_console(world: Ec2World) -> None:
    made = world.run()
    assert world.refused("ann", "stop_instances", InstanceIds=ids(made)) == "UnsupportedOperation"
    assert world.refused("bob", "stop_instances", InstanceIds=ids(made)) == "InvalidInstanceID.NotFound"
    assert world.refused("ann", "get_console_output", InstanceId=ids(made)[0]) == "UnsupportedOperation"
    world.until("ann", made["ReservationId"], "running")


def test_every_action_is_asked_here(world: Ec2World) -> None:
    """Of the list of actions none is forgotten by this file."""
    with open(__file__) as opened:
        text = opened.read()
    for action in ACTIONS:
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in action).lstrip("_")
        assert name in text or (action == "RunInstances" and "world.run(" in text), action


def test_an_idle_daemon_reads_no_model() -> None:
    """The model takes 40 MiB, so importing the application must not read it."""
    import subprocess
    import sys

    code = "import sys, wherry.service.rest.app; sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_user_data_runs_on_each_node_once_the_cluster_is_made(world: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ExecRequest] = []
    context = world.accounts.service.context

    def start(_self: ExecCommands, request: ExecRequest) -> Operation:
        asked.append(request)
        assert context.store.node(request.node).state is NodeState.RUNNING  # type: ignore[union-attr]
        return context.operations.start("exec", request.node, lambda task: {"job": {"id": request.node}})

    monkeypatch.setattr(ExecCommands, "start", start)
    script = "#!/bin/sh\necho <b>\n"
    made = world.run(UserData=script)
    cluster, uid = cluster_of(made), int(made["OwnerId"])
    (begun,) = [one for one in context.operations.all() if one.kind == "user data"]
    found = context.operations.wait(begun.id, waiting.bound())
    assert (found.state, found.target, found.uid) == ("done", cluster, uid), found.error
    assert found.result and len(found.result["jobs"]) == 2  # type: ignore[arg-type]
    assert [(one.node, one.argv, one.owner.uid) for one in asked] == [
        (f"{cluster}-{index}", ("/bin/sh", "-c", script), uid) for index in (0, 1)
    ]
