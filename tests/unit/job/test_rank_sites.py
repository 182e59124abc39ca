"""The map of ranks to sites in words, and as ranks read it."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from wherry.job import rank_sites
from wherry.job.rank_sites import RankSites, site_numbers, site_runs


@given(st.lists(st.sampled_from(["north", "south", "west"]), min_size=1, max_size=50))
def test_runs_say_which_ranks_are_together(sites: list[str]) -> None:
    numbers = site_numbers(site_runs(sites))
    assert len(numbers) == len(sites)
    assert len(set(zip(numbers, sites, strict=True))) == len(set(sites)) == len(set(numbers))
    assert site_runs(numbers) == site_runs(sites)


def test_a_map_as_the_library_reads_it() -> None:
    place = RankSites(3, (0, 1, 258)).place()
    assert place[:8] == bytes([3, 0, 0, 0, 0, 0, 0, 0]) and place[16:] == bytes([0, 0, 1, 0, 2, 1])
    assert len({RankSites(epoch, (0, site)).place()[8:16] for epoch in range(8) for site in range(8)}) == 64


def test_a_process_that_is_no_rank_is_not_written_to() -> None:
    for pid in (os.getpid(), 2**22 + 1):
        assert rank_sites.heard(pid, 2) is None
        assert rank_sites.tell([pid], RankSites(1, (0, 1))) == (0, 0)
        assert rank_sites.used(pid, 2) == 0
