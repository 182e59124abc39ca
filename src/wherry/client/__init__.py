"""The HTTP client of the command line and the lab."""

from wherry.client.client import Client
from wherry.client.reader import Reader, existing, images
from wherry.client.row import Row

__all__ = ["Client", "Reader", "Row", "existing", "images"]
