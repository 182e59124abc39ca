"""Frames of output in a pipe, in pieces of any length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherry.job.holder_files import HEADER, STREAMS
from wherry.job.live_streams import OutputFrames

FRAMES = st.lists(st.tuples(st.sampled_from(sorted(STREAMS)), st.binary(max_size=40)), max_size=8)


@given(FRAMES, st.lists(st.integers(1, 30), min_size=1))
def test_frames_are_whole_however_the_pipe_cuts_them(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(HEADER.pack(stream, 7, len(text)) + text for stream, text in frames)
    taker, found, at, turn = OutputFrames(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found += taker.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == [(STREAMS[stream], text) for stream, text in frames]


@pytest.mark.parametrize("header", [(0, 0, 1), (3, 0, 1), (1, 0, 1 << 21)])
def test_anything_else_is_no_output(header: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no frame"):
        OutputFrames().feed(HEADER.pack(*header))
