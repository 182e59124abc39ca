"""nftables in the network namespace of a host."""

from __future__ import annotations

import subprocess

from wherry.base.errors import Code, Failed, Refused
from wherry.fabric import namespaces

_SECONDS = 20


def nft(netns: str, *words: str, text: str = "") -> str:
    """What `nft WORDS` prints, given `text`. UNSUPPORTED when there is no such program, or the kernel refuses."""

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["nft", *words], input=text, capture_output=True, text=True, timeout=_SECONDS, check=False
        )

    try:
        done = namespaces.inside(netns, run)
    except FileNotFoundError:
        raise _unsupported("there is no program nft") from None
    except subprocess.TimeoutExpired:
        raise Failed(Code.TIMED_OUT, "nft did not end", f"{_SECONDS} s in {netns}", "wherry doctor") from None
    if done.returncode:
        raise _unsupported(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit {done.returncode}")
    return done.stdout


def _unsupported(why: str) -> Refused:
    return Refused(Code.UNSUPPORTED, "nftables do not work for bridges here", why, "make setup")
