"""Errors, and names of files and processes that are any bytes: in errors, events and rows they are neither unreadable
nor a terminal's commands."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from wherry.base.clock import now
from wherry.base.errors import Code, Failed, LostContact, Refused, WherryError, from_dict
from wherry.cluster.binds import binds_of
from wherry.fabric.default_fabric import default_fabric
from wherry.fabric.fake import FakeFabric
from wherry.model.owner import Owner
from wherry.model.records import (
    Move,
    Operation,
    OperationState,
    Phase,
)
from wherry.service.operations import Operations
from wherry.store import Store

ODD = os.fsdecode(b"/home/me/\xff \x1b]0;root\x07")


def test_an_error_is_printable() -> None:
    error = Failed(Code.FAILED, f"{ODD} is locked", ODD, f"ls {ODD}\nand more")
    for text in (error.what, error.why, str(error)):
        assert text.isprintable() and "\\udcff \\x1b]0" in text
    assert error.next.endswith("\nand more")
    assert from_dict(error.to_dict()).to_dict() == error.to_dict()


def test_what_is_stored_can_be_read_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")
    move = Move(id="mv-1", node="a-0", cluster="a", source="a1", destination=ODD, phase=Phase.DONE, created=now())
    store.put_move(move)
    assert store.move("mv-1") == move.model_copy(update={"destination": ODD.replace("\udcff", "?")})
    kept = move.model_copy(update={"id": "mv-2", "destination": "ü 😀"})
    store.put_move(kept)
    assert store.moves()[1] == kept
    store.add_event("move.failed", "a-0", ODD)
    assert store.events()[0].text.isprintable()


def test_an_operation_that_fails_with_such_a_name_breaks_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("wherry"), "propagate", False)  # pytest cannot report such a text
    operations = Operations(Store(tmp_path / "wherry.db"))

    def body(task) -> None:
        task.progress(ODD)
        raise OSError(2, ODD)

    begun = operations.start("move", "a-0", body)
    ended = operations.wait(begun.id, 10)
    assert ended.state is OperationState.FAILED
    assert [found.id for found in operations.all()] == [begun.id]
    assert Operation.model_validate_json(ended.model_dump_json()).id == begun.id
    assert all(line.isprintable() for line in operations.lines(begun.id, 0))


def test_a_directory_that_no_record_can_carry_is_not_bound(tmp_path: Path) -> None:
    fabric = FakeFabric(default_fabric())
    fabric.up()
    real = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        real.mkdir()
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "plain").mkdir()
    owner = Owner(uid=0, gid=0, home=str(tmp_path / "link"), cwd=str(tmp_path / "plain"))
    assert binds_of(fabric, fabric.hosts(), owner) == (str(tmp_path / "plain"),)


@pytest.mark.parametrize("code", list(Code))
def test_errors_round_trip_through_dicts(code: Code) -> None:
    error = from_dict(WherryError(code, "what", "why", "next").to_dict())
    assert (error.code, error.what, error.why, error.next) == (code, "what", "why", "next")
    kinds = {2: Refused, 3: Refused, 4: Refused, 5: Refused, 7: LostContact}
    assert type(error) is kinds.get(code.exit_code, Failed)
    assert 400 <= code.http_status < 600 and 0 < code.exit_code <= 130
