"""`wherry fabric`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App

from wherry.base.units import format_size
from wherry.cli.output import Output, emit, say, table
from wherry.client import Client, Reader, existing

app = App(name="fabric", help="The fabric: sites, their hosts, and the links between them.")


@app.command
def up(file: Path, /, *, output: Output = "text") -> None:
    """Make the hosts and links of FILE. The same file again repairs them.

    Parameters
    ----------
    file
        A fabric file (see examples/two-sites.yaml).
    """
    from wherry.cli.files import read_fabric  # here: the models of files take long to import

    data = read_fabric(file)
    with Client() as client:
        result: dict[str, Any] = client.wait(client.fabric_up(data, str(file)).id, say).result or {}
    text = f"fabric {result['fabric']} is up: {', '.join(result['hosts'])}."
    emit(output, "fabric-up", result, lambda: print(text))


@app.command
def down(*, output: Output = "text") -> None:
    """Remove the fabric. Refused while it is in use."""
    with existing("fabric") as client:
        result: dict[str, Any] = client.wait(client.fabric_down().id, say).result or {}
    emit(output, "fabric-down", result, lambda: print(f"fabric {result['fabric']} is down."))


@app.command
def show(*, output: Output = "text") -> None:
    """Show the fabric that is up."""
    with Reader() as reader:
        data = reader.fabric()
    spec = data["fabric"]

    def text() -> None:
        state = "up" if data["up"] else "down (wherry up or wherry fabric up makes it again)"
        print(f"{spec['name']}: driver {spec['driver']}, clusters in {spec['pool']}, {state}")
        for link in spec["links"]:
            print(f"link {' - '.join(link['between'])} (figures: wherry site link)")
        rows = [(h["name"], h["site"], f"{h['cores']:g}", format_size(h["memory"])) for h in data["hosts"]]
        table(("HOST", "SITE", "CORES", "MEMORY"), rows, "Its hosts are not up.")

    emit(output, "fabric", data, text)
