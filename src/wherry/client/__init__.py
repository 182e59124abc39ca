"""The HTTP client of the command line and the lab."""

from wherry.client.client import Client

__all__ = ["Client"]
