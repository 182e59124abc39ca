"""Routes of the provider of identities."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field, SecretStr

from wherry.model.identity import ProviderSetting, ProviderState
from wherry.service.identity_provider import IdentityProvider
from wherry.service.rest.dependencies import Body, PeerDep

router = APIRouter(tags=["accounts"])
_WHAT = "the provider of identities"


class ProviderBody(Body):
    """The provider (None: there is none any more), and the daemon's secret there; empty for a client without one."""

    setting: ProviderSetting | None = None
    secret: Annotated[SecretStr, Field(max_length=1024)] = SecretStr("")


def _provider(request: Request, peer: PeerDep) -> IdentityProvider:
    peer.require(0, _WHAT)
    found: IdentityProvider = request.app.state.provider
    return found


ProviderDep = Annotated[IdentityProvider, Depends(_provider)]


@router.get("/provider")
def show_provider(provider: ProviderDep) -> ProviderState:
    """The provider by which accounts sign in, and the address to register there."""
    return provider.state()


@router.put("/provider")
def set_provider(body: ProviderBody, provider: ProviderDep) -> ProviderState:
    """Has accounts sign in by it from now on, or by none. UNREACHABLE, FAILED when it does not answer as a provider."""
    return provider.change(body.setting, body.secret.get_secret_value())
