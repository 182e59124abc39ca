"""The parsers of input from unknown senders: the header with the token, and addresses."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.base.ids import new_id
from wherry.service.authentication import parsed
from wherry.service.rate_limit import source_of

SECRET = "0123456789abcdef" * 4
TOKEN = re.compile(rb"[Bb]earer wt-[0-9a-z]{1,20}\.[0-9a-f]{64}")


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=3))
def test_any_headers_give_a_token_or_none(values: list[bytes]) -> None:
    found = parsed(values)
    assert (found is not None) == (len(values) == 1 and bool(TOKEN.fullmatch(values[0])))


@settings(max_examples=examples(300), deadline=None)
@given(st.from_regex(TOKEN, fullmatch=True), st.integers(0, 120), st.integers(0, 255))
def test_a_token_with_one_byte_changed_is_that_token_or_none(value: bytes, at: int, byte: int) -> None:
    assert parsed([value]) is not None
    changed = bytearray(value)
    changed[at % len(changed)] = byte
    found = parsed([bytes(changed)])
    if found:
        assert len(found[1]) == 64 and found[0].startswith("wt-")
        assert changed.endswith(f"earer {found[0]}.{found[1]}".encode())


def test_what_is_made_is_parsed() -> None:
    id = new_id("wt")
    assert parsed([f"Bearer {id}.{SECRET}".encode()]) == (id, SECRET)
    for wrong in (
        f"Basic {id}.{SECRET}",
        f"Bearer  {id}.{SECRET}",
        f"Bearer {id}.{SECRET}\n",
        f"Bearer {id}.{SECRET[1:]}",
    ):
        assert parsed([wrong.encode()]) is None
    assert parsed([f"Bearer {id}.{SECRET}".encode()] * 2) is None


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=60))
def test_any_address_is_one_source(text: str) -> None:
    assert isinstance(source_of(text), str)


def test_sources() -> None:
    assert source_of("192.0.2.7") == source_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:2") == "2001:db8::/64"
    assert source_of("fe80::1%eth0") == "fe80::/64"
