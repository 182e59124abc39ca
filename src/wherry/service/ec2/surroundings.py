"""The surroundings of instances: regions, zones, types, images, and the one network that clients ask after first."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wherry.model.records import Image
from wherry.service.ec2 import catalog
from wherry.service.ec2.asked import Asked, Words
from wherry.service.ec2.errors import Ec2Error
from wherry.service.ec2.filters import filtered, page
from wherry.service.ec2.signature import REGION

_NETWORK_FILTERS = ("vpc-id", "owner-id", "state")


def describe_regions(asked: Asked) -> Words:
    """The one."""
    asked.only("RegionNames", "Filters", harmless=("AllRegions",))
    _require_known(asked.words.get("RegionNames", ()), [REGION], "InvalidParameterValue", "region")
    region: Words = {"RegionName": REGION, "Endpoint": "", "OptInStatus": "opt-in-not-required"}
    return {"Regions": _matching(asked, [region], {"region-name": "RegionName", "opt-in-status": "OptInStatus"})}


def describe_availability_zones(asked: Asked) -> Words:
    """The sites."""
    asked.only("ZoneNames", "ZoneIds", "Filters", harmless=("AllAvailabilityZones",))
    found: list[Words] = [
        {
            "ZoneName": zone, "ZoneId": zone, "State": "available", "RegionName": REGION, "GroupName": REGION,
            "NetworkBorderGroup": REGION, "ZoneType": "availability-zone", "OptInStatus": "opt-in-not-required",
            "Messages": [],
        }
        for zone in catalog.zones(asked.context)
    ]  # fmt: skip
    for parameter in ("ZoneNames", "ZoneIds"):
        if names := asked.words.get(parameter):
            _require_known(names, [one["ZoneName"] for one in found], "InvalidParameterValue", "availability zone")
            found = [one for one in found if one["ZoneName"] in names]
    filters = {"zone-name": "ZoneName", "zone-id": "ZoneId", "state": "State", "region-name": "RegionName",
               "zone-type": "ZoneType", "opt-in-status": "OptInStatus"}  # fmt: skip
    return {"AvailabilityZones": _matching(asked, found, filters)}


def describe_instance_types(asked: Asked) -> Words:
    """All sizes of nodes that can be asked for."""
    asked.only("InstanceTypes", "Filters", "MaxResults", "NextToken")
    found = [type_words(one) for one in catalog.TYPES.values()]
    if names := asked.words.get("InstanceTypes"):
        _require_known(names, list(catalog.TYPES), "InvalidInstanceType", "instance type")
        found = [one for one in found if one["InstanceType"] in names]
    flat = [{**one, "vcpus": one["VCpuInfo"]["DefaultVCpus"], "mib": one["MemoryInfo"]["SizeInMiB"]} for one in found]
    filters = {"instance-type": "InstanceType", "vcpu-info.default-vcpus": "vcpus", "memory-info.size-in-mib": "mib"}
    names_left = {one["InstanceType"] for one in _matching(asked, flat, filters)}
    left = [one for one in found if one["InstanceType"] in names_left]
    shown, token = page(left, lambda one: str(one["InstanceType"]), asked.words)
    return {"InstanceTypes": shown, "NextToken": token}


def type_words(one: catalog.InstanceType) -> Words:
    """An instance type in the words of an answer, where a part of a CPU counts as one."""
    cpus = max(1, round(one.cpus))
    return {
        "InstanceType": one.name, "CurrentGeneration": True, "FreeTierEligible": False,
        "SupportedUsageClasses": ["on-demand"], "SupportedRootDeviceTypes": ["instance-store"],
        "SupportedVirtualizationTypes": ["hvm"], "BareMetal": False,
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "VCpuInfo": {"DefaultVCpus": cpus, "DefaultCores": cpus, "DefaultThreadsPerCore": 1},
        "MemoryInfo": {"SizeInMiB": one.memory >> 20}, "InstanceStorageSupported": False,
        "PlacementGroupInfo": {"SupportedStrategies": list(STRATEGIES)},
        "HibernationSupported": False, "BurstablePerformanceSupported": False, "DedicatedHostsSupported": False,
        "AutoRecoverySupported": False,
    }  # fmt: skip


STRATEGIES = ("cluster", "partition", "spread")


def describe_images(asked: Asked) -> Words:
    """The container, and the images of virtual machines. All are Wherry's own: of owner `self` or `amazon` alike."""
    meant = ("ImageIds", "Owners", "Filters", "MaxResults", "NextToken")
    asked.only(*meant, harmless=("ExecutableUsers", "IncludeDeprecated", "IncludeDisabled"))
    known = catalog.images(asked.context, asked.caller)
    ids, owners = asked.words.get("ImageIds"), asked.words.get("Owners")
    _require_known(ids or (), known, "InvalidAMIID.NotFound", "image id")
    found = [_image_words(id, name, image) for id, (name, image) in known.items() if not ids or id in ids]
    if owners and not {"self", "amazon", _IMAGE_OWNER, asked.owner_id} & set(owners):
        found = []
    filters = {"image-id": "ImageId", "name": "Name", "state": "State", "architecture": "Architecture",
               "owner-id": "OwnerId", "virtualization-type": "VirtualizationType", "is-public": "Public",
               "root-device-type": "RootDeviceType", "image-type": "ImageType", "hypervisor": "Hypervisor",
               "description": "Description"}  # fmt: skip
    shown, token = page(
        _matching(asked, found, filters), lambda one: str(one["Name"]) + str(one["ImageId"]), asked.words, 1
    )
    return {"Images": shown, "NextToken": token}


_IMAGE_OWNER = "0" * 12


def _image_words(id: str, name: str, image: Image | None) -> Words:
    told = f"virtual machine, kernel {image.kernel}" if image else "container: the machine's own programs and libraries"
    made = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(image.built if image else 0))
    return {
        "ImageId": id, "Name": name, "Description": told, "State": "available", "Public": True, "ImageType": "machine",
        "Architecture": "x86_64", "OwnerId": _IMAGE_OWNER, "CreationDate": made, "RootDeviceType": "instance-store",
        "VirtualizationType": "hvm", "Hypervisor": "xen", "ImageLocation": name, "BlockDeviceMappings": [],
    }  # fmt: skip


def describe_vpcs(asked: Asked) -> Words:
    """The one, which stands for all networks of clusters."""
    asked.only("VpcIds", "Filters", "MaxResults", "NextToken")
    _require_known(asked.words.get("VpcIds", ()), [catalog.VPC], "InvalidVpcID.NotFound", "vpc ID")
    vpc: Words = {
        "VpcId": catalog.VPC, "State": "available", "CidrBlock": catalog.pool(asked.context), "IsDefault": True,
        "InstanceTenancy": "default", "OwnerId": asked.owner_id, "Tags": [],
    }  # fmt: skip
    filters = {"vpc-id": "VpcId", "state": "State", "owner-id": "OwnerId", "cidr": "CidrBlock",
               "isDefault": "IsDefault", "is-default": "IsDefault"}  # fmt: skip
    return {"Vpcs": _matching(asked, [vpc], filters)}


def describe_subnets(asked: Asked) -> Words:
    """One for each site."""
    asked.only("SubnetIds", "Filters", "MaxResults", "NextToken")
    pool = catalog.pool(asked.context)
    found: list[Words] = [
        {
            "SubnetId": catalog.subnet_id(zone), "VpcId": catalog.VPC, "State": "available", "CidrBlock": pool,
            "AvailabilityZone": zone, "AvailabilityZoneId": zone, "AvailableIpAddressCount": 250,
            "DefaultForAz": True, "MapPublicIpOnLaunch": False, "OwnerId": asked.owner_id, "Tags": [],
        }
        for zone in catalog.zones(asked.context)
    ]  # fmt: skip
    ids = asked.words.get("SubnetIds")
    _require_known(ids or (), [one["SubnetId"] for one in found], "InvalidSubnetID.NotFound", "subnet ID")
    found = [one for one in found if not ids or one["SubnetId"] in ids]
    filters = {"subnet-id": "SubnetId", "vpc-id": "VpcId", "state": "State", "owner-id": "OwnerId",
               "availability-zone": "AvailabilityZone", "default-for-az": "DefaultForAz",
               "defaultForAz": "DefaultForAz"}  # fmt: skip
    return {"Subnets": _matching(asked, found, filters)}


def describe_security_groups(asked: Asked) -> Words:
    """The one: nodes reach those of their own cluster, and nothing reaches them."""
    asked.only("GroupIds", "GroupNames", "Filters", "MaxResults", "NextToken")
    code = "InvalidGroup.NotFound"
    _require_known(asked.words.get("GroupIds", ()), [catalog.SECURITY_GROUP], code, "security group")
    _require_known(asked.words.get("GroupNames", ()), ["default"], code, "security group")
    group: Words = {
        "GroupId": catalog.SECURITY_GROUP, "GroupName": "default", "VpcId": catalog.VPC, "OwnerId": asked.owner_id,
        "Description": "nodes of one cluster reach each other", "IpPermissions": [], "IpPermissionsEgress": [],
        "Tags": [],
    }  # fmt: skip
    filters = {"group-id": "GroupId", "group-name": "GroupName", "vpc-id": "VpcId", "owner-id": "OwnerId",
               "description": "Description"}  # fmt: skip
    return {"SecurityGroups": _matching(asked, [group], filters)}


def describe_account_attributes(asked: Asked) -> Words:
    """The first question of clients: whether there is a VPC, and how many instances there may be."""
    asked.only("AttributeNames")
    nodes = asked.caller.account.quota.nodes
    values = {
        "supported-platforms": "VPC", "default-vpc": catalog.VPC,
        "max-instances": str(2**31 - 1 if nodes is None else nodes),
    }  # fmt: skip
    names = asked.words.get("AttributeNames") or list(values)
    told = [{"AttributeName": n, "AttributeValues": [{"AttributeValue": values[n]}]} for n in names if n in values]
    return {"AccountAttributes": told}


def _require_known(names: Collection[str], known: Collection[str], code: str, noun: str) -> None:
    if missing := [name for name in names if name not in known]:
        raise Ec2Error(code, f"The {noun} '{missing[0][:64]}' does not exist")


def _matching(asked: Asked, found: Sequence[Words], names: Mapping[str, str]) -> list[Words]:
    """All that match the filters, each of which compares one word."""

    def facts(one: Words) -> dict[str, Any]:
        return {name: (_text(one[word]),) for name, word in names.items()}

    return filtered(found, asked.words.get("Filters", ()), tuple(names), facts)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
