"""The files of SoftEther's servers: ports, trusted certificates, and no server on the Internet."""

from __future__ import annotations

import base64
import re

import pytest

from wherry.fabric import softether_config
from wherry.fabric.softether_config import Identity

ADDRESSES = ("100.64.3.1", "100.64.3.2")
OWN = [Identity(b"certificate of 0", b"key of 0"), Identity(b"certificate of 1", b"key of 1")]


def file(side: int) -> str:
    return softether_config.text(side, "s1", ADDRESSES, OWN[side], OWN[1 - side].certificate)


def stored(text: str, key: str) -> list[bytes]:
    return [base64.b64decode(found) for found in re.findall(rf"byte {key} (\S+)", text)]


def test_only_side_0_listens_and_side_1_connects_to_it() -> None:
    assert "declare Listener0" in file(0) and "uint Port 5555" in file(0) and "declare Cascade0" not in file(0)
    assert "declare Listener0" not in file(1) and f"string Hostname {ADDRESSES[0]}" in file(1)
    assert [re.findall(r"string ListenIP (\S+)", file(side)) for side in (0, 1)] == [[one] for one in ADDRESSES]
    assert "bool UseEncrypt true" in file(1)


def test_each_side_trusts_the_other_certificate_alone() -> None:
    assert stored(file(0), "AuthUserCert") == [OWN[1].certificate] and "bool CheckServerCert true" in file(1)
    assert stored(file(1), "ServerCert") == [OWN[1].certificate, OWN[0].certificate], "its own, and the other's"
    assert OWN[0].key not in stored(file(1), r"\w*Key") and OWN[1].key not in stored(file(0), r"\w*Key")


@pytest.mark.parametrize("side", [0, 1])
def test_no_server_on_the_internet_is_asked_and_nobody_has_a_password(side: int) -> None:
    text = file(side)
    assert re.search(r"declare DDnsClient\n{\nbool Disabled true\n}", text)
    for line in (
        *("DisableNatTraversal true", "UseKeepConnect false", "EnableVpnAzure false", "EnableVpnOverDns false"),
        *("EnableVpnOverIcmp false", "DisableJsonRpcWebApi true", "NoUdpAcceleration true"),
    ):
        assert side == 0 and line.startswith("NoUdp") or f"bool {line}\n" in text, line
    assert re.search(r"string PortsUDP \$\n", text) and text.count("bool Enabled true") == (1 if side == 0 else 0)
    hashes = stored(text, "HashedPassword") + stored(file(side), "HashedPassword") + stored(text, "SecurePassword")
    assert len(set(hashes)) == 5 and all(len(each) == 20 for each in hashes)


def test_blocks_are_closed() -> None:
    assert file(1).count("{\n") == file(1).count("}\n") and file(1).startswith("declare root\n{\n")
