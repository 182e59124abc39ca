"""`kill -9` of a daemon under load, at random moments, again and again."""

from __future__ import annotations

import os

import pytest

from names import own_name
from service_load import kill_again_and_again

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon of an instance is root's")


@pytest.mark.timeout(1800)
@pytest.mark.thorough
def test_no_accepted_operation_is_lost_over_twenty_kills() -> None:
    accepted = kill_again_and_again(own_name("tkl9"), 20, 8, 20, print)
    assert len(accepted.operations) > 100
