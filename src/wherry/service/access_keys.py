"""Access keys of accounts, by which requests of the EC2 Query API are signed (docs/design/0029).

Invariants: a secret is in the database sealed alone (`wherry.store.sealing`); it is shown once, when its key is made.
"""

from __future__ import annotations

import secrets

from wherry.base.clock import now
from wherry.base.errors import Code, Refused
from wherry.model.accounts import LONGEST_TOKEN, AccessKey
from wherry.service.account_caller import AccountCaller
from wherry.service.context import ServiceContext
from wherry.service.credentials import PeerCredentials

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_MAX_KEYS = 100
"""Keys of one account, without ended ones."""
_DAY = 86_400.0


class AccessKeyCommands:
    """The commands of one peer on access keys: one's own, or for root and admins everybody's."""

    def __init__(self, context: ServiceContext, peer: PeerCredentials) -> None:
        self._context, self._peer, self._keys = context, peer, context.store.access_keys

    def all(self) -> list[AccessKey]:
        """Oldest first."""
        return self._keys.all(self._only())

    def add(self, user: str | None, name: str, days: int) -> tuple[AccessKey, str]:
        """Makes a key of one's own account, or for root and admins of any; its secret is shown this once. The account's
        keys that have ended are forgotten."""
        own = self._peer.account.name if isinstance(self._peer, AccountCaller) else None
        user = user or own
        if user is None:
            remedy = "wherry key create NAME --user USER"
            raise Refused(Code.USAGE, "whose key is it to be?", "users of the machine have none", remedy)
        if user != own:
            self._peer.require(0, f"an access key of {user}")
        self._keys.drop_ended(user, now())
        if len(self._keys.all(user)) >= _MAX_KEYS:
            why = "an account has no more"
            raise Refused(Code.NO_CAPACITY, f"{user} has {_MAX_KEYS} access keys", why, "wherry key revoke ID")
        secret, created = secrets.token_hex(20), now()
        id = "WKIA" + "".join(secrets.choice(_LETTERS) for _ in range(16))
        expires = created + min(days, LONGEST_TOKEN) * _DAY
        key = AccessKey(id=id, user=user, name=name, created=created, expires=expires)
        self._keys.add(key, self._context.store.sealing.seal(id, secret))
        self._context.store.add_event("key.create", id, f"access key {name!r} of {user} was made")
        return key, secret

    def revoke(self, id: str) -> AccessKey:
        """Ends a key at once. NOT_FOUND, also for another's."""
        found = next((key for key in self.all() if key.id == id), None)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"there is no access key {id!r}", "", "wherry key list")
        self._keys.drop(id)
        self._context.store.add_event("key.revoke", id, f"access key {found.name!r} of {found.user} was revoked")
        return found

    def _only(self) -> str | None:
        """Whose keys the peer sees; None: everybody's. PERMISSION for other users of the machine."""
        if isinstance(self._peer, AccountCaller) and not self._peer.is_admin:
            return self._peer.account.name
        self._peer.require(0, "the list of access keys")
        return None
