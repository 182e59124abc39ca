"""The actions of the EC2 Query API: the function of each, and the role of an account that may ask for it.

The rights are those of the REST routes that do the same (`wherry.service.rest.authorization`). Invariant: an action
that has no row is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wherry.service.ec2 import instances, keys_and_groups, launch, surroundings, tags
from wherry.service.ec2.asked import Asked, Words
from wherry.service.rest.authorization import RULES, Access, Rule


class Action(NamedTuple):
    """`changes`: it is done once for each signature, and ends a dry run itself. `plans`: it may contact
    hosts. `secret`: its answer is not kept for a repeated request."""

    do: Callable[[Asked], Words]
    rule: Rule
    changes: bool = False
    plans: bool = False
    secret: bool = False


_SIGNED, _USER = Rule(Access.SIGNED), Rule(Access.USER)
_END, _RESTART = RULES["DELETE", "/v1/clusters/{name}"], RULES["POST", "/v1/restarts"]
ACTIONS: dict[str, Action] = {
    "RunInstances": Action(launch.run_instances, RULES["POST", "/v1/clusters"], changes=True, plans=True),
    "TerminateInstances": Action(instances.terminate_instances, _END, changes=True),
    "StopInstances": Action(instances.stop_instances, _END, changes=True),
    "StartInstances": Action(instances.start_instances, _RESTART, changes=True),
    "RebootInstances": Action(instances.reboot_instances, _RESTART, changes=True),
    "DescribeInstances": Action(instances.describe_instances, RULES["GET", "/v1/nodes"]),
    "DescribeInstanceStatus": Action(instances.describe_instance_status, RULES["GET", "/v1/nodes"]),
    "DescribeInstanceAttribute": Action(instances.describe_instance_attribute, RULES["GET", "/v1/nodes"]),
    "GetConsoleOutput": Action(instances.get_console_output, RULES["GET", "/v1/nodes/{name}/console"]),
    "CreateTags": Action(tags.create_tags, _USER, changes=True),
    "DeleteTags": Action(tags.delete_tags, _USER, changes=True),
    "DescribeTags": Action(tags.describe_tags, _SIGNED),
    "CreateKeyPair": Action(keys_and_groups.create_key_pair, _USER, changes=True, secret=True),
    "ImportKeyPair": Action(keys_and_groups.import_key_pair, _USER, changes=True),
    "DeleteKeyPair": Action(keys_and_groups.delete_key_pair, _USER, changes=True),
    "DescribeKeyPairs": Action(keys_and_groups.describe_key_pairs, _SIGNED),
    "CreatePlacementGroup": Action(keys_and_groups.create_placement_group, _USER, changes=True),
    "DeletePlacementGroup": Action(keys_and_groups.delete_placement_group, _USER, changes=True),
    "DescribePlacementGroups": Action(keys_and_groups.describe_placement_groups, _SIGNED),
    "DescribeImages": Action(surroundings.describe_images, RULES["GET", "/v1/images"]),
    "DescribeInstanceTypes": Action(surroundings.describe_instance_types, _SIGNED),
    "DescribeRegions": Action(surroundings.describe_regions, _SIGNED),
    "DescribeAvailabilityZones": Action(surroundings.describe_availability_zones, RULES["GET", "/v1/fabric"]),
    "DescribeVpcs": Action(surroundings.describe_vpcs, _SIGNED),
    "DescribeSubnets": Action(surroundings.describe_subnets, RULES["GET", "/v1/fabric"]),
    "DescribeSecurityGroups": Action(surroundings.describe_security_groups, _SIGNED),
    "DescribeAccountAttributes": Action(surroundings.describe_account_attributes, RULES["GET", "/v1/me"]),
}
