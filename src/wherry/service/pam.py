"""Passwords of accounts that are users of the daemon's machine: PAM's service `wherry`, asked by a process of its own.

PAM loads modules into the process that asks. These may change its user, its signals and its memory, and wait for a
server; so the daemon asks by a child, which ends. The password goes to it by standard input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pamela  # type: ignore[import-untyped]

from wherry.base.errors import Code, LostContact, Refused

SERVICE = "wherry"
CONFIGURATION = Path("/etc/pam.d") / SERVICE
_SECONDS = 30.0
"""How long PAM may take; a module waits for about two seconds after a wrong password."""
_AT_ONCE = threading.BoundedSemaphore(4)


def require_service() -> None:
    """UNSUPPORTED when this machine has no service of PAM for Wherry: without one PAM would take the rules for all
    other programs."""
    if not CONFIGURATION.exists():
        remedy = f"printf 'auth include common-auth\\naccount include common-account\\n' >{CONFIGURATION}"
        raise Refused(Code.UNSUPPORTED, "PAM does not know Wherry", f"there is no {CONFIGURATION}", remedy)


def verified(user: str, password: str) -> bool:
    """Whether PAM takes the password, and the user may sign in at this time. UNREACHABLE when it does not answer."""
    require_service()
    command = [sys.executable, "-P", "-m", "wherry.service.pam"]
    with _AT_ONCE:
        try:
            asked = subprocess.run(
                command,
                input=json.dumps({"user": user, "password": password}).encode(),
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                cwd="/",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            why = f"it waited for {_SECONDS:g} s"
            raise LostContact(Code.UNREACHABLE, "PAM does not answer", why, "see to its modules' servers") from None
    return asked.returncode == 0


def main() -> int:
    """The child: 0 when PAM takes user and password of standard input."""
    asked = json.loads(sys.stdin.buffer.read())
    try:
        pamela.authenticate(asked["user"], asked["password"], service=SERVICE, resetcred=0, check=True)
    except pamela.PAMError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
