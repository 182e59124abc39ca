"""`wherry site link`: shows the links between sites, declared and measured, and changes them while jobs run."""

from __future__ import annotations

from typing import Any

from cyclopts import App

from wherry.base.units import format_duration, format_rate
from wherry.cli.output import Output, emit, say, table
from wherry.client import Reader, existing
from wherry.model.overlay import Overlay

app = App(name="link", help="Links between the sites.")


@app.default
def list_(*, measure: bool = False, output: Output = "text") -> None:
    """List the links with declared and measured figures.

    Parameters
    ----------
    measure
        Measure the bandwidth too: TCP fills each direction of each link for some seconds.
    """
    with Reader() as reader:
        links = reader.rows("/v1/links", measure=measure)
    rows = [row for link in links for row in _rows(link)]
    header = (
        "FROM",
        "TO",
        "OVERLAY",
        "STATE",
        "LATENCY",
        "MEASURED",
        "BANDWIDTH",
        "MEASURED",
        "LOSS",
        "LOST",
        "DROPPED",
    )
    emit(output, "links", {"links": links}, lambda: table(header, rows, "There are no links: the fabric has one site."))


@app.command(name="set")
def set_(
    one: str,
    other: str,
    /,
    *,
    latency: str | None = None,
    jitter: str | None = None,
    bandwidth: str | None = None,
    loss: str | None = None,
    overlay: Overlay | None = None,
    one_way: bool = False,
    output: Output = "text",
) -> None:
    """Change the link between two sites while nodes and jobs run.

    Parameters
    ----------
    one, other
        The sites.
    latency
        One-way latency, for instance 10ms.
    jitter
        Largest deviation from the latency, for instance 1ms.
    bandwidth
        For instance 100Mbit/s.
    loss
        Share of lost frames, for instance 1%.
    overlay
        VPN between the sites' gateways.
    one_way
        Change only the direction from ONE to OTHER.
    """
    options = {"latency": latency, "jitter": jitter, "bandwidth": bandwidth, "loss": loss, "overlay": overlay}
    change = {name: value for name, value in options.items() if value is not None}
    with existing(f"site {one!r}") as client:
        result: dict[str, Any] = client.wait(client.set_link(one, other, change, one_way).id, say).result or {}
    figures = ", ".join(f"{name} {value}" for name, value in change.items()) or "unchanged"
    name = f"{one} to {other}" if one_way else f"{one} - {other}"
    emit(output, "link-set", result, lambda: print(f"link {name}: {figures}."))


def _rows(entry: dict[str, Any]) -> list[tuple[object, ...]]:
    """A row for each direction."""
    link, measured = entry["link"], entry["measured"]
    rows = list[tuple[object, ...]]()
    directions = (("there", "latency", link["between"]), ("back", "latency_back", reversed(link["between"])))
    for direction, latency, (one, other) in directions:
        figures, traffic = entry["declared"][direction], entry[direction] or {}
        rows.append(
            (
                one, other, link["overlay"], _state(entry), _duration(figures["latency"], figures["jitter"]),
                _duration(measured[latency]), _rate(figures["bandwidth"]), _rate(measured[direction]),
                "-" if figures["loss"] is None else f"{figures['loss'] * 100:g}%",
                traffic.get("lost", "-"), traffic.get("dropped", "-"),
            )
        )  # fmt: skip
    return rows


def _state(entry: dict[str, Any]) -> str:
    dead = [what for what, key in (("emulation", "emulation"), ("overlay", "overlay")) if entry[key] == "dead"]
    return f"{' and '.join(dead)} dead" if dead else "up"


def _duration(seconds: float | None, around: float | None = None) -> str:
    text = "-" if seconds is None else format_duration(seconds)
    return f"{text} +- {format_duration(around)}" if around else text


def _rate(bits: float | None) -> str:
    return "-" if bits is None else format_rate(bits)
