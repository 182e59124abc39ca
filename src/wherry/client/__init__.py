"""The HTTP client that the command line and the lab use."""

from wherry.client.client import Client

__all__ = ["Client"]
