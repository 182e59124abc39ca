"""Tiles files: a mesh and the cost of a hop."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from wherry.base.errors import Refused
from wherry.model.spec.explain import explain
from wherry.model.spec.parse import parse
from wherry_tiles.cli import read_tiles
from wherry_tiles.service.routes import Of
from wherry_tiles.spec import TilesSpec


def test_a_mesh_passes_through_a_file_unchanged(tmp_path: Path) -> None:
    """The command line reads it and sends it to the daemon, which reads it again."""
    path = tmp_path / "tiles.yaml"
    path.write_text("kind: tiles\nversion: 1\ntiles: 8\nmesh: 4x2\nhop: 1.5us\n")
    spec = parse(TilesSpec, read_tiles(path), "again")
    assert (spec.mesh, round(spec.hop * 1e9)) == ("4x2", 1500)
    assert parse(TilesSpec, {"tiles": 2}, "none").mesh is None


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"mesh": "2x1"}, "2x1 has no place for 3 tiles"),
        ({"mesh": "4"}, "mesh"),
        ({"mesh": "17x1"}, "mesh"),
        ({"mesh": "0x4"}, "mesh"),
        ({"mesh": "2x2", "hop": 5}, "5 has no unit"),
        ({"mesh": "2x2", "hop": "1s"}, "hop"),
    ],
)
def test_what_is_no_mesh(more: dict[str, object], why: str) -> None:
    with pytest.raises(Refused) as refused:
        parse(TilesSpec, {"tiles": 3, **more}, "the file")
    assert why in f"{refused.value.what} {refused.value.why}"


def test_a_wrong_offset_of_output_is_explained() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Of).validate_python("1-2")
    assert explain(caught.value.errors(include_url=False)[0]).startswith("'1-2' is not of the form ^([1-9]|")
