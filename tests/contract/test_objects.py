"""Kernel objects of a container's processes that a move carries or refuses; the program is in tests/objects."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import struct
import time

import pytest
from contract_names import WHOLE_MATRIX
from node_objects import Objects

import waiting
from wherry.base.errors import Failed, Refused
from wherry.fabric.cgroup import Cgroup

pytestmark = [
    pytest.mark.parametrize("nodes", ["container"], indirect=True),
    pytest.mark.skipif(not shutil.which("gcc"), reason="there is no compiler for the programs that hold the objects"),
]


TIMERS = (
    *("mono20", "mono20b", "mono100", "mono1000", "mono1", "real20", "real100", "real1000", "boot20", "boot100"),
    *("mono4300abs", "once_mono", "once_abs", "once_real_abs", "once_cancel", "expired", "disarmed", "read"),
    *("itimer_real", "itimer_virtual", "itimer_prof", "itimer_pending", "alarm"),
    *("posix_mono", "posix_real", "posix_boot", "posix_cpu", "posix_thread_cpu", "posix_none"),
    *("posix_pending", "clocks"),
)


CARRIED = (
    *("pending", "scheduling", "affinity", "ionice", "slack", "limits", "prctl", "subreaper", "stack", "shared"),
    *("advice", "membarrier", "pipe", "pipe_full", "fifo", "eventfd", "shm", "shm_removed", "shm_unattached", "sem"),
    *("msg", "shm_posix", "deleted", "memfd", "append", "directory", "signalfd", "inotify", "inotify_shared"),
    *("tmpfile", "epoll", "unix_stream", "unix_dgram", "unix_packets", "unix_rights", "udp", "tcp"),
    *("tcp_half_closed", "tcp_unsent", "tcp_six", "options", "fanotify", "pidfd", "raw", "packet", "netlink"),
    *("proc_file", "device", "fanotify_mark", "socket_filter", "sem_used", "options_in_messages", "held_in_message"),
)
LOST = {
    "cpu_time": "it began anew",
    "sem_undo_threads": "its end subtracts nothing",
    "udp_unread": "temporarily unavailable",
}
"""Objects that nobody sees, or that live too briefly to be refused, and the finding of their program after a move."""
TAKEN_BACK = {"timer_behind_message": "timerfd", "tcp_backlog": "has not accepted"}
"""Objects that are seen only when the node is frozen."""
OPTIONAL = ("io_uring", "userfaultfd", "perf", "landlock", "ktls", "mce_kill", "dnotify")
"""Kinds that a kernel may be built or configured without."""
REFUSED = {
    "io_uring": "io_uring",
    "userfaultfd": "userfaultfd",
    "perf": "perf_event",
    "landlock": "landlock",
    "pipe_packets": "packet mode",
    "mq": "message queue /a-queue",
    "inotify_queued": "unread events",
    "eventfd_semaphore": "semaphore mode",
    "multicast": "239.1.2.3",
    "multicast_six": "ff05::1234",
    "ktls": "encrypts",
    "posix_thread": "SIGEV_THREAD_ID",
    "sem_undo": "SEM_UNDO",
    "dnotify": "F_NOTIFY",
    "personality": "setarch",
    "mce_kill": "PR_MCE_KILL",
    "locked_onfault": "MLOCK_ONFAULT",
    "timer_in_message": "timerfd",
    "semaphore_in_message": "semaphore mode",
    "inotify_in_message": "inotify",
    "terminal_in_message": "a terminal",
    "file_in_message": "not the node's own",
    "socket_at_itself": "in a message at itself",
}


def test_periodic_timers_keep_ticking_after_a_move(objects: Objects) -> None:
    objects.make(*TIMERS)
    objects.move()
    assert objects.check(*TIMERS) == {}


def test_timers_keep_their_remaining_time(objects: Objects) -> None:
    objects.make(*TIMERS)
    objects.move_and_take_back()
    assert objects.check(*TIMERS) == {}


def test_kernel_objects_move_with_their_state(objects: Objects) -> None:
    objects.make(*CARRIED)
    objects.move()
    assert objects.check(*CARRIED) == {}


def test_objects_that_a_move_would_lose_are_refused_by_name(objects: Objects) -> None:
    node_under_test, group = objects.node_under_test, Cgroup(objects.node_under_test.source.cgroup)
    before = group.pids()
    for case, expected in REFUSED.items():
        if not objects.make(case, optional=OPTIONAL):
            continue
        with pytest.raises(Refused) as refusal:
            node_under_test.driver.require_movable(node_under_test.source)
        obstacle = str(refusal.value)
        assert expected in obstacle and ("(objects)" in obstacle or case.startswith("multicast")), (case, obstacle)
        assert refusal.value.next == "end that program, or wait until it is done"
        with pytest.raises(Refused, match="cannot be moved"):
            node_under_test.mover().prepare()
        assert not Cgroup(node_under_test.destination.cgroup).exists(), "nothing is made before the refusal"
        ended = set(group.pids()) - set(before)
        for pid in ended:
            os.kill(pid, signal.SIGKILL)
        waiting.until(lambda ended=ended: not set(group.pids()) & ended, "their end")
    node_under_test.driver.require_movable(node_under_test.source)


def test_what_a_move_loses_is_no_more_than_design_0002_says(objects: Objects) -> None:
    objects.make(*LOST)
    objects.move()
    found = objects.check(*LOST)
    assert {case: LOST[case] for case in found if LOST[case] in found[case]} == LOST, found


@pytest.mark.parametrize("case", TAKEN_BACK)
def test_a_move_that_cannot_carry_an_object_is_taken_back(objects: Objects, case: str) -> None:
    objects.make(case)
    with pytest.raises(Failed, match=TAKEN_BACK[case]):
        objects.move()
    assert objects.check(case) == {}


def set_clock() -> None:
    """Sets this machine's clock, a microsecond later than it is."""
    change = ctypes.create_string_buffer(256)
    struct.pack_into("@I", change, 0, 0x100)  # ADJ_SETOFFSET of struct timex, linux/timex.h
    struct.pack_into("@q", change, 80, 1)  # its microseconds
    if ctypes.CDLL(None).clock_adjtime(time.CLOCK_REALTIME, change) < 0:
        pytest.skip("this machine does not let its clock be set")


@pytest.mark.skipif(not WHOLE_MATRIX, reason="timers of other tests see that the clock is set")
@pytest.mark.parametrize("case", ["cancelled", "cancelled_periodic"])
def test_a_timer_whose_clock_was_set_is_refused_where_that_is_seen(objects: Objects, case: str) -> None:
    objects.make(case)
    set_clock()
    if case == "cancelled":
        with pytest.raises(Refused, match="whose clock was set"):
            objects.node_under_test.driver.require_movable(objects.node_under_test.source)
    else:
        objects.move()
    lost = {"cancelled_periodic": "read(2) does not report that the clock was set"}
    assert objects.check(case) == {name: lost[name] for name in (case,) if name in lost}
