"""Fixtures of several files of unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from databases import compile_once
from descriptors import thousand_descriptors
from rest_service import http, service

from wherry.service import passwords
from wherry.store.address import Address, database_url

__all__ = ["compile_once", "http", "service", "thousand_descriptors"]


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """A new, empty database of either kind."""
    if request.param == "sqlite":
        return tmp_path / "state" / "wherry.db"
    return database_url(request.getfixturevalue("postgresql").new_schema())


@pytest.fixture(scope="session", autouse=True)
def cheap_passwords() -> Iterator[None]:
    """Hashes of passwords take neither 64 MiB nor a tenth of a second. The real ones are in `test_account_commands`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        yield
