"""Frames and values between the daemon and agents: a sent value arrives unchanged, and anything else is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretBytes, SecretStr

from properties import examples
from wherry.fabric.host_network import HostHold, HostNetwork
from wherry.hostlink.entrance import Entrance, HostSetup
from wherry.hostlink.frames import LARGEST, Malformed, Splitter, pack
from wherry.hostlink.interface import Interface
from wherry.hostlink.values import from_plain, to_plain
from wherry.model.network import ClusterNetwork, Port
from wherry.model.records import Fetched, Node, Pin
from wherry.node.container.host import (
    Arrival,
    Channel,
    Clocks,
    ClocksAhead,
    Comparison,
    ContainerHost,
    Departure,
    FrozenState,
    HeldFile,
    HeldLocks,
    Offer,
    SocketOption,
    ThreadAttributes,
    Timer,
    UsedFile,
    Uses,
)
from wherry.node.container.memory_shortage import Shortage
from wherry.node.protocol import Placement

PROTOCOLS = (Arrival, ContainerHost, Departure, Entrance, HostHold, HostNetwork)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Whole:
    numbers: tuple[int, ...]
    pair: tuple[str, float]
    names: frozenset[str]
    by_number: Mapping[int, Color]
    maybe: bytes | None


def place() -> Placement:
    node = Node(
        name="c-0", cluster="c", index=0, kind="container", host="h1", address="10.77.1.1", mac="02:77:0a:4d:01:00",
        cpus=0.5, memory=1 << 27, state="running", pin=Pin(cpus=(0, 1)),
    )  # fmt: skip
    return Placement(node=node, host="h1", netns="/n", cgroup="w/h1/c-0", key=SecretStr("ab" * 32), user="0:0:1,2")


VALUES: tuple[tuple[Any, Any], ...] = (
    (Whole, Whole((1, 2), ("a\udcff", 0.5), frozenset("xy"), {3: Color.RED}, b"\0\xff")),
    (Whole, Whole((), ("", 1.0), frozenset(), {}, None)),
    (Placement, place()),
    (Port, Port(owner="c-0", index=0, host="h1", network=ClusterNetwork(number=1, subnet="10.77.1.0/24"),
                address="10.77.1.1", mac="02:77:0a:4d:01:00")),
    (
        Comparison,
        Comparison(
            FrozenState(
                files=(HeldFile(2, "fd/3", 5, 6, 7, 1, 0), HeldFile(2, "cwd", 5, 6, 7, 1, 0, "/a b", 9, 10**18, True)),
                locks=(HeldLocks(2, 3, "/a b", (("POSIX", "WRITE"), ("FLOCK",))),),
                threads={7: ThreadAttributes(frozenset((0, 5)), 4, 50000, 0x7F)},
                options=(SocketOption(2, 3, 6, 18, "581b0000"),),
                timers=(Timer(2, 3, 1, 0, 5, 10**9, 10**15),),
                two_kernels=True,
                pin=Pin(cpus=(3,)),
            ),
            "process 2",
        ),
    ),
    (Mapping[Channel, Offer], {Channel.MEMORY: Offer("10.0.0.1", 9, SecretBytes(bytes(range(32))), SecretBytes(b""),
                                                     (Offer("10.0.0.1", 10, SecretBytes(b"x")),))}),
    (Shortage | None, Shortage("it is full", "wherry host list")),
    (Shortage | None, None),
    (Clocks, Clocks("5e1f", 10**15, 2 * 10**15, ClocksAhead(-(10**18), 5))),
    (Uses, Uses((UsedFile("/a\udcff", 1, 10**18, 0o100644, 0, 7, 9, True, "ab"),), "it flies", 77, 5)),
    (Fetched | None, None),
    (float | None, 1.5),
)  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_value_is_the_same_at_the_other_end(kind: Any, value: Any) -> None:
    (sent,) = Splitter().feed(pack({"v": to_plain(value)}))
    assert from_plain(kind, sent["v"]) == value


def test_secrets_are_sent_and_not_their_stars() -> None:
    assert from_plain(Placement, to_plain(place())).key.get_secret_value() == "ab" * 32


@pytest.mark.parametrize("kind", [kind for kind, _ in VALUES])
@given(data=JSON)
@settings(max_examples=examples(40))
def test_anything_else_is_refused_or_is_of_the_type(kind: Any, data: Any) -> None:
    try:
        value = from_plain(kind, json.loads(json.dumps(data)))
    except Malformed:
        return
    assert from_plain(kind, to_plain(value)) == value


@given(messages=st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), max_size=4), cut=st.integers(1, 9))
@settings(max_examples=examples(60))
def test_messages_are_found_wherever_the_stream_is_cut(messages: list[dict[str, Any]], cut: int) -> None:
    stream, splitter, found = b"".join(map(pack, messages)), Splitter(), list[dict[str, Any]]()
    for at in range(0, len(stream), cut):
        found += splitter.feed(stream[at : at + cut])
    assert found == messages


@given(parts=st.lists(st.binary(max_size=40), max_size=6))
@settings(max_examples=examples(200))
def test_no_bytes_break_the_splitter(parts: list[bytes]) -> None:
    splitter = Splitter()
    try:
        for part in parts:
            assert all(isinstance(message, dict) for message in splitter.feed(part))
    except Malformed:
        pass


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"NaN", b'{"a":Infinity}', b"\xff", b"[" * 100_000, b"1" * 5000, b'{"a":1}x']
)
def test_frame_that_is_no_object_is_malformed(text: bytes) -> None:
    with pytest.raises(Malformed):
        Splitter().feed(len(text).to_bytes(4, "big") + text)


def test_frames_have_a_largest_size() -> None:
    with pytest.raises(Malformed, match="announced"):
        Splitter().feed((LARGEST + 1).to_bytes(4, "big"))
    with pytest.raises(Malformed, match="at most"):
        pack({"a": "x" * LARGEST})
    with pytest.raises(Malformed):
        pack({"a": float("nan")})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_method_of_the_protocols_can_be_called_over_a_stream(protocol: type) -> None:
    """Its parameters and its result are of types that can be sent."""
    interface = Interface(protocol)
    names = [name for name, each in vars(protocol).items() if not name.startswith("_") and callable(each)]
    assert names
    for name in names:
        method = interface.method(name)
        with pytest.raises(Malformed):
            method.decode({"no such": 1}, lambda _: True, lambda: None)
        if method.returned is None:
            with pytest.raises(Malformed, match="instead of|no |has|pairs"):
                from_plain(method.result, {"no such": 1})


def test_unknown_and_private_methods_are_malformed() -> None:
    for name in ("no_such", "__init__", "_private", "mro"):
        with pytest.raises(Malformed, match="no method"):
            Interface(ContainerHost).method(name)


def test_arguments_are_bound_by_name_and_callbacks_are_left_out() -> None:
    method, looked = Interface(Arrival).method("receive"), list[str]()

    def monitor(text: str) -> bool:
        looked.append(text)
        return True

    sent = method.encode((monitor, True), {})
    assert sent.plain == {"last": True} and sent.monitor is monitor and sent.check is None
    args, named = method.decode(sent.plain, monitor, lambda: None)
    assert args == () and named["last"] is True and named["monitor"]("x") and looked == ["x"]


def test_variable_arguments_are_sent() -> None:
    method = Interface(Arrival).method("offer")
    sent = method.encode((Channel.TREE, Channel.MEMORY), {"streams": 3})
    args, named = method.decode(json.loads(json.dumps(sent.plain)), lambda _: True, lambda: None)
    assert args == (Channel.TREE, Channel.MEMORY) and named == {"streams": 3}


@pytest.mark.parametrize("plain", [{}, {"last": 1}, {"last": True, "more": 1}, [], None, "x"])
def test_wrong_arguments_are_malformed(plain: Any) -> None:
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    with pytest.raises(Malformed):
        Interface(Arrival).method("receive").decode(plain, lambda _: True, nothing)


def test_setup_of_a_host_is_checked() -> None:
    good = {
        "protocol": 1, "instance": "main", "identity": "0" * 32, "name": "h1", "cores": 2, "memory": 1, "speed": 1,
        "address": "10.0.0.1", "peers": [], "head": "10.0.0.9", "vni": 5, "pool": "10.77.0.0/16",
    }  # fmt: skip
    assert from_plain(HostSetup, good).name == "h1"
    for change in ({"instance": "../x"}, {"identity": "x"}, {"name": "-o"}, {"more": 1}, {"cores": "many"}):
        with pytest.raises(Malformed):
            from_plain(HostSetup, good | change)
