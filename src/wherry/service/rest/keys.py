"""Routes of access keys, by which requests of the EC2 Query API are signed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from wherry.model.accounts import USUAL_TOKEN, AccessKey, AccountName
from wherry.model.paging import sliced
from wherry.model.spec.base import ShortText
from wherry.service.access_keys import AccessKeyCommands
from wherry.service.rest.accounts import Days
from wherry.service.rest.dependencies import Body, ContextDep, PeerDep
from wherry.service.rest.paging import PagingDep

router = APIRouter(tags=["accounts"])


class KeyBody(Body):
    """A key's name, and after how many days it ends. `user`: whose it is, by default one's own."""

    name: ShortText
    days: Days = USUAL_TOKEN
    user: AccountName | None = None


def _keys(context: ContextDep, peer: PeerDep) -> AccessKeyCommands:
    return AccessKeyCommands(context, peer)


KeysDep = Annotated[AccessKeyCommands, Depends(_keys)]


@router.get("/keys")
def list_keys(keys: KeysDep, paging: PagingDep) -> list[AccessKey]:
    """One's own, or for admins all; oldest first."""
    return paging.answer(sliced(keys.all(), paging.wanted(float, str), lambda key: (key.created, key.id)))


@router.post("/keys", status_code=201)
def add_key(body: KeyBody, keys: KeysDep) -> dict[str, Any]:
    """Makes an access key: `key` (its record) and `secret`, which is sent only once."""
    key, secret = keys.add(body.user, body.name, body.days)
    return {"key": key.model_dump(mode="json"), "secret": secret}


@router.delete("/keys/{id}")
def revoke_key(id: str, keys: KeysDep) -> AccessKey:
    """Ends an access key at once."""
    return keys.revoke(id)
