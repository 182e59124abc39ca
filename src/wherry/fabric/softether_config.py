"""The configuration files of SoftEther's VPN servers at both ends of a link.

A server reads its file once, when it starts. Invariants: only side 0 listens, at one port on the link; side 1 connects
to that port and to nothing else. Dynamic DNS, NAT traversal, keepalives and VPN Azure, which SoftEther has with servers
on the Internet, are off, and so are all protocols but its own. There is no administrator's password: its stored
hash is random. Each side trusts exactly one certificate, the other's.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PORT = 5555
"""The port that SoftEther's documentation uses."""
HUB, USER = "LINK", "GATEWAY"
"""The virtual switch at each side, and side 1's name at side 0."""
ESTABLISHED = f'"SID-{USER}-'
"""Begin of a session's name in the output of side 1 once side 0 has admitted it."""
MTU = 1586
"""Bytes of the largest packet: SoftEther carries frames of at most 1600 bytes."""
_MSS = MTU - 40
_USER_CERTIFICATE, _CLIENT_CERTIFICATE = 2, 3
"""AuthType of a user, and of a client."""
_PASSWORD_HASH = 20
_SILENCE = 60
"""Seconds without a byte after which both sides end their connection, and side 1 begins another: a busy machine is not
a dead one. SoftEther allows no more."""

Value = bool | int | str | bytes | Mapping[str, "Value"]


class Identity(NamedTuple):
    """A side's certificate and its key, in DER."""

    certificate: bytes
    key: bytes


def text(side: int, device: str, addresses: Sequence[str], own: Identity, peer: bytes) -> str:
    """The file of a side. `device` names its TAP (see `tap_name`), `addresses` are both sides' on the link, `peer` is
    the certificate of the other side."""
    bridge: Mapping[str, Value] = {"DeviceName": device, "HubName": HUB, "TapMode": True}
    root: Mapping[str, Value] = {
        "DDnsClient": {"Disabled": True},
        "IPsec": {"L2TP_IPsec": False, "L2TP_Raw": False, "EtherIP_IPsec": False},
        "ListenerList": {"Listener0": {"Enabled": True, "Port": PORT}} if side == 0 else {},
        "LocalBridgeList": {"LocalBridge0": bridge},
        "ServerConfiguration": _server(addresses[side], own),
        "VirtualHUB": {HUB: _hub(side, addresses[0], own, peer)},
    }
    return "".join(f"{line}\n" for line in _declared("root", root))


def tap_name(device: str) -> str:
    """The name of the TAP that SoftEther makes for a device: `s1` -> `tap_s1`."""
    return f"tap_{device}"


def _server(address: str, own: Identity) -> Mapping[str, Value]:
    return {
        "ServerCert": own.certificate,
        "ServerKey": own.key,
        "HashedPassword": os.urandom(_PASSWORD_HASH),
        "ListenIP": address,
        "PortsUDP": "",
        "Proto": {"OpenVPN": {"Enabled": False}, "SSTP": {"Enabled": False}},
        **{f"Tls_Disable1_{minor}": True for minor in (0, 1)},
        "UseKeepConnect": False,
        **{f"Disable{what}": True for what in ("NatTraversal", "IPv6Listener", "JsonRpcWebApi", "CoreDumpOnUnix")},
        "DisableGetHostNameWhenAcceptTcp": True,
        **{f"Enable{what}": False for what in ("VpnAzure", "VpnOverDns", "VpnOverIcmp")},
        "NoHighPriorityProcess": True,
        "NoLinuxArpFilter": True,
        "DontBackupConfig": True,
        "AutoSaveConfigSpan": 3600,
    }


def _hub(side: int, server: str, own: Identity, peer: bytes) -> Mapping[str, Value]:
    """The virtual switch: it looks into frames only to make TCP's segments fit, and polls nobody."""
    quiet = ("NoArpPolling", "NoIPv6AddrPolling", "NoIpTable", "NoEnum", "DisableUdpAcceleration", "DisableHttpParsing")
    policy: Mapping[str, Value] = {"Access": True, "TimeOut": _SILENCE, "MaxConnection": 1}
    users: Mapping[str, Value] = {USER: {"AuthType": _USER_CERTIFICATE, "AuthUserCert": peer, "Policy": policy}}
    return {
        "Online": True,
        "HashedPassword": os.urandom(_PASSWORD_HASH),
        "SecurePassword": os.urandom(_PASSWORD_HASH),
        "Option": {"AdjustTcpMssValue": _MSS, **{name: True for name in quiet}},
        "LogSetting": {"SavePacketLog": False, "SaveSecurityLog": False},
        "SecureNAT": {"Disabled": True},
        "CascadeList": {"Cascade0": _cascade(server, own, peer)} if side == 1 else {},
        "SecurityAccountDatabase": {"UserList": users if side == 0 else {}},
    }


def _cascade(server: str, own: Identity, peer: bytes) -> Mapping[str, Value]:
    """The connection of side 1 to side 0: one TLS connection, so that frames stay in order."""
    option: Mapping[str, Value] = {
        **{"AccountName": HUB, "Hostname": server, "Port": PORT, "HubName": HUB, "MaxConnection": 1},
        **{"UseEncrypt": True, "UseCompress": False, "NoUdpAcceleration": True, "DisableQoS": True},
    }
    identity: Mapping[str, Value] = {
        **{"AuthType": _CLIENT_CERTIFICATE, "Username": USER},
        **{"ClientCert": own.certificate, "ClientKey": own.key},
    }
    trust: Mapping[str, Value] = {"CheckServerCert": True, "ServerCert": peer}
    return {"Online": True, **trust, "Policy": {"Access": True}, "ClientOption": option, "ClientAuth": identity}


def _declared(name: str, values: Mapping[str, Value]) -> Iterator[str]:
    yield f"declare {name}"
    yield "{"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _declared(key, value)
        else:
            yield _item(key, value)
    yield "}"


def _item(key: str, value: bool | int | str | bytes) -> str:
    """One line. An empty text is a `$`; texts here have no spaces, which the format would write in another way."""
    if isinstance(value, bool):
        return f"bool {key} {str(value).lower()}"
    if isinstance(value, int):
        return f"uint {key} {value}"
    if isinstance(value, bytes):
        return f"byte {key} {base64.b64encode(value).decode()}"
    return f"string {key} {value or '$'}"
