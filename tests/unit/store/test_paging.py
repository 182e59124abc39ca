"""Lists in pages: every row once, whatever comes and goes meanwhile, on both databases and by an index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from test_store import cluster, node

from wherry.model.paging import Page, Wanted, numbered, sliced
from wherry.model.records import Move, Operation, OperationState, Phase
from wherry.store import Store, tables
from wherry.store.address import Address


@pytest.fixture
def store(address: Address) -> Store:
    return Store(address)


def operation(id: str, uid: int = 0, owner: int | None = None, running: bool = False) -> Operation:
    state = OperationState.RUNNING if running else OperationState.DONE
    return Operation(id=id, kind="up", target="a", state=state, created=1.0, uid=uid, owner=owner)


def walk(page: Callable[[Wanted], Page[Any]], limit: int, newest: bool = False) -> list[list[Any]]:
    """The pages of a list, in the order in which they were asked for."""
    found, wanted = list[list[Any]](), Wanted(limit, newest=newest)
    while True:
        one = page(wanted)
        found.append(one.rows)
        if one.next is None:
            return found
        wanted = Wanted(limit, one.next, newest)


def ids(pages: list[list[Any]]) -> list[list[str]]:
    return [[one.id for one in page] for page in pages]


def test_both_ways_in_the_order_of_the_list(store: Store) -> None:
    for name in "edcba":
        store.put_operation(operation(name))
    assert ids(walk(store.pages.operations, 2)) == [["e", "d"], ["c", "b"], ["a"]]
    assert ids(walk(store.pages.operations, 2, newest=True)) == [["b", "a"], ["d", "c"], ["e"]]
    assert ids(walk(store.pages.operations, 5)) == [["e", "d", "c", "b", "a"]], "no page without rows"
    assert walk(store.pages.moves, 2) == [[]]


def test_rows_that_come_and_go_shift_nothing(store: Store) -> None:
    names = [f"c{number}" for number in range(6)]
    for name in names:
        store.put_cluster(cluster().model_copy(update={"name": name}))
    first = store.pages.clusters(Wanted(3))
    store.drop_cluster("c0")
    store.drop_cluster("c4")
    store.put_cluster(cluster().model_copy(update={"name": "b9"}))
    assert first.next is not None
    second = store.pages.clusters(Wanted(3, first.next))
    assert [one.name for one in (*first.rows, *second.rows)] == ["c0", "c1", "c2", "c3", "c5"]


def test_nodes_by_cluster_and_index(store: Store) -> None:
    for name, uid in (("a", 7), ("b", 8)):
        store.put_cluster(cluster().model_copy(update={"name": name, "owner_uid": uid}))
        for index in range(12):
            put = {"name": f"{name}-{index}", "cluster": name, "index": index}
            store.put_node(node(0).model_copy(update=put))
    everyone = [one.name for page in walk(store.pages.nodes, 5) for one in page]
    assert everyone == [f"{name}-{index}" for name in "ab" for index in range(12)]
    mine = walk(lambda wanted: store.pages.nodes(wanted, uids={8, 9}), 5)
    assert [one.name for page in mine for one in page] == everyone[12:] and list(map(len, mine)) == [5, 5, 2]
    assert [one.name for one in store.pages.nodes(Wanted(1), "b").rows] == ["b-0"]
    assert (
        [one.name for one in store.pages.clusters(Wanted(), {7}).rows] == ["a"] == [c.name for c in store.clusters([7])]
    )


def test_pages_of_one_user_are_full(store: Store) -> None:
    """Others' rows in between neither shorten a page nor end the walk."""
    for number in range(20):
        mine = {"uid": 7} if number % 5 == 0 else {"uid": 1, "owner": 7} if number % 5 == 1 else {"uid": 1}
        store.put_operation(operation(f"{number:02}", running=number < 12, **mine))
    pages = walk(lambda wanted: store.pages.operations(wanted, uids={7}), 3)
    assert ids(pages) == [["00", "01", "05"], ["06", "10", "11"], ["15", "16"]]
    pages = walk(lambda wanted: store.pages.operations(wanted, running=True, uids={7}), 10)
    assert ids(pages) == [["00", "01", "05", "06", "10", "11"]]
    for number in range(9):
        store.put_move(
            Move(id=f"{number}", node="n", cluster="c", source="a", destination="b", phase=Phase.DONE, created=number)
        )
    kept = walk(lambda wanted: store.pages.moves(wanted, lambda move: move.created % 4 == 0), 2)
    assert ids(kept) == [["0", "4"], ["8"]]


def test_lists_by_number_and_lists_read_whole() -> None:
    number = int
    assert numbered([1, 2, 3], Wanted(2), number) == Page([1, 2], (2,))
    assert numbered([1, 2, 3], Wanted(2, newest=True), number) == Page([2, 3], (2,))
    assert numbered([1, 2], Wanted(2), number) == Page([1, 2])
    assert walk(lambda wanted: sliced([1, 2, 3, 4, 5], wanted, lambda one: (one,)), 2) == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize(
    ("table", "index"),
    [
        ("clusters", "ix_clusters_uid_name"),
        ("nodes", "ix_nodes_cluster_position"),
        ("operations", "ix_operations_number"),
    ],
)
def test_a_page_is_found_by_an_index(store: Store, table: str, index: str) -> None:
    asked = list[tuple[str, Any]]()

    @sa.event.listens_for(store.database.engine, "before_cursor_execute")
    def _note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    pages = {
        "clusters": lambda: store.pages.clusters(Wanted(2, ("a",)), {7}),
        "nodes": lambda: store.pages.nodes(Wanted(2, ("a", 1))),
        "operations": lambda: store.pages.operations(Wanted(2, (1,), newest=True)),
    }
    pages[table]()
    statement, parameters = asked[-1] if not asked[-1][0].startswith(("COMMIT", "ROLLBACK")) else asked[-2]
    with store.database.read() as connection:
        if store.database.postgresql:  # an empty table is read whole otherwise
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN " if store.database.postgresql else "EXPLAIN QUERY PLAN "
        plan = " ".join(map(str, connection.exec_driver_sql(explain + statement, parameters).all()))
    assert index in plan, plan


def test_columns_of_users_are_filled_for_rows_that_were_there(address: Address) -> None:
    store = Store(address)
    store.put_cluster(cluster().model_copy(update={"owner_uid": 7}))
    store.put_operation(operation("one", 3, 7))
    store.database.downgrade("0009")
    store.database.upgrade("0010")
    with store.database.read() as connection:
        assert connection.scalar(sa.select(tables.clusters.c.uid)) == 7
        assert connection.scalar(sa.select(tables.operations.c.owner)) == 7
