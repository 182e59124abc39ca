"""Public keys of accounts for SSH: whose they are, and which are taken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from accounts_world import Accounts
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from rest_service import Service

from wherry.base.errors import Code, Refused
from wherry.model.accounts import Role
from wherry.service import ssh_keys
from wherry.service.ssh import host_key


def line(key: ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | dsa.DSAPrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


SMALL = line(ed25519.Ed25519PrivateKey.generate())


@pytest.fixture
def world(service: Service) -> Accounts:
    """Two users and an admin."""
    world = Accounts(service)
    world.add("ann")
    world.add("bob")
    world.add("eve", Role.ADMIN)
    return world


def test_one_has_ones_own(world: Accounts) -> None:
    answer = world.ask("ann", "POST", "/v1/ssh-keys", {"name": "laptop", "public": f"{SMALL} ann@home\n"})
    key = answer.json()
    assert (answer.status_code, key["user"], key["type"]) == (201, "ann", "ed25519")
    assert world.ask("ann", "GET", "/v1/ssh-keys").json() == [key] == world.ask("eve", "GET", "/v1/ssh-keys").json()
    assert world.ask("bob", "GET", "/v1/ssh-keys").json() == []
    assert world.ask("bob", "DELETE", "/v1/ssh-keys/laptop").json()["code"] == "NOT_FOUND"
    assert world.ask("bob", "DELETE", "/v1/ssh-keys/laptop?user=ann").status_code == 403
    again = world.ask("ann", "POST", "/v1/ssh-keys", {"name": "laptop", "public": SMALL})
    assert again.json()["code"] == "NAME_TAKEN"
    assert world.ask("bob", "POST", "/v1/ssh-keys", {"name": "x", "public": SMALL, "user": "ann"}).status_code == 403
    assert world.ask("eve", "POST", "/v1/ssh-keys", {"name": "x", "public": SMALL, "user": "ann"}).status_code == 201
    assert world.ask("bob", "DELETE", f"/v1/ssh-keys/{key['id']}").json()["code"] == "NOT_FOUND"
    assert world.ask("ann", "DELETE", "/v1/ssh-keys/laptop").json() == key
    assert [one["name"] for one in world.ask("ann", "GET", "/v1/ssh-keys").json()] == ["x"]


def test_root_names_the_user(world: Accounts) -> None:
    assert world.ask("root", "POST", "/v1/ssh-keys", {"name": "x", "public": SMALL}).json()["code"] == "USAGE"
    body = {"name": "x", "public": SMALL, "user": "nobody"}
    assert world.ask("root", "POST", "/v1/ssh-keys", body).json()["code"] == "NOT_FOUND"
    assert world.ask("root", "POST", "/v1/ssh-keys", {**body, "user": "bob"}).json()["user"] == "bob"


def test_keys_of_ec2_are_the_same(world: Accounts) -> None:
    world.ask("ann", "POST", "/v1/ssh-keys", {"name": "laptop", "public": SMALL})
    (pair,) = world.service.context.store.ec2.all(ssh_keys.KeyPair)
    assert (pair.name, pair.public) == ("laptop", SMALL) and pair.id.startswith("key-")


def test_they_are_bounded(world: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_keys, "MOST", 1)
    for name, code in (("one", None), ("two", "NO_CAPACITY")):
        answer = world.ask("ann", "POST", "/v1/ssh-keys", {"name": name, "public": SMALL}).json()
        assert answer.get("code") == code


OTHERS = {
    "short": "ssh-ed25519 AAAA",
    "cut": SMALL[:-9],
    "long": "x" * 16384,
    "ecdsa": line(ec.generate_private_key(ec.SECP256R1())),
    "small rsa": line(rsa.generate_private_key(65537, 1024)),
    "private": ed25519.Ed25519PrivateKey.generate()
    .private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    .decode(),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_texts_are_no_keys(world: Accounts, kind: str) -> None:
    answer = world.ask("ann", "POST", "/v1/ssh-keys", {"name": "x", "public": OTHERS[kind]})
    assert answer.json()["code"] == "USAGE" and OTHERS[kind] not in answer.text
    assert world.ask("ann", "GET", "/v1/ssh-keys").json() == []


def test_fingerprints_are_those_of_openssh(tmp_path: Path) -> None:
    private = host_key.private_key(tmp_path)
    assert host_key.private_key(tmp_path) == private, "it stays"
    file = tmp_path / "ssh_host_key"
    assert file.stat().st_mode & 0o777 == 0o600
    shown = subprocess.run(["ssh-keygen", "-l", "-f", file], capture_output=True, text=True, check=True).stdout
    assert host_key.fingerprint(host_key.public_key(private)) == shown.split()[1]


def test_a_damaged_host_key_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "ssh_host_key").write_text("nothing")
    with pytest.raises(Refused) as caught:
        host_key.private_key(tmp_path)
    assert caught.value.code is Code.INVALID_FILE and (tmp_path / "ssh_host_key").read_text() == "nothing"
