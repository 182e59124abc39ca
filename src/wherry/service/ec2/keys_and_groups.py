"""Key pairs and placement groups of an account. A project's members do not share them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from wherry.base.clock import now
from wherry.model.ec2 import Kept, KeyPair, PlacementGroup, Reservation, Tags
from wherry.service.ec2.asked import Asked, Words
from wherry.service.ec2.catalog import made_id
from wherry.service.ec2.errors import Ec2Error, invalid, unsupported
from wherry.service.ec2.filters import filtered, tag_facts
from wherry.service.ec2.reservations import instances
from wherry.service.ec2.surroundings import STRATEGIES
from wherry.service.ec2.tags import put_tags, tag_list, tags_for, tags_of
from wherry.service.ssh_keys import parse_public_key

_MAX_OBJECTS = 100
"""Of each, of one account."""
_NAME = re.compile(r"[ -~]{1,255}", re.ASCII)
_RSA_BITS = 2048
One = TypeVar("One", bound=Kept)


def create_key_pair(asked: Asked) -> Words:
    """Makes a pair, keeps its public key, and shows the private one this once (RSA of 2048 bits, or ED25519)."""
    asked.only("KeyName", "KeyType", "KeyFormat", "TagSpecifications")
    kind = asked.words.get("KeyType", "rsa")
    if kind not in ("rsa", "ed25519"):
        raise invalid("KeyType", kind, "It must be rsa or ed25519")
    if (given := asked.words.get("KeyFormat", "pem")) != "pem":
        raise unsupported(f"The format {given[:16]} of keys", "it must be pem")
    rsas = kind == "rsa"
    key = rsa.generate_private_key(65537, _RSA_BITS) if rsas else ed25519.Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.TraditionalOpenSSL if rsas else serialization.PrivateFormat.OpenSSH
    material = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return {**_kept_pair(asked, public), "KeyMaterial": material}


def import_key_pair(asked: Asked) -> Words:
    """Keeps a public key (RSA or ED25519, as OpenSSH writes it)."""
    asked.only("KeyName", "PublicKeyMaterial", "TagSpecifications")
    return _kept_pair(asked, asked.words["PublicKeyMaterial"])


def _kept_pair(asked: Asked, material: bytes) -> Words:
    """InvalidKeyPair.Duplicate, InvalidKey.Format. In a dry run nothing is kept."""
    name, tags = _name("KeyName", asked.words["KeyName"]), tags_for(asked, "key-pair")
    kind, fingerprint, public = _public_key(material)
    id = made_id("key", str(asked.caller.uid), name)
    pair = KeyPair(
        id=id, uid=asked.caller.uid, created=now(), name=name, type=kind, fingerprint=fingerprint, public=public
    )
    code = "InvalidKeyPair.Duplicate"
    _add(asked, pair, Ec2Error(code, f"The keypair '{name[:64]}' already exists"))
    put_tags(asked, {id: pair.uid}, tags)
    return {"KeyName": name, "KeyPairId": id, "KeyFingerprint": fingerprint, "Tags": tag_list(tags)}


def describe_key_pairs(asked: Asked) -> Words:
    """By name."""
    asked.only("KeyNames", "KeyPairIds", "Filters", "IncludePublicKey")
    found = _own(asked, KeyPair)
    code = "InvalidKeyPair.NotFound"
    found = _named(found, asked.words.get("KeyNames", ()), "key", code)
    found = _named(found, asked.words.get("KeyPairIds", ()), "id", code)

    def facts(pair: KeyPair) -> dict[str, Sequence[str]]:
        own: dict[str, Sequence[str]] = {
            "key-name": [pair.name],
            "key-pair-id": [pair.id],
            "fingerprint": [pair.fingerprint],
        }
        return {**own, **{name: list(told) for name, told in tag_facts(tags_of(asked, pair.id)).items()}}

    shown = filtered(found, asked.words.get("Filters", ()), ("key-name", "key-pair-id", "fingerprint"), facts)
    public = asked.words.get("IncludePublicKey")
    words = [
        {
            "KeyName": pair.name, "KeyPairId": pair.id, "KeyType": pair.type, "KeyFingerprint": pair.fingerprint,
            "CreateTime": pair.created, "Tags": tag_list(tags_of(asked, pair.id)),
            **({"PublicKey": pair.public} if public else {}),
        }
        for pair in shown
    ]  # fmt: skip
    return {"KeyPairs": words}


def delete_key_pair(asked: Asked) -> Words:
    """Forgets one; also done when there is none."""
    asked.only("KeyName", "KeyPairId")
    wanted = {asked.words.get("KeyName"), asked.words.get("KeyPairId")} - {None}
    if len(wanted) != 1:
        raise Ec2Error("MissingParameter", "The request must contain one of the parameters KeyName and KeyPairId")
    found = [pair for pair in _own(asked, KeyPair) if {pair.name, pair.id} & wanted]
    asked.dry_run()
    for pair in found:
        asked.kept.drop(Tags, pair.id)
        asked.kept.drop(KeyPair, pair.id)
    return {"Return": True, "KeyPairId": found[0].id if found else None}


def create_placement_group(asked: Asked) -> Words:
    """Makes one: cluster, spread or partition."""
    asked.only("GroupName", "Strategy", "TagSpecifications", harmless=("PartitionCount", "SpreadLevel"))
    if "GroupName" not in asked.words:
        raise Ec2Error("MissingParameter", "The request must contain the parameter GroupName")
    name, tags = _name("GroupName", asked.words["GroupName"]), tags_for(asked, "placement-group")
    strategy = asked.words.get("Strategy", "cluster")
    if strategy not in STRATEGIES:
        raise invalid("Strategy", strategy, f"It must be one of {', '.join(STRATEGIES)}")
    id = made_id("pg", str(asked.caller.uid), name)
    group = PlacementGroup(id=id, uid=asked.caller.uid, created=now(), name=name, strategy=strategy)
    code = "InvalidPlacementGroup.Duplicate"
    _add(asked, group, Ec2Error(code, f"The placement group '{name[:64]}' already exists"))
    put_tags(asked, {id: group.uid}, tags)
    return {"PlacementGroup": _group_words(group, tags)}


def describe_placement_groups(asked: Asked) -> Words:
    """By name."""
    asked.only("GroupNames", "GroupIds", "Filters")
    found = _own(asked, PlacementGroup)
    code = "InvalidPlacementGroup.Unknown"
    found = _named(found, asked.words.get("GroupNames", ()), "key", code)
    found = _named(found, asked.words.get("GroupIds", ()), "id", code)

    def facts(group: PlacementGroup) -> dict[str, Sequence[str]]:
        own: dict[str, Sequence[str]] = {
            "group-name": [group.name],
            "strategy": [group.strategy],
            "state": ["available"],
        }
        return {**own, **{name: list(told) for name, told in tag_facts(tags_of(asked, group.id)).items()}}

    shown = filtered(found, asked.words.get("Filters", ()), ("group-name", "strategy", "state"), facts)
    return {"PlacementGroups": [_group_words(group, tags_of(asked, group.id)) for group in shown]}


def delete_placement_group(asked: Asked) -> Words:
    """Forgets a group that no instance has. InvalidPlacementGroup.InUse, .Unknown."""
    asked.only("GroupName")
    name = asked.words["GroupName"]
    group = asked.kept.named(PlacementGroup, asked.caller.uid, name)
    if group is None:
        raise Ec2Error("InvalidPlacementGroup.Unknown", f"The placement group '{name[:64]}' is unknown")
    for one in instances(asked):
        reservation: Reservation = one.reservation
        if (reservation.uid, reservation.group) == (group.uid, name) and one.state != "terminated":
            raise Ec2Error("InvalidPlacementGroup.InUse", f"The placement group has instance {one.id}")
    asked.dry_run()
    asked.kept.drop(Tags, group.id)
    asked.kept.drop(PlacementGroup, group.id)
    return {}


def _group_words(group: PlacementGroup, tags: dict[str, str]) -> Words:
    return {
        "GroupName": group.name, "GroupId": group.id, "Strategy": group.strategy, "State": "available",
        "Tags": tag_list(tags),
    }  # fmt: skip


def _own(asked: Asked, kind: type[One]) -> list[One]:
    return sorted(asked.kept.all(kind, asked.caller.uid), key=lambda one: one.key)


def _named(found: list[One], names: Sequence[str], attribute: str, code: str) -> list[One]:
    known = {getattr(one, attribute) for one in found}
    if missing := [name for name in names if name not in known]:
        raise Ec2Error(code, f"'{missing[0][:64]}' does not exist")
    return [one for one in found if not names or getattr(one, attribute) in names]


def _add(asked: Asked, one: Kept, taken: Ec2Error) -> None:
    own = _own(asked, type(one))
    if any(other.key == one.key for other in own):
        raise taken
    if len(own) >= _MAX_OBJECTS:
        raise Ec2Error("ResourceLimitExceeded", f"An account has at most {_MAX_OBJECTS} of these")
    asked.dry_run()
    if not asked.kept.add(one):
        raise taken


def _name(parameter: str, value: str) -> str:
    if not _NAME.fullmatch(value):
        raise invalid(parameter, value, "It must be 1 to 255 characters of ASCII")
    return value


def _public_key(material: bytes) -> tuple[str, str, str]:
    """As `parse_public_key` has it. InvalidKey.Format."""
    found = parse_public_key(material)
    if found is None:
        what = "The key is not a public RSA key of 2048 bits or more, or ED25519 key, as OpenSSH writes it"
        raise Ec2Error("InvalidKey.Format", what)
    return found
