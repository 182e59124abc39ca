"""The ways to join sites. Without pydantic, as the command line names them in its options."""

from __future__ import annotations

from typing import Literal

Overlay = Literal["none", "openvpn", "wireguard", "softether"]
"""The VPN between the gateways of two sites."""
