"""Refusals of the EC2 Query API: the right error, and nothing is changed."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlencode

import pytest
from accounts_world import Accounts
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from ec2_world import ROOT, URL, Ec2World, code_of, filter_of, ids
from rest_service import Service

from wherry.base.errors import Failed, Refused
from wherry.model.accounts import Allowed, Role
from wherry.model.ec2 import Kept, KeyPair, PlacementGroup, Reservation, Tags
from wherry.service.access_keys import AccessKeyCommands
from wherry.service.audit import Audit
from wherry.service.ec2 import replays
from wherry.service.ec2.actions import ACTIONS
from wherry.service.ec2.endpoint import Ec2Endpoint
from wherry.service.ec2.errors import Ec2Error
from wherry.service.rest.app import make_app
from wherry.service.rest.authorization import Access


@pytest.fixture
def world(service: Service) -> Ec2World:
    """Two users, a viewer and an admin."""
    accounts = Accounts(service)
    for name, role in (("ann", Role.USER), ("bob", Role.USER), ("vic", Role.VIEWER), ("eve", Role.ADMIN)):
        accounts.add(name, role)
    accounts.allow()
    return Ec2World(accounts)


def signed(world: Ec2World, who: str, **form: str) -> tuple[dict[str, str], bytes]:
    """A request that is signed now."""
    body = urlencode({"Version": "2016-11-15", **form}).encode()
    request = AWSRequest("POST", URL, headers={"Content-Type": "application/x-www-form-urlencoded"}, data=body)
    SigV4Auth(Credentials(*world.key(who)), "ec2", "local").add_auth(request)
    return dict(request.headers.items()), body


def code_in(text: str) -> str:
    return text.partition("<Code>")[2].partition("</Code>")[0]


def everything(world: Ec2World) -> object:
    store = world.accounts.service.context.store
    kinds: tuple[type[Kept], ...] = (Reservation, KeyPair, PlacementGroup, Tags)
    return store.clusters(), store.nodes(), [store.ec2.all(kind) for kind in kinds]


def test_a_replay_changes_nothing_again(world: Ec2World) -> None:
    headers, body = signed(world, "ann", Action="CreatePlacementGroup", GroupName="g")
    first, second = world.post(headers, body), world.post(headers, body)
    assert first.status_code == second.status_code == 200 and first.content == second.content
    world.client("ann").delete_placement_group(GroupName="g")
    assert world.post(headers, body).content == first.content
    assert world.client("ann").describe_placement_groups()["PlacementGroups"] == []
    asked = signed(world, "ann", Action="DescribePlacementGroups")
    assert b"<item>" not in world.post(*asked).content
    world.client("ann").create_placement_group(GroupName="h")
    assert b"<item>" in world.post(*asked).content, "requests that read are answered anew"


def test_a_private_key_is_told_once(world: Ec2World) -> None:
    request = signed(world, "ann", Action="CreateKeyPair", KeyName="k")
    assert "PRIVATE KEY" in world.post(*request).text
    assert code_in(world.post(*request).text) == "RequestExpired"
    store = world.accounts.service.context.store
    stored = b"".join(path.read_bytes() for path in world.accounts.service.context.instance.state.glob("wherry.db*"))
    assert b"PRIVATE KEY" not in stored and len(store.ec2.all(KeyPair)) == 1


def test_a_replay_while_the_first_is_under_way(world: Ec2World) -> None:
    request = signed(
        world, "ann", Action="RunInstances", ImageId=world.image(), InstanceType="w1.nano", MinCount="1", MaxCount="1"
    )

    async def both() -> list[bytes]:
        return [answer.content for answer in await asyncio.gather(*(world.posted(*request) for _ in range(8)))]

    assert len(set(asyncio.run(both()))) == 1
    assert len(world.accounts.service.context.store.ec2.all(Reservation)) == 1


def test_one_token_from_fifty_clients_at_once(world: Ec2World) -> None:
    form = {"ImageId": world.image(), "InstanceType": "w1.nano", "MinCount": "1", "MaxCount": "1", "ClientToken": "t"}
    requests = [signed(world, "ann", Action="RunInstances", **form, **{"Monitoring.Enabled": "false"})]
    requests += [signed(world, "ann", Action="RunInstances", **dict(reversed(form.items()))) for _ in range(2)]

    async def all_of_them() -> list[str]:
        return [answer.text for answer in await asyncio.gather(*(world.posted(*one) for one in requests * 16))]

    answers = asyncio.run(all_of_them())
    made = {text.partition("<reservationId>")[2].partition("<")[0] for text in answers if "<reservationId>" in text}
    assert len(made) == 1 and len(world.accounts.service.context.store.ec2.all(Reservation)) == 1
    assert {code_in(text) for text in answers} <= {"", "IdempotentParameterMismatch"}


def test_what_an_earlier_daemon_did_is_not_done_again(world: Ec2World) -> None:
    request = signed(world, "ann", Action="CreatePlacementGroup", GroupName="g")
    assert world.post(*request).status_code == 200
    world.client("ann").delete_placement_group(GroupName="g")
    world.accounts.app = make_app(world.accounts.service.context)
    assert code_in(world.post(*request).text) == "RequestExpired"
    assert world.client("ann").describe_placement_groups()["PlacementGroups"] == []
    assert world.client("bob").create_placement_group(GroupName="g")["PlacementGroup"], "another account's dates"


@pytest.mark.parametrize("ahead", [-200, 0, 200])
def test_a_date_is_remembered_by_the_next_daemon(world: Ec2World, ahead: int) -> None:
    context = world.accounts.service.context
    dated = int(time.time()) + ahead

    def daemon() -> Ec2Endpoint:
        return Ec2Endpoint(context, Audit(context), asyncio.Semaphore(1))

    first = daemon()
    for date in (dated, dated - 5, dated):
        first._require_new(7, date)
    following = daemon()
    for old in (dated - 5, dated):
        with pytest.raises(Ec2Error) as caught:
            following._require_new(7, old)
        assert caught.value.code == "RequestExpired"
    following._require_new(7, dated + 1)
    following._require_new(8, dated - 200)


def test_answers_of_who_asks_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = replays.Replays()

    async def make() -> replays.Answer:
        return replays.Answer(200, b"")

    asyncio.run(kept.once(7, "a", make))
    monkeypatch.setattr(replays, "KEPT_SECONDS", -1.0)
    asyncio.run(kept.once(8, "b", make))
    assert kept._kept.keys() == {7, 8}
    for old in kept._kept[7]:
        kept._kept[7][old] = (0.0, kept._kept[7][old][1])
    asyncio.run(kept.once(9, "c", make))
    assert kept._kept.keys() == {9}


def test_wrong_signatures(world: Ec2World) -> None:
    before = everything(world)
    headers, body = signed(world, "ann", Action="CreatePlacementGroup", GroupName="g")
    assert code_in(world.post(headers, body + b"x").text) == "SignatureDoesNotMatch"
    assert code_in(world.post({}, body).text) == "MissingAuthenticationToken"
    assert code_in(world.post({**headers, "Authorization": "AWS4-HMAC-SHA256 x"}, body).text) == "IncompleteSignature"
    id, secret = world.key("ann")
    for key, code in ((("WKIA" + "A" * 16, secret), "AuthFailure"), ((id, secret[:-1]), "SignatureDoesNotMatch"),
                      ((id, world.key("bob")[1]), "SignatureDoesNotMatch")):  # fmt: skip
        with pytest.raises(ClientError) as caught:
            world.client("ann", key=key).describe_instances()
        assert code_of(caught.value) == code
    with pytest.raises(ClientError) as caught:
        world.client("ann", region="eu-west-1").describe_instances()
    assert code_of(caught.value) == "AuthFailure" and "AWS_DEFAULT_REGION=local" in str(caught.value)
    assert code_in(world.post({}, b"", method="GET").text) == "UnsupportedProtocol"
    assert code_in(world.post(headers, body, url=f"{URL}?Action=DescribeRegions").text) == "UnsupportedProtocol"
    assert everything(world) == before


def test_guesses_are_slowed_down_and_right_ones_are_not(world: Ec2World) -> None:
    world.key("ann")
    codes = [code_in(world.post({}, b"").text) for _ in range(40)]
    assert codes[0] == "MissingAuthenticationToken" and codes[-1] == "RequestLimitExceeded"
    assert world.client("ann").describe_regions()["Regions"]


def test_a_body_is_bounded_and_not_read_of_strangers(world: Ec2World) -> None:
    headers, _ = signed(world, "ann", Action="DescribeRegions")
    answer = world.post(headers, b"x" * (128 * 1024 + 1))
    assert (answer.status_code, code_in(answer.text)) == (413, "RequestEntityTooLarge")
    assert answer.headers["connection"] == "close"
    read: list[int] = []

    async def receive() -> dict[str, object]:
        read.append(1)
        return {"type": "http.request", "body": b"x" * 10000, "more_body": True}

    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/ec2", "query_string": b"", "headers": [],
        "state": {"network": "192.0.2.9"},
    }  # fmt: skip
    asyncio.run(world.accounts.app(scope, receive, send))  # type: ignore[arg-type]
    assert not read and sent[0]["status"] == 403


def test_a_key_that_ended(world: Ec2World) -> None:
    keys = AccessKeyCommands(world.accounts.service.context, ROOT)
    client, bob, vic = world.client("ann"), world.client("bob"), world.client("vic")
    assert client.describe_regions()["Regions"] and bob.describe_regions()["Regions"]
    keys.revoke(world.key("ann")[0])
    world.accounts.root.remove_user("bob")
    for one in (client, bob):
        with pytest.raises(ClientError) as caught:
            one.describe_regions()
        assert code_of(caught.value) == "AuthFailure"
    assert vic.describe_regions()["Regions"]


def test_a_file_that_others_may_read_is_not_used(world: Ec2World) -> None:
    client, path = world.client("ann"), world.accounts.service.context.instance.keys_file
    path.chmod(0o644)
    with pytest.raises(ClientError) as caught:
        client.describe_regions()
    assert code_of(caught.value) == "AuthFailure"
    with pytest.raises(Failed) as failed:
        world.key("bob")
    assert "others may read it" in str(failed.value)
    path.unlink()
    assert world.client("bob").describe_regions()["Regions"], "a new file, for new keys"
    with pytest.raises(ClientError):
        client.describe_regions()


def test_roles_are_those_of_rest(world: Ec2World) -> None:
    before = everything(world)
    client = world.client("vic")
    for action, row in ACTIONS.items():
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in action).lstrip("_")
        if row.rule.access is not Access.USER:
            continue
        words: dict[str, object] = {
            "run_instances": {"ImageId": world.image(), "MinCount": 1, "MaxCount": 1},
            "create_tags": {"Resources": ["i-1"], "Tags": [{"Key": "k", "Value": "v"}]},
            "delete_tags": {"Resources": ["i-1"]}, "import_key_pair": {"KeyName": "k", "PublicKeyMaterial": b""},
            "create_key_pair": {"KeyName": "k"},
            "delete_key_pair": {"KeyName": "k"}, "create_placement_group": {"GroupName": "g"},
            "delete_placement_group": {"GroupName": "g"},
        }.get(name, {"InstanceIds": ["i-1"]})  # fmt: skip
        with pytest.raises(ClientError) as caught:
            getattr(client, name)(**words)
        assert code_of(caught.value) == "UnauthorizedOperation", action
    assert client.describe_instances()["Reservations"] == []
    world.accounts.allow(Allowed.OFF)
    words = {"ImageId": world.image(), "MinCount": 1, "MaxCount": 1}
    assert world.refused("ann", "run_instances", **words) == "UnauthorizedOperation"
    assert everything(world) == before


def test_every_action_that_changes_something_is_a_users() -> None:
    for name, action in ACTIONS.items():
        reads = name.startswith(("Describe", "Get"))
        assert action.changes is not reads and (action.rule.access is Access.SIGNED) is reads, name


def test_anothers_is_not_there(world: Ec2World) -> None:
    made = world.run("ann")
    before = everything(world)
    assert world.client("bob").describe_instances()["Reservations"] == []
    assert world.client("bob").describe_tags()["Tags"] == []
    for action in ("terminate_instances", "describe_instances", "reboot_instances"):
        assert world.refused("bob", action, InstanceIds=ids(made)) == "InvalidInstanceID.NotFound"
    assert world.refused("bob", "get_console_output", InstanceId=ids(made)[0]) == "InvalidInstanceID.NotFound"
    assert ids(world.client("eve").describe_instances()["Reservations"][0]) == ids(made), "an admin sees all"
    assert everything(world) == before


def test_a_project_shares_by_rest_and_here(world: Ec2World) -> None:
    world.accounts.project("team", "ann", "bob", "vic")
    spec = {"name": "shared", "nodes": 1, "cpus": 0.25, "memory": "64MiB"}
    world.accounts.done("ann", "POST", "/v1/clusters", {"spec": spec, "project": "team"})
    for who in ("ann", "bob", "vic"):
        (found,) = world.client(who).describe_instances()["Reservations"]
    assert world.refused("vic", "terminate_instances", InstanceIds=ids(found)) == "UnauthorizedOperation"
    world.client("bob").terminate_instances(InstanceIds=ids(found))
    world.until("ann", found["ReservationId"], "terminated")


def test_a_dry_run_changes_nothing(world: Ec2World) -> None:
    made = world.run("ann")
    before = everything(world)
    run = {"ImageId": world.image(), "InstanceType": "w1.nano", "MinCount": 1, "MaxCount": 1}
    for action, words in (
        ("run_instances", run), ("terminate_instances", {"InstanceIds": ids(made)}), ("describe_instances", {}),
        ("create_tags", {"Resources": ids(made), "Tags": [{"Key": "k", "Value": "v"}]}),
        ("delete_tags", {"Resources": ids(made)}), ("create_placement_group", {"GroupName": "g"}),
        ("delete_key_pair", {"KeyName": "k"}), ("describe_regions", {}),
    ):  # fmt: skip
        assert world.refused("ann", action, DryRun=True, **words) == "DryRunOperation", action
    too_much = {**run, "MinCount": 200, "MaxCount": 200}
    assert world.refused("ann", "run_instances", DryRun=True, **too_much) == "InsufficientInstanceCapacity"
    assert everything(world) == before


def test_wrong_words(world: Ec2World) -> None:
    image, before = world.image(), everything(world)
    run = {"ImageId": image, "InstanceType": "w1.nano", "MinCount": 1, "MaxCount": 1}
    for change, code in (
        ({"ImageId": "ami-1"}, "InvalidAMIID.NotFound"), ({"InstanceType": "t2.micro"}, "InvalidParameterValue"),
        ({"MinCount": 0}, "InvalidParameterValue"), ({"MinCount": 2}, "InvalidParameterValue"),
        ({"MaxCount": 251}, "InvalidParameterValue"), ({"KeyName": "none"}, "InvalidKeyPair.NotFound"),
        ({"UserData": "import os"}, "UnsupportedOperation"),
        ({"UserData": "#!/bin/sh\n" + "x" * 17000}, "InvalidUserData.Malformed"),
        ({"DisableApiStop": True}, "UnsupportedOperation"),
        ({"Placement": {"AvailabilityZone": "../a"}}, "InvalidParameterValue"),
        ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown"),
        ({"Placement": {"HostId": "h"}}, "UnsupportedOperation"), ({"ClientToken": "a b"}, "InvalidParameterValue"),
        ({"SubnetId": "subnet-1"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-1"]}, "InvalidGroup.NotFound"),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sda"}]}, "UnsupportedOperation"),
        ({"TagSpecifications": [{"ResourceType": "key-pair", "Tags": []}]}, "InvalidParameterValue"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0}, {"DeviceIndex": 1}]}, "UnsupportedOperation"),
        ({"NetworkInterfaces": [{"PrivateIpAddress": "10.0.0.1"}]}, "UnsupportedOperation"),
        ({"NetworkInterfaces": [{"SubnetId": "subnet-1"}]}, "InvalidSubnetID.NotFound"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0}], "SubnetId": "subnet-1"}, "InvalidParameterCombination"),
    ):  # fmt: skip
        assert world.refused("ann", "run_instances", **{**run, **change}) == code, change
    for action, words, code in (
        ("describe_instances", {"Filters": filter_of("none", "x")}, "InvalidParameterValue"),
        ("describe_instances", {"NextToken": "%"}, "InvalidParameterValue"),
        ("describe_instances", {"MaxResults": 4}, "InvalidParameterValue"),
        ("describe_instances", {"MaxResults": 5, "InstanceIds": ["i-1"]}, "InvalidParameterCombination"),
        ("describe_instances", {"InstanceIds": ["<b>"]}, "InvalidInstanceID.NotFound"),
        ("describe_images", {"ImageIds": ["ami-1"]}, "InvalidAMIID.NotFound"),
        ("describe_instance_types", {"InstanceTypes": ["t2.micro"]}, "InvalidInstanceType"),
        ("describe_availability_zones", {"ZoneNames": ["c"]}, "InvalidParameterValue"),
        ("describe_regions", {"RegionNames": ["us-east-1"]}, "InvalidParameterValue"),
        ("describe_vpcs", {"VpcIds": ["vpc-1"]}, "InvalidVpcID.NotFound"),
        ("describe_subnets", {"SubnetIds": ["subnet-1"]}, "InvalidSubnetID.NotFound"),
        ("describe_security_groups", {"GroupIds": ["sg-1"]}, "InvalidGroup.NotFound"),
        ("create_placement_group", {"GroupName": "g", "Strategy": "x"}, "InvalidParameterValue"),
        ("create_placement_group", {}, "MissingParameter"), ("describe_volumes", {}, "InvalidAction"),
    ):  # fmt: skip
        assert world.refused("ann", action, **words) == code, (action, words)
    assert everything(world) == before


def test_the_audit_log_has_what_changes_and_what_is_refused(world: Ec2World) -> None:
    world.run("ann")
    world.refused("vic", "create_placement_group", GroupName="g")
    world.post({}, b"")
    entries = world.accounts.service.context.store.accounts.audit(0, 100)
    told = [(one.who, one.address, one.what, one.status, one.code) for one in entries if "/ec2" in one.what]
    address = world.accounts.address
    assert told == [
        ("ann", address, "POST /ec2?Action=RunInstances", 200, ""),
        ("vic", address, "POST /ec2?Action=CreatePlacementGroup", 403, "UnauthorizedOperation"),
        ("", address, "POST /ec2", 403, "MissingAuthenticationToken"),
    ]


def test_not_at_the_socket(world: Ec2World) -> None:
    assert world.accounts.ask("root", "POST", "/ec2").status_code == 404


def test_no_secret_is_told(world: Ec2World) -> None:
    _, secret = world.key("ann")
    world.run("ann")
    context = world.accounts.service.context
    with pytest.raises(Refused):
        AccessKeyCommands(context, ROOT).revoke("WKIANONE")
    stored = b"".join(path.read_bytes() for path in context.instance.state.glob("wherry.db*"))
    assert secret.encode() not in stored
    assert secret not in str(context.store.events()) + str(context.store.accounts.audit(0, 100))
    assert context.instance.keys_file.stat().st_mode & 0o777 == 0o600
