"""Names and UUIDs of domains on hosts that several instances share.

Invariant: UUIDs are derived (UUIDv5) from names, so a restarted daemon finds its domains. On real hosts they are also
derived from the instance's identity, a random word in its state directory: two machines that use the same hosts both
have an instance `main`, and each would take the other's nodes of the same name for its own, and destroy them.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from wherry.base.atomic_write import write_once
from wherry.base.paths import Instance

_NAMESPACE = uuid.UUID("5b6f8f0e-5d0d-4c86-9a8f-6f1f5f2a7c11")
"""Namespace of the UUIDs of hosts and domains."""


def id_of(*words: str) -> str:
    """The UUID of these names."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(words)))


def domain_id(instance: Instance, node: str) -> str:
    """The UUID that a node's domain has on every emulated host."""
    return id_of(instance.name, "node", node)


def remote_domain_id(instance: Instance, node: str) -> str:
    """The UUID that a node's domain has on every real host."""
    try:
        identity = _identity(instance).read_text()
    except FileNotFoundError:  # the instance used real hosts before there were identities, or never did
        return domain_id(instance, node)
    return id_of(instance.name, identity, "node", node)


def make_identity(instance: Instance) -> None:
    """Gives an instance its identity before it uses the first real host. Does nothing when it has used one."""
    identity = _identity(instance)
    if identity.exists() or not any(notes(instance).glob("[!.]*")):
        write_once(identity, uuid.uuid4().hex.encode())


def notes(instance: Instance) -> Path:
    """The directory with the identity, and one file per used host, which contains its URI."""
    return instance.state / "hosts"


def _identity(instance: Instance) -> Path:
    return notes(instance) / ".identity"


def domain_name(instance: Instance, node: str) -> str:
    """The name of a node's domain on a real host, where other instances have theirs. Two instances of one name on two
    machines can have one of the same name, which libvirt refuses."""
    return f"{instance.prefix}-{node}"
