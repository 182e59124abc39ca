"""The provider of identities (OpenID Connect) by which accounts sign in to the page."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from wherry.model.listener import FilePath
from wherry.model.records import Record
from wherry.model.spec.base import ShortText

PROVIDER_SECRET = "provider"
"""Name in the store of the secret that the provider has given to the daemon; it is empty for a public client."""
_HTTPS = re.compile(r"https://[A-Za-z0-9.:\[\]-]{1,255}(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,512})?", re.ASCII)


def _url(value: str) -> str:
    if not _HTTPS.fullmatch(value):
        raise ValueError(f"{value[:60]!r} is not an address: write it as https://HOST/PATH, without '?' and '#'")
    return value


HttpsUrl = Annotated[str, AfterValidator(_url)]
Identity = Annotated[str, Field(min_length=1, max_length=255)]
"""The value of a claim."""


class Claim(StrEnum):
    """The claim of an ID token that names a person: the provider's own number, a mail address that the provider has
    verified, or a name."""

    SUBJECT = "sub"
    EMAIL = "email"
    NAME = "preferred_username"


class ProviderSetting(Record):
    """A provider, its `issuer` as in its ID tokens; `client`: the daemon's name there; `claim`: compared with the
    identities of accounts; `ca`: a PEM file on the daemon's machine by which the provider's TLS is checked (None: by
    the authorities that the machine trusts); `url`: where browsers reach the page (None: where the daemon listens)."""

    issuer: HttpsUrl
    client: ShortText
    claim: Claim = Claim.EMAIL
    ca: FilePath | None = None
    url: HttpsUrl | None = None


class ProviderState(Record):
    """The setting (None: there is no provider), and the `callback`, the address that has to be registered there."""

    setting: ProviderSetting | None = None
    callback: str = ""
