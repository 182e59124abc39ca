"""PAM itself, with its module for /etc/shadow, in a mount namespace that has users of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's")


def asked(directory: Path, user: str, password: str) -> int:
    """The exit code of the child that asks PAM, where the files of the directory are those of /etc."""
    binds = "; ".join(f'mount --bind "$0/{name}" "/etc/{name}"' for name in ("passwd", "shadow", "pam.d"))
    script = f'set -e; {binds}; exec "$@"'
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        script,
        str(directory),
        sys.executable,
        "-P",
        "-m",
        "wherry.service.pam",
    ]
    text = json.dumps({"user": user, "password": password})
    return subprocess.run(command, input=text, text=True, timeout=120, check=False).returncode


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Ann has a password, and Bob's account has ended."""
    hashed = subprocess.run(["openssl", "passwd", "-6", "four words"], capture_output=True, text=True, check=True)
    text = hashed.stdout.strip()
    users = "".join(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in (("root", 0), ("ann", 4001), ("bob", 4002)))
    (tmp_path / "passwd").write_text(users)
    (tmp_path / "shadow").write_text(f"root:*:19000::::::\nann:{text}:19000::::::\nbob:{text}:19000:::::1:\n")
    (tmp_path / "shadow").chmod(0o600)
    rules = tmp_path / "pam.d"
    rules.mkdir()
    (rules / "wherry").write_text("auth required pam_unix.so nodelay\naccount required pam_unix.so\n")
    (rules / "other").write_text("auth required pam_permit.so\naccount required pam_permit.so\n")
    return tmp_path


@pytest.mark.parametrize(
    ("user", "password", "taken"),
    [
        ("ann", "four words", True),
        ("ann", "five words", False),
        ("ann", "", False),
        ("bob", "four words", False),
        ("eve", "four words", False),
        ("root", "", False),
    ],
)
def test_pam_takes_the_machines_password(users: Path, user: str, password: str, taken: bool) -> None:
    assert (asked(users, user, password) == 0) is taken
