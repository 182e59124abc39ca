"""The listener for the network: where, by which names, with which certificate."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from wherry.model.records import Record

_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$)({_LABEL}\.)*{_LABEL}")


def _host(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        if not _NAME.fullmatch(value):
            raise ValueError(f"{value[:60]!r} is neither an IP address nor a name of DNS") from None
        return value


def _path(value: str) -> str:
    if not value.startswith("/") or not value.isprintable():
        raise ValueError(f"{value[:60]!r} is not an absolute path")
    return value


HostOrAddress = Annotated[str, AfterValidator(_host)]
FilePath = Annotated[str, Field(max_length=4096), AfterValidator(_path)]


class ListenerSetting(Record):
    """Address and port to listen at; further `names` that the certificate of one's own has; or `certificate` and `key`
    of another one, PEM files on the daemon's machine. With `ssh` clients of SSH reach nodes at the same port."""

    address: HostOrAddress
    port: Annotated[int, Field(ge=1, le=65535)]
    names: Annotated[tuple[HostOrAddress, ...], Field(max_length=32)] = ()
    certificate: FilePath | None = None
    key: FilePath | None = None
    ssh: bool = False

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate needs its key, and a key its certificate")
        return self


class ListenerState(Record):
    """The setting (None: it does not listen), its `url`, the path of the certificate that clients trust with its
    SHA-256 (empty: they know who signed a given one), the fingerprint of the host key of SSH (empty: it does not serve
    SSH), and `error`, why it does not listen although it should."""

    setting: ListenerSetting | None = None
    url: str = ""
    ca: str = ""
    fingerprint: str = ""
    ssh_fingerprint: str = ""
    error: str = ""
