"""Routes of public keys for SSH, and of the way to nodes by SSH."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from wherry.base.errors import Code, Refused
from wherry.model.accounts import AccountName, SshAccess, SshKey
from wherry.model.paging import sliced
from wherry.model.spec.base import ShortText
from wherry.service.account_caller import AccountCaller
from wherry.service.rest.dependencies import Body, ContextDep, PeerDep
from wherry.service.rest.paging import PagingDep
from wherry.service.ssh_keys import LONGEST, SshKeyCommands

router = APIRouter(tags=["accounts"])


class SshKeyBody(Body):
    """A key's name, and its `public` part, a line as OpenSSH writes it. `user`: whose it is, by default one's own."""

    name: ShortText
    public: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    user: AccountName | None = None


def _keys(context: ContextDep, peer: PeerDep) -> SshKeyCommands:
    return SshKeyCommands(context, peer)


KeysDep = Annotated[SshKeyCommands, Depends(_keys)]
Whose = Annotated[AccountName | None, Query(description="whose it is; default: one's own")]


@router.get("/ssh-keys")
def list_ssh_keys(keys: KeysDep, paging: PagingDep) -> list[SshKey]:
    """One's own, or for admins all; oldest first."""
    return paging.answer(sliced(keys.all(), paging.wanted(float, str), lambda key: (key.created, key.id)))


@router.post("/ssh-keys", status_code=201)
def add_ssh_key(body: SshKeyBody, keys: KeysDep) -> SshKey:
    """Keeps a public key, by which its account reaches its nodes."""
    return keys.add(body.user, body.name, body.public)


@router.delete("/ssh-keys/{key}")
def remove_ssh_key(key: str, keys: KeysDep, user: Whose = None) -> SshKey:
    """Forgets a key, by its id or name, and ends the connections that it opened."""
    return keys.remove(user, key)


@router.get("/ssh")
def show_ssh(context: ContextDep, peer: PeerDep) -> SshAccess:
    """As whom, and at which host key, one reaches nodes by SSH; at the host and port of this interface."""
    if not isinstance(peer, AccountCaller):
        why = "users of the machine reach nodes by the socket"
        raise Refused(Code.WRONG_STATE, "SSH is for accounts", why, "wherry exec NODE -- PROGRAM")
    if context.network is None:
        raise Refused(Code.UNSUPPORTED, "this daemon has no listener", "it serves a test", "wherry daemon start")
    return SshAccess(user=peer.account.name, host_key=context.network.ssh_host_key())
