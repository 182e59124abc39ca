"""RunInstances: a reservation is a cluster.

Invariants: its row is there before its cluster, so a client token begins one cluster alone, also across a restart of
the daemon; a refused launch leaves no row. An account launches one reservation at a time
(`wherry.service.ec2.endpoint`).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import replace
from typing import Any

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.model.ec2 import KeyPair, PlacementGroup, Reservation
from wherry.model.network import MOST_NODES
from wherry.model.spec.cluster import ClusterSpec
from wherry.model.spec.parse import parse
from wherry.service.account_caller import require_plain
from wherry.service.ec2 import catalog
from wherry.service.ec2.asked import Asked, Words
from wherry.service.ec2.errors import Ec2Error, invalid, unsupported
from wherry.service.ec2.instances import reservation_words
from wherry.service.ec2.reservations import instance_id, instances
from wherry.service.ec2.tags import put_tags, tags_for
from wherry.service.ec2.user_data import run_when_made, script_of

_HARMLESS = (
    "Monitoring", "EbsOptimized", "InstanceInitiatedShutdownBehavior", "MetadataOptions", "CreditSpecification",
    "MaintenanceOptions", "PrivateDnsNameOptions",
)  # fmt: skip
"""Parameters that have one value here, whatever is asked for."""
_MEANT = (
    "ImageId", "InstanceType", "MinCount", "MaxCount", "KeyName", "ClientToken", "Placement", "TagSpecifications",
    "SubnetId", "SecurityGroupIds", "SecurityGroups", "NetworkInterfaces", "DisableApiTermination",
    "DisableApiStop", "UserData",
)  # fmt: skip
_WITHOUT = ("volume", "network-interface", "spot-instances-request")
"""Kinds of things that Ansible and Terraform have tagged with instances, and that nodes have none of."""
_TOKEN = re.compile(r"[!-~]{1,64}", re.ASCII)
_STRATEGIES: dict[str, dict[str, Any]] = {
    "cluster": {"spread": "pack"},
    "spread": {"spread": "host", "max_per_host": 1},
    "partition": {"spread": "site"},
}
_PLAIN_INTERFACE = (("DeviceIndex", 0), ("AssociatePublicIpAddress", False), ("DeleteOnTermination", True))
"""Properties that every interface has anyway."""
_TOO_MUCH = (Code.NO_CAPACITY, Code.QUOTA_EXCEEDED)


def run_instances(asked: Asked) -> Words:
    """Makes a cluster of MinCount to MaxCount nodes, and answers while it is made."""
    asked.only(*_MEANT, harmless=_HARMLESS)
    asked = replace(asked, words=_with_interface(asked.words))
    words = asked.words
    for name in ("DisableApiTermination", "DisableApiStop"):
        if words.get(name):
            raise unsupported(f"The parameter {name}", "instances can be terminated by who may")
    least, most = words["MinCount"], words["MaxCount"]
    if not 1 <= least <= most <= MOST_NODES:
        raise invalid("MaxCount", str(most), f"MinCount and MaxCount must be 1 to {MOST_NODES}, in this order")
    token, tags = words.get("ClientToken", ""), tags_for(asked, "instance", _WITHOUT)
    if token and not _TOKEN.fullmatch(token):
        raise invalid("ClientToken", token, "It must be 1 to 64 characters of ASCII, without blanks")
    script, request = script_of(asked), _hash(words)
    if found := _begun(asked, token, request):
        asked.dry_run()
        return _answer(asked, found)
    template, zone, group = _template(asked)
    id = f"r-{secrets.token_hex(9)[:17]}"
    template["name"] = f"ec2-{id[2:14]}"
    spec = _sized(asked, template, least, most)
    asked.dry_run()
    reservation = Reservation(
        id=id, uid=asked.caller.uid, created=now(), cluster=spec.name, count=spec.size,
        type=words.get("InstanceType", "w1.small"), image=words["ImageId"], zone=zone, group=group,
        key_name=words.get("KeyName", ""), token=token, request=request,
    )  # fmt: skip
    if not asked.kept.add(reservation):
        raise Ec2Error("IdempotentParameterMismatch", "The client token is in use by another request")
    try:
        operation = asked.commands.up(spec, asked.caller.owner(None))
    except BaseException:
        asked.kept.drop(Reservation, id)
        raise
    reservation = reservation.model_copy(update={"operation": operation.id})
    asked.kept.put(reservation)
    put_tags(asked, {instance_id(id, index): reservation.uid for index in range(reservation.count)}, tags)
    if script:
        run_when_made(asked, spec.name, operation.id, script)
    return _answer(asked, reservation)


def _with_interface(words: Words) -> Words:
    """The parameters without NetworkInterfaces, as Ansible has them: the subnet and groups of the one interface are the
    instances'. InvalidParameterCombination, UnsupportedOperation."""
    given = words.get("NetworkInterfaces")
    if not given:
        return words
    if {"SubnetId", "SecurityGroupIds", "SecurityGroups"} & words.keys():
        what = "Network interfaces and a subnet or security groups of instances may not be named in one request"
        raise Ec2Error("InvalidParameterCombination", what)
    one = {name: value for name, value in given[0].items() if (name, value) not in _PLAIN_INTERFACE}
    if len(given) > 1 or not one.keys() <= {"SubnetId", "Groups", "Description"}:
        why = "there is one, of index 0, of which a subnet and groups can be named"
        raise unsupported("The parameter NetworkInterface", why)
    own = {"SubnetId": one.get("SubnetId"), "SecurityGroupIds": one.get("Groups")}
    rest = {name: value for name, value in words.items() if name != "NetworkInterfaces"}
    return {**rest, **{name: value for name, value in own.items() if value}}


def _hash(words: Words) -> str:
    told = {name: value for name, value in words.items() if name != "DryRun"}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()


def _begun(asked: Asked, token: str, request: str) -> Reservation | None:
    """The reservation that a client token began. IdempotentParameterMismatch when that was something else."""
    found = asked.kept.named(Reservation, asked.caller.uid, f"token {token}") if token else None
    if found is None:
        return None
    if found.request != request:
        what = "The client token was used before, with other parameters"
        raise Ec2Error("IdempotentParameterMismatch", what)
    if found.operation or asked.commands.seen.cluster(found.cluster):
        return found
    asked.kept.drop(Reservation, found.id)  # the daemon ended between the row and the operation
    return None


def _template(asked: Asked) -> tuple[dict[str, Any], str, str]:
    """The cluster file without name and number, the zone, and the placement group."""
    words, context = asked.words, asked.context
    known = catalog.images(context, asked.caller)
    if "ImageId" not in words:
        raise Ec2Error("MissingParameter", "The request must contain the parameter ImageId")
    if words["ImageId"] not in known:
        what = f"The image id '[{words['ImageId'][:40]}]' does not exist. DescribeImages lists the existing ones"
        raise Ec2Error("InvalidAMIID.NotFound", what)
    name, image = known[words["ImageId"]]
    size = catalog.type_named(words.get("InstanceType", "w1.small"))
    template: dict[str, Any] = {"kind": "container", "cpus": size.cpus, "memory": f"{size.memory >> 20}MiB"}
    if image is not None:
        template |= {"kind": "vm", "image": name}
    zone, group = _place(asked)
    if zone:
        template["sites"] = [zone]
    if group:
        kept = asked.kept.named(PlacementGroup, asked.caller.uid, group)
        if kept is None:
            raise Ec2Error("InvalidPlacementGroup.Unknown", f"The placement group '{group[:64]}' is unknown")
        template["placement"] = _STRATEGIES[kept.strategy]
    if (pair := words.get("KeyName")) and asked.kept.named(KeyPair, asked.caller.uid, pair) is None:
        raise Ec2Error("InvalidKeyPair.NotFound", f"The key pair '{pair[:64]}' does not exist")
    for parameter, right in (("SecurityGroupIds", catalog.SECURITY_GROUP), ("SecurityGroups", "default")):
        for given in words.get(parameter, ()):
            if given != right:
                raise Ec2Error("InvalidGroup.NotFound", f"The security group '{given[:40]}' does not exist")
    return template, zone, group


def _place(asked: Asked) -> tuple[str, str]:
    """The zone, by its name or its subnet's id, and the name of the placement group; each may be empty."""
    placement = asked.words.get("Placement", {})
    for name, value in placement.items():
        if name not in ("AvailabilityZone", "GroupName") and (name, value) != ("Tenancy", "default"):
            raise unsupported(f"The parameter Placement.{name}", "a zone and a group can be named")
    zone = str(placement.get("AvailabilityZone", ""))
    if zone:
        catalog.require_zone(asked.context, zone)
    if subnet := asked.words.get("SubnetId"):
        of = [one for one in catalog.zones(asked.context) if catalog.subnet_id(one) == subnet]
        if not of:
            raise Ec2Error("InvalidSubnetID.NotFound", f"The subnet ID '{subnet[:40]}' does not exist")
        if zone not in ("", of[0]):
            raise Ec2Error("InvalidParameterValue", "The subnet is of another zone than the named one")
        zone = of[0]
    return zone, str(placement.get("GroupName", ""))


def _sized(asked: Asked, template: dict[str, Any], least: int, most: int) -> ClusterSpec:
    """The cluster of as many nodes as there is room for, at most `most`; the error of `least` if that is too many."""

    def planned(count: int) -> ClusterSpec:
        spec = parse(ClusterSpec, {**template, "nodes": count}, "the request", "DescribeInstanceTypes")
        require_plain(spec, asked.caller)
        asked.commands.plan(spec, asked.caller.owner(None))
        return spec

    try:
        return planned(most)
    except Refused as error:
        if error.code not in _TOO_MUCH or least == most:
            raise
    found, above = planned(least), most
    while above - found.size > 1:
        middle = (found.size + above) // 2
        try:
            found = planned(middle)
        except Refused as error:
            if error.code not in _TOO_MUCH:
                raise
            above = middle
    return found


def _answer(asked: Asked, reservation: Reservation) -> Words:
    found = [one for one in instances(asked) if one.reservation.id == reservation.id]
    return reservation_words(reservation, found)
