"""Images over REST: listed, removed, refused without an operation. Making one is in tests/system/test_vm.py."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rest_service import Service, running

from wherry.base.errors import Refused
from wherry.base.paths import images_directory
from wherry.client import Client
from wherry.model.records import Image
from wherry.service import image_commands as images_module

RECORD = Image(name="one", digest="d", built=1.0, kernel="6.1", packages={"mpich": "4"}, mpi=("MPICH",), bytes=1)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("WHERRY_STATE", str(tmp_path))
    (images_directory() / "one").mkdir(parents=True)
    (images_directory() / "one" / "image.json").write_text(RECORD.model_dump_json())
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.place, start=False) as made:
        yield made


def test_images_are_told_and_removed(client: Client) -> None:
    assert client.images() == [client.image("one")] == [RECORD]
    assert client.remove_image("one") == RECORD
    assert client.images() == []
    with pytest.raises(Refused, match="no image 'one'"):
        client.image("one")
    assert [event.target for event in client.events() if event.kind == "image.remove"] == ["one"]


def test_no_operation_waits_until_files_are_deleted(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image has hundreds of megabytes, perhaps on a slow disk."""
    deleting, go = threading.Event(), threading.Event()
    rmtree = shutil.rmtree

    def slow(path: Path, **options: bool) -> None:
        deleting.set()
        assert go.wait(20)
        rmtree(path, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(shutil, "rmtree", slow)
    (images_directory() / ".one.removed").mkdir()  # of a process that was killed
    with ThreadPoolExecutor(2) as pool:
        removed = pool.submit(client.remove_image, "one")
        try:
            assert deleting.wait(20)
            pool.submit(service.context.operations.conflicting_operation).result(5)
        finally:
            go.set()
        assert removed.result(20) == RECORD
    assert [path.name for path in images_directory().iterdir()] == [".lock"]


@pytest.mark.parametrize(("name", "programs"), [("Two", []), ("two", ["relative"]), ("two", ["/not/there"])])
def test_what_cannot_be_made_is_refused(client: Client, name: str, programs: list[str]) -> None:
    with pytest.raises(Refused):
        client.build_image(name, programs)
    assert client.operations() == []


def test_no_image_is_removed_while_one_is_built(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def build(name: str, *_: object) -> Image:
        assert go.wait(20)
        return RECORD.model_copy(update={"name": name})

    monkeypatch.setattr(images_module.image_build, "build", build)
    operation = client.build_image("one", [])
    with pytest.raises(Refused, match="image one cannot be removed now"):
        client.remove_image("one")
    go.set()
    client.wait(operation.id)
    assert client.remove_image("one") == RECORD
