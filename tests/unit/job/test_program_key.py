"""The runs that are of one program, and the number of profiles that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from wherry.job.program_key import normalised, program_key
from wherry.model.balance import Kind
from wherry.model.job_request import JobRequest, Program
from wherry.model.owner import Owner
from wherry.model.program import ProgramProfile
from wherry.model.records import ProgramKey
from wherry.store import Store


def request(home: Path, *argv: str, ranks: int = 4, uid: int = 1000, programs: tuple[Program, ...] = ()) -> JobRequest:
    owner = Owner(uid=uid, gid=uid, home=str(home), cwd=str(home))
    return JobRequest(cluster="c", argv=argv, ranks=ranks, owner=owner, env={}, programs=programs)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--size", "100000", "-n4"), ("--size", "100000", "-n4")),
        (("/home/me/run.17/in.lj",), ("in.lj",)),
        (("--out=/tmp/out-20261126",), ("--out=out-#",)),
        (("log.1234567", "0d3c9d64-3b61-4f8e-9d0c-6bd2a0f0a8a1"), ("log.#", "#")),
    ],
)
def test_arguments_are_taken_by_their_class(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert normalised(words) == expected


def test_the_key_tells_content_arguments_ranks_and_users_apart(tmp_path: Path) -> None:
    program, copy = tmp_path / "prog", tmp_path / "copy" / "prog"
    program.write_text("one")
    copy.parent.mkdir()
    copy.write_text("one")

    def key(path: Path, *words: str, ranks: int = 4, uid: int = 1000) -> str:
        return program_key(request(tmp_path, str(path), *words, ranks=ranks, uid=uid), [path]).key

    first = key(program, "8")
    assert key(copy, "8") == first, "the same file elsewhere"
    assert len({first, key(program, "9"), key(program, "8", ranks=5), key(program, "8", uid=7)}) == 4
    program.write_text("two!")
    assert key(program, "8") != first


def test_programs_with_very_many_arguments_are_told_apart(tmp_path: Path) -> None:
    """By little: the key is in the rows of jobs and profiles."""
    program = tmp_path / "prog"
    program.write_text("one")
    keys = [program_key(request(tmp_path, str(program), "word", *["word"] * 50_000, last), [program]) for last in "ab"]
    assert keys[0].key != keys[1].key and all(len(" ".join(key.arguments)) < 5000 for key in keys)
    assert keys[0].arguments[:100] == ("word",) * 100


def test_an_interpreter_is_known_by_its_script(tmp_path: Path) -> None:
    python, script = tmp_path / "python3.11", tmp_path / "model.py"
    python.write_text("interpreter")
    script.write_text("print(1)")
    before = program_key(request(tmp_path, "python3.11", "-u", "model.py"), [python])
    script.write_text("print(2) ")
    assert program_key(request(tmp_path, "python3.11", "-u", "model.py"), [python]).digest != before.digest
    program_key(request(tmp_path, "python3.11", "-c", "x" * 5000), [python])


def test_several_programs_have_one_key(tmp_path: Path) -> None:
    path = tmp_path / "sh"
    path.write_text("")
    halves = (Program(argv=("sh", "a"), ranks=1), Program(argv=("sh", "b"), ranks=3))
    found = program_key(request(tmp_path, "sh", "a", ":", "-n", "3", "sh", "b", programs=halves), [path, path])
    assert found.name == "sh : sh" and found.arguments == ("sh", "a", "sh", "b", "1", "3")


def test_the_newest_profiles_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "wherry.db")

    def put(name: str, uid: int = 0) -> None:
        key = ProgramKey(name=name, digest="", arguments=(), ranks=1, uid=uid)
        profile = ProgramProfile(
            key=key.key, program=key, kind=Kind.CPU, reason="", time=0, ran=0, seconds=1, runs=1, job="", imbalance=1,
            ranks=(),
        )  # fmt: skip
        store.put_program(profile, keep=3)

    put("z", 7)
    for name in "abcad":
        put(name)
    assert [one.program.name for one in store.programs(7)] == ["z"], "another user's are not counted"
    assert [one.program.name for one in store.programs(0)] == ["c", "a", "d"]
    store.drop_program(store.programs(7)[0].key)
    assert [one.program.name for one in store.programs()] == ["c", "a", "d"]
    store.drop_program(store.programs()[0].key)
    assert [one.program.name for one in store.programs()] == ["a", "d"]
    store.close()
