"""Routes of the listener for the network."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from wherry.base.errors import Code, Refused
from wherry.model.listener import ListenerSetting, ListenerState
from wherry.service.network_listener import NetworkListener
from wherry.service.rest.dependencies import Body, ContextDep, PeerDep

router = APIRouter(tags=["service"])
_WHAT = "the listener for the network"


class ListenerBody(Body):
    """Where to listen (None: nowhere any more)."""

    setting: ListenerSetting | None = None


def _listener(context: ContextDep, peer: PeerDep) -> NetworkListener:
    peer.require(0, _WHAT)
    if context.network is None:
        raise Refused(Code.UNSUPPORTED, "this daemon has no listener", "it serves a test", "wherry daemon start")
    return context.network


ListenerDep = Annotated[NetworkListener, Depends(_listener)]


@router.get("/listener")
def show_listener(listener: ListenerDep) -> ListenerState:
    """Where the daemon listens, and the certificate of who signed its own."""
    return listener.shown()


@router.put("/listener")
async def set_listener(body: ListenerBody, listener: ListenerDep) -> ListenerState:
    """Listens there from now on, also after a restart; or nowhere."""
    return await listener.change(body.setting)
