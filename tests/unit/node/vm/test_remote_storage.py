"""The directory of files on a real host, with libvirt's own test driver."""

from __future__ import annotations

from typing import Any

import pytest

from wherry.node.vm import libvirt_client
from wherry.node.vm.real import remote_storage


class Late:
    """A connection on which another instance creates the pool just after it was looked up in vain."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._looked = connection, False

    def storagePoolLookupByName(self, name: str) -> Any:  # noqa: N802 - libvirt's name
        try:
            return self._connection.storagePoolLookupByName(name)
        finally:
            if not self._looked:
                self._looked = True
                remote_storage._find_pool(self)

    def storagePoolCreateXML(self, xml: str, _flags: int) -> Any:  # noqa: N802 - libvirt's name
        return self._connection.storagePoolCreateXML(xml, 0)  # the test driver builds no directory


def test_a_pool_that_another_instance_creates_meanwhile_is_used() -> None:
    pytest.importorskip("libvirt")
    connection = libvirt_client.load().open("test:///default")
    pool = remote_storage._find_pool(Late(connection))
    try:
        assert pool.name() == "wherry"
    finally:
        pool.destroy()
        connection.close()
