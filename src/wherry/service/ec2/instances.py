"""The actions on instances that exist: describe, terminate, reboot, and those impossible with nodes."""

from __future__ import annotations

import base64
from typing import Any

from wherry.base.errors import Code, Refused, WherryError
from wherry.model.ec2 import Reservation
from wherry.service.ec2 import catalog
from wherry.service.ec2.asked import Asked, Words, owner_id
from wherry.service.ec2.errors import Ec2Error, invalid, unsupported
from wherry.service.ec2.filters import filtered, page, tag_facts
from wherry.service.ec2.reservations import CODES, Instance, chosen, instances, keep
from wherry.service.ec2.tags import tag_list
from wherry.service.restart_commands import RestartCommands

FILTERS = (
    "instance-id", "instance-state-name", "instance-state-code", "image-id", "instance-type", "key-name",
    "availability-zone", "placement-group-name", "placement.group-name", "reservation-id", "client-token", "owner-id",
    "private-ip-address", "vpc-id", "subnet-id",
)  # fmt: skip
_STATUS_FILTERS = ("availability-zone", "instance-state-name", "instance-state-code", "instance-status.status",
                   "system-status.status")  # fmt: skip
_CANCEL_SECONDS = 20.0
"""How long a termination waits for the making of the cluster to end."""
_CONSOLE = 64 * 2**10


def describe_instances(asked: Asked) -> Words:
    """Reservations with their instances; a page may have part of one."""
    asked.only("InstanceIds", "Filters", "MaxResults", "NextToken", harmless=("IncludeManagedResources",))
    shown, token = _page(asked, FILTERS, facts_of, instances(asked))
    reservations: dict[str, list[Instance]] = {}
    for one in shown:
        reservations.setdefault(one.reservation.id, []).append(one)
    words = [reservation_words(found[0].reservation, found) for found in reservations.values()]
    return {"Reservations": words, "NextToken": token}


def describe_instance_status(asked: Asked) -> Words:
    """Whether instances answer; without IncludeAllInstances only running ones."""
    meant = ("InstanceIds", "Filters", "MaxResults", "NextToken", "IncludeAllInstances")
    asked.only(*meant, harmless=("IncludeManagedResources",))
    found = instances(asked)
    if ids := asked.words.get("InstanceIds"):
        chosen(found, ids)
    if not asked.words.get("IncludeAllInstances"):
        found = [one for one in found if one.state == "running"]

    def facts(one: Instance) -> dict[str, Any]:
        state = {"instance-state-name": (one.state,), "instance-state-code": (str(CODES[one.state]),)}
        status = (_status(one),)
        known = {"instance-status.status": status, "system-status.status": status}
        return {**state, **known, "availability-zone": (one.zone,)}

    shown, token = _page(asked, _STATUS_FILTERS, facts, found, must_exist=False)
    words = [
        {
            "InstanceId": one.id, "AvailabilityZone": one.zone, "InstanceState": _state(one.state),
            "InstanceStatus": {"Status": _status(one)}, "SystemStatus": {"Status": _status(one)},
        }
        for one in shown
    ]  # fmt: skip
    return {"InstanceStatuses": words, "NextToken": token}


def terminate_instances(asked: Asked) -> Words:
    """Removes the clusters of instances, with their jobs; each by all of its instances."""
    asked.only("InstanceIds", harmless=("Force", "SkipOsShutdown"))
    everything = instances(asked)
    found = chosen(everything, asked.words["InstanceIds"])
    ending = [one for one in found if one.state not in ("terminated", "shutting-down")]
    named = {one.id for one in found}
    for one in ending:
        asked.caller.require(one.reservation.uid, f"instance {one.id}")
        others = [other for other in everything if other.reservation.id == one.reservation.id]
        if left := [other.id for other in others if other.id not in named and other.state != "terminated"]:
            what, why = (
                "To terminate a part of a reservation",
                f"its instances end together; name {', '.join(left)} too",
            )
            raise unsupported(what, why)
    asked.dry_run()
    for reservation in {one.reservation.id: one.reservation for one in ending}.values():
        _down(asked, reservation)
    changes = []
    for one in found:
        after = "shutting-down" if one in ending else one.state
        changes.append({"InstanceId": one.id, "PreviousState": _state(one.state), "CurrentState": _state(after)})
    return {"TerminatingInstances": changes}


def stop_instances(asked: Asked) -> Words:
    """As with EC2's own instances whose root device is the instance's store: it would be lost. UnsupportedOperation."""
    asked.only("InstanceIds", harmless=("Force", "Hibernate", "SkipOsShutdown"))
    (first, *_) = _own(asked)
    why = "its files would be lost. Terminate the instances, and run new ones"
    raise unsupported(f"To stop instance {first.id}, which has no root device of type 'ebs',", why)


def start_instances(asked: Asked) -> Words:
    """Starts lost nodes anew; running nodes continue."""
    asked.only("InstanceIds")
    found = _own(asked)
    _require_state(found, "running", "pending", "stopped")
    asked.dry_run()
    starting = [one for one in found if one.state == "stopped"]
    _restart(asked, starting)
    changes = []
    for one in found:
        after = "pending" if one in starting else one.state
        changes.append({"InstanceId": one.id, "PreviousState": _state(one.state), "CurrentState": _state(after)})
    return {"StartingInstances": changes}


def reboot_instances(asked: Asked) -> Words:
    """Ends nodes, with the jobs that run there, and starts them anew, without their own files."""
    asked.only("InstanceIds")
    found = _own(asked)
    _require_state(found, "running", "stopped")
    asked.dry_run()
    _restart(asked, found)
    return {}


def _own(asked: Asked) -> list[Instance]:
    """The instances that a request names. Another's is not there."""
    found = chosen(instances(asked), asked.words["InstanceIds"])
    for one in found:
        asked.caller.require(one.reservation.uid, f"instance {one.id}")
    if not found:
        raise Ec2Error("MissingParameter", "The request must contain the parameter InstanceId")
    return found


def _require_state(found: list[Instance], *states: str) -> None:
    for one in found:
        if one.state not in states:
            raise Ec2Error("IncorrectInstanceState", f"The instance '{one.id}' is {one.state}")


def _restart(asked: Asked, found: list[Instance]) -> None:
    """Each cluster's nodes together; the states of instances show how it ends."""
    nodes: dict[str, list[str]] = {}
    for one in found:
        if one.node is not None:
            nodes.setdefault(one.node.cluster, []).append(one.node.name)
    for names in nodes.values():
        RestartCommands(asked.context, asked.caller).restart(names, end_jobs=True)


def get_console_output(asked: Asked) -> Words:
    """The end of a virtual machine's console."""
    asked.only("InstanceId", harmless=("Latest",))
    (one,) = chosen(instances(asked), [asked.words["InstanceId"]])
    if one.node is None:
        return {"InstanceId": one.id, "Timestamp": one.reservation.created, "Output": ""}
    text = asked.commands.console(one.node.name)["text"].encode()[-_CONSOLE:]
    told = base64.b64encode(text).decode()
    return {"InstanceId": one.id, "Timestamp": one.reservation.created, "Output": told}


def describe_instance_attribute(asked: Asked) -> Words:
    """One attribute of an instance, which Terraform and Ansible ask for. User data is not kept."""
    asked.only("InstanceId", "Attribute")
    (one,) = chosen(instances(asked), [asked.words["InstanceId"]])
    values: dict[str, Words] = {
        "instanceType": {"InstanceType": {"Value": one.type}},
        "disableApiTermination": {"DisableApiTermination": {"Value": False}},
        "disableApiStop": {"DisableApiStop": {"Value": False}},
        "instanceInitiatedShutdownBehavior": {"InstanceInitiatedShutdownBehavior": {"Value": "stop"}},
        "ebsOptimized": {"EbsOptimized": {"Value": False}},
        "enaSupport": {"EnaSupport": {"Value": False}},
        "sourceDestCheck": {"SourceDestCheck": {"Value": True}},
        "groupSet": {"Groups": [{"GroupId": catalog.SECURITY_GROUP, "GroupName": "default"}]},
        "blockDeviceMapping": {"BlockDeviceMappings": []},
        "userData": {"UserData": {}},
    }
    name = asked.words["Attribute"]
    if name not in values:
        raise invalid("Attribute", name, f"Known: {', '.join(values)}")
    return {"InstanceId": one.id, **values[name]}


def reservation_words(reservation: Reservation, found: list[Instance]) -> Words:
    """A reservation in the words of an answer."""
    return {
        "ReservationId": reservation.id, "OwnerId": owner_id(reservation.uid), "Groups": [],
        "Instances": [_words(one) for one in found],
    }  # fmt: skip


def facts_of(one: Instance) -> dict[str, Any]:
    """What filters compare."""
    reservation = one.reservation
    told = {
        "instance-id": one.id, "instance-state-name": one.state, "instance-state-code": str(CODES[one.state]),
        "image-id": reservation.image, "instance-type": one.type, "key-name": reservation.key_name,
        "availability-zone": one.zone, "placement-group-name": reservation.group,
        "placement.group-name": reservation.group, "reservation-id": reservation.id,
        "client-token": reservation.token, "owner-id": owner_id(reservation.uid),
        "private-ip-address": one.node.address if one.node else "", "vpc-id": catalog.VPC,
        "subnet-id": catalog.subnet_id(one.zone) if one.zone else "",
    }  # fmt: skip
    return {**{name: (value,) for name, value in told.items() if value}, **tag_facts(one.tags)}


def _page(
    asked: Asked, names: tuple[str, ...], facts: Any, found: list[Instance], must_exist: bool = True
) -> tuple[list[Instance], str | None]:
    ids = asked.words.get("InstanceIds")
    if ids and "MaxResults" in asked.words:
        what = "The parameter InstanceId cannot be used with the parameter MaxResults"
        raise Ec2Error("InvalidParameterCombination", what)
    if ids:
        found = chosen(found, ids) if must_exist else [one for one in found if one.id in ids]
    matching = filtered(found, asked.words.get("Filters", ()), names, facts)
    return page(matching, lambda one: one.order, asked.words)


def _words(one: Instance) -> Words:
    reservation, node = one.reservation, one.node
    lives = one.state not in ("terminated", "shutting-down")
    words: Words = {
        "InstanceId": one.id, "ImageId": reservation.image, "State": _state(one.state), "AmiLaunchIndex": one.index,
        "InstanceType": one.type, "LaunchTime": reservation.created, "ClientToken": reservation.token,
        "Placement": {"AvailabilityZone": one.zone, "GroupName": reservation.group, "Tenancy": "default"},
        "Architecture": "x86_64", "Hypervisor": "xen", "RootDeviceType": "instance-store",
        "VirtualizationType": "hvm", "Monitoring": {"State": "disabled"}, "ProductCodes": [],
        "PrivateDnsName": f"{reservation.cluster}-{one.index}" if lives else "", "PublicDnsName": "",
        "StateTransitionReason": one.why[1] if one.why else "", "BlockDeviceMappings": [], "NetworkInterfaces": [],
        "SecurityGroups": [{"GroupId": catalog.SECURITY_GROUP, "GroupName": "default"}] if lives else [],
        "Tags": tag_list(one.tags),
    }  # fmt: skip
    if reservation.key_name:
        words["KeyName"] = reservation.key_name
    if one.why:
        words["StateReason"] = {"Code": one.why[0], "Message": f"{one.why[0]}: {one.why[1]}"}
    if lives:
        words["VpcId"] = catalog.VPC
        if one.zone:
            words["SubnetId"] = catalog.subnet_id(one.zone)
    if node:
        words["PrivateIpAddress"] = node.address
    return words


def _down(asked: Asked, reservation: Reservation) -> None:
    """Takes its cluster down; while that is made, its making is ended first."""
    keep(asked, reservation)
    operations = asked.context.operations
    if reservation.operation:
        try:
            asked.commands.cancel_operation(reservation.operation)
            operations.wait(reservation.operation, _CANCEL_SECONDS)
        except WherryError:  # it has ended, as most have
            pass
    try:
        asked.commands.down(reservation.cluster, end_jobs=True)
    except Refused as error:
        if error.code is not Code.NOT_FOUND:
            raise


def _state(name: str) -> Words:
    return {"Code": CODES[name], "Name": name}


def _status(one: Instance) -> str:
    return {"running": "ok", "pending": "initializing"}.get(one.state, "not-applicable")
