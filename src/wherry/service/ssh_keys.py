"""Public keys of accounts, by which they reach their nodes over SSH (docs/design/0039). EC2's key pairs are the same.

Invariant: private keys stay with their users.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.model.accounts import SshKey
from wherry.model.ec2 import KeyPair, Tags
from wherry.service.account_caller import AccountCaller
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials
from wherry.service.ec2.catalog import made_id
from wherry.service.ssh.host_key import fingerprint

MOST = 100
"""Keys of one account."""
LONGEST = 16384
"""Bytes of a public key's text."""
_RSA_BITS = 2048
"""Fewest bits of an RSA key."""


class SshKeyCommands:
    """The commands of one peer on public keys: one's own, or for root and admins everybody's."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer = context, peer

    def all(self) -> list[SshKey]:
        """Oldest first."""
        own = self._peer.uid if isinstance(self._peer, AccountCaller) and not self._peer.is_admin else None
        if own is None:
            self._peer.require(0, "the list of SSH keys")
        users = {account.uid: account.name for account in self._context.store.accounts.users()}
        pairs = [pair for pair in self._context.store.ec2.all(KeyPair, own) if pair.uid in users]
        return [_shown(pair, users[pair.uid]) for pair in sorted(pairs, key=lambda pair: (pair.created, pair.id))]

    def add(self, user: str | None, name: str, public: str) -> SshKey:
        """Keeps a public key of one's own account, or for root and admins of any. USAGE, NAME_TAKEN, NO_CAPACITY."""
        user = self._user(user)
        account = self._context.store.accounts.user(user)
        if account is None:
            raise Refused(Code.NOT_FOUND, f"there is no user {user!r}", "", "wherry user list")
        parsed = parse_public_key(public.encode())
        if parsed is None:
            why = "it must be one line that begins with ssh-ed25519 or ssh-rsa (2048 bits or more), as *.pub files have"
            raise Refused(Code.USAGE, "this is no public key that can be used", why, "ssh-keygen -t ed25519")
        kind, mark, text = parsed
        ec2 = self._context.store.ec2
        if len(ec2.all(KeyPair, account.uid)) >= MOST:
            raise Refused(Code.NO_CAPACITY, f"{user} has {MOST} keys", "an account has no more", "wherry ssh-key list")
        id = made_id("key", str(account.uid), name)
        pair = KeyPair(id=id, uid=account.uid, created=now(), name=name, type=kind, fingerprint=mark, public=text)
        if not ec2.add(pair):
            remedy = f"wherry ssh-key remove {name}"
            raise Refused(Code.NAME_TAKEN, f"{user} has a key {name!r} already", "", remedy)
        self._context.store.add_event("ssh-key.add", id, f"SSH key {name!r} of {user} was added")
        return _shown(pair, user)

    def remove(self, user: str | None, key: str) -> SshKey:
        """Forgets a key by its id, or its name among the user's; connections that it opened end. NOT_FOUND, also for
        another's."""
        keys = self.all()
        found = next((one for one in keys if one.id == key), None)
        if found is None:
            user = self._user(user)
            found = next((one for one in keys if (one.user, one.name) == (user, key)), None)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"{user} has no SSH key {key!r}", "", "wherry ssh-key list")
        self._context.store.ec2.drop(KeyPair, found.id)
        self._context.store.ec2.drop(Tags, found.id)
        self._context.store.add_event("ssh-key.remove", found.id, f"SSH key {found.name!r} of {found.user} was removed")
        return found

    def _user(self, named: str | None) -> str:
        """The account that is meant. USAGE for a user of the machine who names none; PERMISSION for another's."""
        own = self._peer.account.name if isinstance(self._peer, AccountCaller) else None
        user = named or own
        if user is None:
            why, remedy = "users of the machine have none", "wherry ssh-key add NAME --user USER"
            raise Refused(Code.USAGE, "whose key is it?", why, remedy)
        if user != own:
            self._peer.require(0, f"an SSH key of {user}")
        return user


def _shown(pair: KeyPair, user: str) -> SshKey:
    return SshKey(
        id=pair.id, user=user, name=pair.name, created=pair.created, type=pair.type,
        fingerprint=fingerprint(pair.public),
    )  # fmt: skip


def parse_public_key(material: bytes) -> tuple[str, str, str] | None:
    """Of a public key as OpenSSH writes it: its type, its fingerprint as EC2 makes it of an imported key, and the key
    without its comment. None for anything but ED25519, and RSA of 2048 bits or more."""
    if len(material) > LONGEST:
        return None
    try:
        key = serialization.load_ssh_public_key(material.strip())
    except (ValueError, UnsupportedAlgorithm):
        return None
    kept = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    if isinstance(key, ed25519.Ed25519PublicKey):
        digest = hashlib.sha256(base64.b64decode(kept.split()[1])).digest()
        return "ed25519", base64.b64encode(digest).decode(), kept
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS:
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        told = hashlib.md5(der, usedforsecurity=False).hexdigest()
        return "rsa", ":".join(told[at : at + 2] for at in range(0, 32, 2)), kept
    return None
