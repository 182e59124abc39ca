"""Names that the contract tests and their fixtures share. (`conftest` would be ambiguous: other folders have one.)"""

from __future__ import annotations

from names import own_name
from wherry.base.paths import Instance

INSTANCE = Instance(own_name("tcon"))
IMAGE = INSTANCE.name
MISSING = "/bin/sh"
"""A file that exists everywhere and that host b1 is declared to lack."""
