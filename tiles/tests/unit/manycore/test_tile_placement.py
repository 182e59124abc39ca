"""The rule for the tile process that should be elsewhere, with its bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wherry_tiles.manycore.placement import MESSAGE, MIN_GAIN, Tile, choose_move, hops, loss

CPUS = {0: 2.0, 1: 2.0}


def tiles(*processes: int | None) -> list[Tile]:
    """Two on each host."""
    return [Tile(number, number // 2, process) for number, process in enumerate(processes)]


def test_who_talks_much_goes_to_the_other() -> None:
    move = choose_move(tiles(1, None, 2, 3), {}, {(1, 2): 0.5 / MESSAGE, (2, 1): 0.2 / MESSAGE}, CPUS)
    assert move and move.process == 2 and move.tile == 1 and abs(move.gain - 0.7) < 1e-9


def test_little_talk_moves_nobody() -> None:
    assert choose_move(tiles(1, None, 2, None), {}, {(1, 2): 0.9 * MIN_GAIN / MESSAGE}, CPUS) is None


def test_a_gain_of_exactly_the_least_is_enough() -> None:
    move = choose_move(tiles(1, None, 2, None), {}, {(1, 2): MIN_GAIN / MESSAGE}, CPUS)
    assert move and move.gain == MIN_GAIN


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
    """A process whose load was not measured yet, and a host whose CPUs are unknown."""
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
    assert move.gain >= MIN_GAIN


def mesh(*processes: int | None) -> list[Tile]:
    """Tiles of one host on a mesh of three columns."""
    return [Tile(number, 0, process, (number % 3, number // 3)) for number, process in enumerate(processes)]


HOP = 100e-6


def test_who_talks_much_is_moved_near_on_a_mesh() -> None:
    """From four hops to one, with the numbers by which it was decided."""
    corners = mesh(1, None, None, None, 3, None, None, None, 2)
    talk = {(1, 2): 1000.0, (2, 1): 1000.0, (3, 1): 10.0}
    move = choose_move(corners, {}, talk, CPUS, hop=HOP)
    assert move and move.process in (1, 2) and abs(move.gain - 0.6) < 0.01
    after = {tile.process: tile for tile in corners} | {move.process: corners[move.tile]}
    assert hops(after[1], after[2]) == 1
    assert move.why == f"2000 messages a second with process {3 - move.process}, 4 hops away, then 1 hop away"


def test_little_talk_on_a_mesh_moves_nobody() -> None:
    corners = mesh(1, None, None, None, None, None, None, None, 2)
    assert choose_move(corners, {}, {(1, 2): 300.0}, CPUS, hop=HOP) is None
    assert choose_move(mesh(1, 2, None), {}, {(1, 2): 9000.0}, CPUS, hop=HOP) is None, "there is nothing nearer"


def test_without_a_mesh_no_tile_of_a_host_is_better_than_another() -> None:
    assert choose_move([Tile(0, 0, 1), Tile(1, 0, None), Tile(2, 0, 2)], {}, {(1, 2): 1e6}, CPUS) is None


def test_another_host_is_farther_than_the_mesh_is_wide() -> None:
    """A hop of 1 us: crossing to the other host costs more than five hops there."""
    places = [Tile(0, 0, 1, (0, 0)), *(Tile(n, 1, 2 if n == 6 else None, (n - 1, 0)) for n in range(1, 7))]
    move = choose_move(places, {}, {(1, 2): 0.5 / MESSAGE}, {}, hop=1e-6)
    assert move and (move.process, move.tile) == (1, 5)
    assert "on another host, then 1 hop away" in move.why


def test_a_move_off_a_crowded_host_says_what_that_lacks() -> None:
    move = choose_move(tiles(1, 2, None, None), {1: 1.8, 2: 1.0}, {}, CPUS)
    assert move and move.why == "its host lacks 0.8 CPUs"
