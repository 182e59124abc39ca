"""Which tile process should be elsewhere: the rule, with its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wherry.schedule.tile_placement import LEAST, MESSAGE, Tile, choose_move, loss

CPUS = {0: 2.0, 1: 2.0}


def tiles(*processes: int | None) -> list[Tile]:
    """Two on each host."""
    return [Tile(number, number // 2, process) for number, process in enumerate(processes)]


def test_who_talks_much_goes_to_the_other() -> None:
    move = choose_move(tiles(1, None, 2, 3), {}, {(1, 2): 0.5 / MESSAGE, (2, 1): 0.2 / MESSAGE}, CPUS)
    assert move and move.process == 2 and move.tile == 1 and abs(move.gain - 0.7) < 1e-9


def test_little_talk_moves_nobody() -> None:
    assert choose_move(tiles(1, None, 2, None), {}, {(1, 2): 0.9 * LEAST / MESSAGE}, CPUS) is None


def test_a_gain_of_exactly_the_least_is_enough() -> None:
    move = choose_move(tiles(1, None, 2, None), {}, {(1, 2): LEAST / MESSAGE}, CPUS)
    assert move and move.gain == LEAST


def test_of_equal_gains_the_first_is_taken_and_a_larger_one_is_found() -> None:
    """Process 2 gains 0.3 by going to 1 and loses its pair with 3, which gains 0.5 by going to 2."""
    equal = choose_move(tiles(1, None, 2, None), {}, {(1, 2): 0.5 / MESSAGE}, CPUS)
    assert equal and (equal.process, equal.tile) == (1, 3)
    places = [Tile(0, 0, 1), Tile(1, 0, None), Tile(2, 1, 2), Tile(3, 1, None), Tile(4, 2, 3), Tile(5, 2, None)]
    move = choose_move(places, {}, {(1, 2): 0.3 / MESSAGE, (2, 3): 0.5 / MESSAGE}, CPUS)
    assert move and (move.process, move.tile) == (2, 5) and abs(move.gain - 0.5) < 1e-9


def test_a_pair_cannot_lose_more_than_one_process() -> None:
    assert loss(tiles(1, None, 2, None), {}, {(1, 2): 50 / MESSAGE}, CPUS) == 1
    assert loss(tiles(1, 2, 3, 4), {}, {(1, 3): 50 / MESSAGE, (4, 2): 50 / MESSAGE}, CPUS) == 2


def test_what_is_not_known_loses_nothing() -> None:
    """A process whose load was not measured yet, and a host whose CPUs were not told."""
    assert loss(tiles(1, 2), {1: 1.8}, {}, CPUS) == 0
    assert loss(tiles(1, 2), {1: 9.0}, {}, {}) == 0


def test_the_crowded_host_gives_one_away() -> None:
    move = choose_move(tiles(1, 2, None, None), {1: 1.8, 2: 1.0}, {}, CPUS)
    assert move and move.tile == 2 and abs(move.gain - 0.8) < 1e-9


def test_talk_holds_together_what_a_crowd_would_part() -> None:
    assert choose_move(tiles(1, 2, None, None), {1: 1.5, 2: 1.0}, {(1, 2): 1 / MESSAGE}, CPUS) is None


def test_who_rests_stays() -> None:
    talk = {(1, 2): 1 / MESSAGE}
    assert choose_move(tiles(1, None, 2, None), {}, talk, CPUS, frozenset({1, 2})) is None


@given(
    places=st.permutations([1, 2, 3, None, None, None]),
    load=st.dictionaries(st.integers(1, 3), st.floats(0, 4)),
    talk=st.dictionaries(st.tuples(st.integers(1, 3), st.integers(1, 3)), st.floats(0, 20000)),
)
def test_a_move_gains_what_it_says(
    places: list[int | None], load: dict[int, float], talk: dict[tuple[int, int], float]
) -> None:
    before = [Tile(number, number // 3, process) for number, process in enumerate(places)]
    move = choose_move(before, load, talk, CPUS)
    if move is None:
        return
    assert before[move.tile].process is None
    after = [
        Tile(
            t.number,
            t.host,
            move.process if t.number == move.tile else None if t.process == move.process else t.process,
        )
        for t in before
    ]
    assert abs(loss(before, load, talk, CPUS) - loss(after, load, talk, CPUS) - move.gain) < 1e-6
    assert move.gain >= LEAST
