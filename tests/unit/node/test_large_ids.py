"""Users with large numbers, as directory services give them: 32 bits without a sign."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from wherry.node.as_user import as_user
from wherry.service.credentials import peer_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
USER, GROUP = 3_000_000_000, 4_000_000_000


def test_a_peer_with_a_large_number_is_itself() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"\0wherry-test-{os.getpid()}"
        listener.bind(address)
        listener.listen()
        listener.settimeout(30)
        program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + sys.argv[1]); s.recv(1)"
        words = ["/usr/bin/python3", "-c", program, address[1:]]
        with subprocess.Popen(words, user=USER, group=GROUP, extra_groups=[GROUP], cwd="/"):
            connection, _ = listener.accept()
            with connection:
                peer = peer_of(connection)
    assert (peer.uid, peer.gid, peer.groups) == (USER, GROUP, {GROUP})
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        top, owner = Path(made), peer.owner(None)
        top.chmod(0o755)
        for name, user in (("theirs", USER), ("roots", 0)):
            (top / name).touch(0o600)
            os.chown(top / name, user, user)
        assert as_user(owner, lambda: (top / "theirs").read_bytes()) == b""
        with pytest.raises(PermissionError):
            as_user(owner, lambda: (top / "roots").read_bytes())
