"""The client's part of the handshake with a node's agent, and the sealed frames after it.

The formats are those of native/include/wherry/handshake.h and seal.h. Invariant: an answer of the agent counts only
after it has proved that it has the node's key, and a frame counts only when its tag is right.
"""

from __future__ import annotations

import hmac
import os
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from wherry.model.records import AGENT_VERSION

HEADER = struct.Struct(">cI")
"""Type and length of a frame; it is authenticated with the payload."""
TAG = 16
"""Bytes after the payload of a sealed frame."""
_NONCE = 32
_CHALLENGE = 1 + _NONCE
_FRAMES_MAX = 1 << 48


class Untrusted(Exception):
    """The other side is not the node, or not of this version. The text is the reason."""


class Seal:
    """One direction of a session."""

    def __init__(self, key: bytes) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._count = 0

    def close(self, kind: bytes, payload: bytes) -> bytes:
        """The whole frame."""
        header = HEADER.pack(kind, len(payload))
        return header + self._cipher.encrypt(self._nonce(), payload, header)

    def open(self, header: bytes, rest: bytes) -> bytes:
        """The payload of a frame; `rest` follows its header. Untrusted for a frame that is not the node's."""
        try:
            return self._cipher.decrypt(self._nonce(), rest, header)
        except InvalidTag:
            raise Untrusted("it sent a frame that is not the node's") from None

    def _nonce(self) -> bytes:
        if self._count >= _FRAMES_MAX:
            raise Untrusted("the session has had too many frames")
        self._count += 1
        return struct.pack(">4xQ", self._count - 1)


@dataclass(frozen=True)
class Session:
    """The results of one handshake: the client's answer, the proof that the agent must give, both directions."""

    answer: bytes
    expected: bytes
    to_agent: Seal
    to_client: Seal

    def require(self, proof: bytes) -> None:
        """Untrusted when the agent's proof is wrong."""
        if not hmac.compare_digest(self.expected, proof):
            raise Untrusted("it does not know the node's key")


def answer(key: str, challenge: bytes) -> Session:
    """Answers an agent's challenge with a new nonce. Untrusted when the agent speaks another version."""
    if len(challenge) != _CHALLENGE or challenge[0] != AGENT_VERSION:
        what = f"it speaks another version of the agent's protocol than {AGENT_VERSION}"
        raise Untrusted(f"{what}: wherry down NAME, then wherry up FILE")
    nonce = os.urandom(_NONCE)

    def derive(info: str) -> bytes:
        kdf = HKDF(SHA256(), length=32, salt=challenge[1:] + nonce, info=f"wherry {AGENT_VERSION} {info}".encode())
        return kdf.derive(key.encode())

    return Session(
        answer=bytes([AGENT_VERSION]) + nonce + derive("client proof"),
        expected=derive("agent proof"),
        to_agent=Seal(derive("client to agent")),
        to_client=Seal(derive("agent to client")),
    )
