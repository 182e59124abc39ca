"""Steps by allocations: which hosts join and leave, when hosts are drained, when the next one is asked for."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from properties import examples
from wherry.model.allocations import Allocation
from wherry.schedule.allocations import Steps, Terms, next_steps

TERMS = Terms(asks=True, leave=300.0, early=1800.0)
FIRST = Allocation(1, True, ("h1", "h2"), 3600.0)


def after(
    *allocations: Allocation,
    present: set[str] | None = None,
    with_nodes: set[str] | None = None,
    drained: set[str] | None = None,
    terms: Terms = TERMS,
) -> Steps:
    return next_steps(allocations, present or set(), with_nodes or set(), drained or set(), terms)


def test_hosts_join_when_their_allocation_runs() -> None:
    assert not after(Allocation(1, False)).admit
    steps = after(FIRST)
    assert steps.admit == {"h1": FIRST, "h2": FIRST} and not steps.dismiss and not steps.ask
    assert steps.drain == {"h1": (3300.0, FIRST), "h2": (3300.0, FIRST)}
    assert not after(FIRST, present={"h1", "h2"}).admit


def test_hosts_join_no_allocation_that_is_about_to_end() -> None:
    steps = after(Allocation(1, True, ("h1",), 200.0))
    assert not steps.admit and steps.release == (1,)


def test_allocation_without_end_is_never_left() -> None:
    steps = after(Allocation(1, True, ("h1",), None), present={"h1"}, with_nodes={"h1"})
    assert steps == Steps({}, {}, {}, False, ())


def test_next_one_is_asked_for_in_time_once_and_only_for_nodes() -> None:
    late = Allocation(1, True, ("h1",), 1700.0)
    assert after(late, present={"h1"}, with_nodes={"h1"}).ask
    assert not after(late, present={"h1"}).ask
    assert not after(present={"h1"}, with_nodes={"h1"}).ask  # they are lost
    assert not after(late, Allocation(2, False), present={"h1"}, with_nodes={"h1"}).ask
    assert not after(late, Allocation(2, True, ("h2",), 7200.0), present={"h1"}, with_nodes={"h1"}).ask
    assert not after(late, present={"h1"}, with_nodes={"h1"}, terms=Terms(False, 300.0, 1800.0)).ask


def test_empty_hosts_leave_before_the_end_and_the_allocation_is_given_back() -> None:
    ending = Allocation(1, True, ("h1", "h2"), 250.0)
    both, drained = {"h1", "h2"}, {"h1", "h2"}
    steps = after(ending, present=both, with_nodes={"h2"}, drained=drained)
    assert steps.dismiss == {"h1": False} and steps.release == ()
    steps = after(ending, present=both, drained=drained)
    assert steps.dismiss == {"h1": False, "h2": False} and steps.release == (1,)
    assert after(ending, present=both, drained=drained, terms=Terms(False, 300.0, 0.0)).release == ()


def test_hosts_without_allocation_leave_with_what_they_have() -> None:
    assert after(present={"h1"}, with_nodes={"h1"}).dismiss == {"h1": True}
    assert after(Allocation(1, True, ("h2",), 900.0), present={"h1", "h2"}).dismiss == {"h1": True}


def test_host_of_two_allocations_stays_until_the_later_one_ends() -> None:
    later = Allocation(2, True, ("h1",), 7200.0)
    steps = after(Allocation(1, True, ("h1",), 100.0), later, present={"h1"}, with_nodes={"h1"})
    assert steps.drain == {"h1": (6900.0, later)} and not steps.dismiss


_HOSTS = st.sets(st.sampled_from(["h1", "h2", "h3", "h4"]))
_ALLOCATIONS = st.lists(
    st.builds(
        Allocation,
        st.integers(1, 9),
        st.booleans(),
        _HOSTS.map(lambda hosts: tuple(sorted(hosts))),
        st.one_of(st.none(), st.floats(0, 9000)),
    ),
    max_size=4,
    unique_by=lambda each: each.id,
)


@given(_ALLOCATIONS, _HOSTS, _HOSTS, _HOSTS)
@settings(max_examples=examples(500))
def test_promises(found: list[Allocation], present: set[str], with_nodes: set[str], drained: set[str]) -> None:
    steps = next_steps(found, present, with_nodes & present, drained, TERMS)
    mine = {host for each in found if each.runs for host in each.hosts}
    assert steps.admit.keys() <= mine - present
    assert steps.dismiss.keys() <= present
    assert all(host not in mine for host, ended in steps.dismiss.items() if ended or host in with_nodes)
    assert steps.drain.keys() <= mine and all(seconds >= 0 for seconds, _ in steps.drain.values())
    stay = (present | steps.admit.keys()) - steps.dismiss.keys()
    assert all(not stay.intersection(each.hosts) for each in found if each.id in steps.release)
    assert not (steps.ask and any(not each.runs for each in found))
