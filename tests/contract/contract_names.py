"""Names of the contract tests and their fixtures. (`conftest` would be ambiguous: other directories have one.)"""

from __future__ import annotations

import os

from names import own_name
from wherry.base.paths import Instance

INSTANCE = Instance(own_name("tcon"))
IMAGE = INSTANCE.name
MISSING = "/bin/sh"
"""A file that exists everywhere and that host b1 is declared to lack."""
ENGINE_MOVES = int(os.environ.get("WHERRY_ENGINE_MOVES", "3"))
"""Moves of a node with the same processes; more of them, and every cell of the matrix, by `make test-engine`."""
WHOLE_MATRIX = ENGINE_MOVES > 3
