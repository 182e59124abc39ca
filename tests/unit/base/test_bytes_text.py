"""Words and variables of programs as text, and back."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from wherry.base.bytes_text import is_text, to_bytes, to_native, to_text


@given(st.binary(max_size=12))
def test_every_word_comes_back(word: bytes) -> None:
    native = os.fsdecode(word)
    text = to_text(native)
    assert to_bytes(text) == word and to_native(text) == native
    text.encode()  # JSON, databases


@given(st.text(max_size=12))
def test_text_is_itself_but_for_the_characters_that_stand_for_bytes(word: str) -> None:
    if not any("\uef80" <= character <= "\uefff" for character in word):
        assert to_text(word) == word and to_bytes(word) == word.encode() and is_text(word)


def test_bytes_that_are_no_utf_8() -> None:
    native = os.fsdecode(b"caf\xe9")
    assert to_text(native) == "caf\uefe9" and not is_text(native)
    assert to_text("\uef80") == "\uefee\uefbe\uef80", "the bytes of a character that stands for one"
