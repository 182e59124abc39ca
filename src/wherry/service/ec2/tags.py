"""Tags of instances, key pairs and placement groups."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wherry.base.clock import now
from wherry.model.ec2 import Kept, KeyPair, PlacementGroup, Reservation, Tags
from wherry.service.ec2.asked import Asked, Words
from wherry.service.ec2.errors import Ec2Error, invalid
from wherry.service.ec2.filters import filtered, page, tag_facts
from wherry.service.ec2.reservations import chosen, instances, keep

_MAX_TAGS, _MAX_KEY, _MAX_VALUE = 50, 128, 256
_OURS = ("aws:", "wherry:")
_KINDS: tuple[tuple[str, str, type[Kept]], ...] = (
    ("key-", "key-pair", KeyPair),
    ("pg-", "placement-group", PlacementGroup),
)
_FILTERS = ("key", "value", "resource-id", "resource-type")
_changing = threading.Lock()
"""Tags of an object are read and written as one."""


def tag_list(tags: Mapping[str, str]) -> list[Words]:
    """Tags in the words of an answer, by key."""
    return [{"Key": key, "Value": tags[key]} for key in sorted(tags)]


def tags_in(tags: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Tags that a request gives. InvalidParameterValue, TagLimitExceeded."""
    found: dict[str, str] = {}
    for one in tags:
        key, value = str(one.get("Key", "")), str(one.get("Value", ""))
        if not 0 < len(key) <= _MAX_KEY or len(value) > _MAX_VALUE:
            raise invalid("Tag", key, f"A key has 1 to {_MAX_KEY} characters, a value at most {_MAX_VALUE}")
        if key.startswith(_OURS):
            raise invalid("Tag", key, f"Keys that begin with {' or '.join(_OURS)} are reserved")
        if key in found:
            raise invalid("Tag", key, "The key is there twice")
        found[key] = value
    return _bounded(found)


def tags_for(asked: Asked, kind: str, without: Collection[str] = ()) -> dict[str, str]:
    """Those of a request's TagSpecifications, which may be for things of this kind, and for those of kinds of which the
    request makes none."""
    found: list[Mapping[str, Any]] = []
    for one in asked.words.get("TagSpecifications", ()):
        given, tags = one.get("ResourceType"), one.get("Tags", ())
        if given == kind:
            found += tags
        elif given in without:
            tags_in(tags)
        else:
            raise invalid("TagSpecification.ResourceType", str(given), f"It must be {kind}")
    return tags_in(found)


def put_tags(asked: Asked, owners: Mapping[str, int], tags: Mapping[str, str]) -> None:
    """Gives tags to new objects, which are given by their ids, with the uids of their owners."""
    if tags:
        asked.kept.put(*(_tags(id, uid, tags) for id, uid in owners.items()))


def tags_of(asked: Asked, id: str) -> dict[str, str]:
    """The tags of an object that has a row of its own."""
    found = asked.kept.one(Tags, id)
    return found.tags if found else {}


def create_tags(asked: Asked) -> Words:
    """Adds tags to objects, or replaces them."""
    asked.only("Resources", "Tags")
    new = tags_in(asked.words["Tags"])
    owners, reservations = _owners(asked)
    with _changing:
        changed = {id: _bounded({**tags_of(asked, id), **new}) for id in owners}
        asked.dry_run()
        for reservation in reservations:
            keep(asked, reservation)
        asked.kept.put(*(_tags(id, owners[id], tags) for id, tags in changed.items()))
    return {}


def delete_tags(asked: Asked) -> Words:
    """Removes tags: those named, and where a value is given, only with that; without tags all."""
    asked.only("Resources", "Tags")
    owners, _ = _owners(asked)
    given = asked.words.get("Tags")
    asked.dry_run()
    with _changing:
        for id, uid in owners.items():
            tags = tags_of(asked, id)
            for one in [{"Key": key} for key in tags] if given is None else given:
                key = one.get("Key", "")
                if key in tags and one.get("Value", tags[key]) == tags[key]:
                    tags = {name: value for name, value in tags.items() if name != key}
            if tags:
                asked.kept.put(_tags(id, uid, tags))
            else:
                asked.kept.drop(Tags, id)
    return {}


def describe_tags(asked: Asked) -> Words:
    """All tags, by object and key."""
    asked.only("Filters", "MaxResults", "NextToken")
    found = [(one.id, "instance", key, value) for one in instances(asked) for key, value in one.tags.items()]
    for _, kind, of in _KINDS:
        for kept in asked.kept.all(of):
            if kept.uid == asked.caller.uid:
                found += [(kept.id, kind, key, value) for key, value in tags_of(asked, kept.id).items()]

    def facts(one: tuple[str, str, str, str]) -> dict[str, Any]:
        id, kind, key, value = one
        own = {"key": (key,), "value": (value,), "resource-id": (id,), "resource-type": (kind,)}
        return {**own, **tag_facts({key: value})}

    kept_tags = filtered(found, asked.words.get("Filters", ()), _FILTERS, facts)
    shown, token = page(kept_tags, lambda one: f"{one[0]}/{one[2]}", asked.words)
    words = [{"ResourceId": id, "ResourceType": kind, "Key": key, "Value": value} for id, kind, key, value in shown]
    return {"Tags": words, "NextToken": token}


def _owners(asked: Asked) -> tuple[dict[str, int], list[Reservation]]:
    """The uid of each object that a request names, and the reservations of its instances.
    InvalidInstanceID.NotFound, InvalidID."""
    ids: list[str] = asked.words["Resources"]
    of_instances = [id for id in ids if id.startswith("i-")]
    named = chosen(instances(asked), of_instances) if of_instances else []
    found = {one.id: one.reservation.uid for one in named}
    for id in ids:
        if id in found:
            continue
        kinds = [kind for prefix, _, kind in _KINDS if id.startswith(prefix)]
        kept = asked.kept.one(kinds[0], id) if kinds else None
        if kept is None or kept.uid != asked.caller.uid:
            raise Ec2Error("InvalidID", f"The ID '{id[:40]}' is not that of something which has tags here")
        found[id] = kept.uid
    for uid in found.values():
        asked.caller.require(uid, "the instance")
    return found, list({one.reservation.id: one.reservation for one in named}.values())


def _tags(id: str, uid: int, tags: Mapping[str, str]) -> Tags:
    return Tags(id=id, uid=uid, created=now(), tags=dict(tags))


def _bounded(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > _MAX_TAGS:
        raise Ec2Error("TagLimitExceeded", f"An object has at most {_MAX_TAGS} tags")
    return tags
