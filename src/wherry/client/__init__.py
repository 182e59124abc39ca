"""The HTTP client of the command line and the lab."""

from wherry.client.client import Client
from wherry.client.reader import Reader, Row, existing, images

__all__ = ["Client", "Reader", "Row", "existing", "images"]
