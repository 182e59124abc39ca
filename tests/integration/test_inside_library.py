"""libwherry in C, Fortran and Python: nothing outside of Wherry; answers that are late, cut off, wrong or missing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import waiting
from fuzzing import fuzz
from ports import reserved
from wherry.base.paths import for_programs, native_library

TOP = Path(__file__).resolve().parents[2]
EXAMPLES, INSIDE = TOP / "examples", TOP / "native" / "inside"
ASK = """\
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "wherry.h"
static long slept; /* milliseconds: the library's pauses are counted here, and nobody waits */
int nanosleep(const struct timespec *pause, struct timespec *left)
{
    (void)left;
    slept += pause->tv_sec * 1000 + pause->tv_nsec / 1000000;
    return 0;
}
int main(int argc, char **argv)
{
    struct wherry_place place = {.node = "?"};
    struct wherry_host hosts[2];
    int result = 0, count = 0;
    const char *locale = setlocale(LC_ALL, "");
    if (strcmp(argv[1], "where") == 0)
        result = wherry_where(&place);
    else if (strcmp(argv[1], "hosts") == 0)
        result = wherry_hosts(hosts, 2, &count);
    else if (strcmp(argv[1], "move") == 0)
        result = wherry_move(argv[2]);
    else if (strcmp(argv[1], "all") == 0)
        result = wherry_where_rank(0, &place) + wherry_move_rank(0, "a") + wherry_move_node("n", "a") +
                 wherry_move_when_cheap(NULL, 1.0, 1.0) + wherry_balance(&count) + wherry_phase_begin("p", 1) +
                 wherry_phase_end() + wherry_iterations_left(3) + wherry_expected(1.5);
    else if (strcmp(argv[1], "balance") == 0)
        result = wherry_balance(&count);
    else if (strcmp(argv[1], "expected") == 0)
        result = wherry_expected(1.5);
    else if (strcmp(argv[1], "wish") == 0)
        result = wherry_move_when_cheap("a1", 0.25, 12.5);
    else if (strcmp(argv[1], "point") == 0)
        result = locale && localeconv()->decimal_point[0] == ',';
    else if (strcmp(argv[1], "phase") == 0)
        result = wherry_phase_begin(argc > 2 ? argv[2] : "", 0);
    printf("%d %s %d %s\\n", result, place.node, count, wherry_error());
    setlocale(LC_ALL, "C");
    if (strcmp(argv[1], "hosts") == 0 && count)
        printf("%s %.2f %d\\n", hosts[0].name, hosts[0].load, hosts[1].usable);
    if (getenv("SLEPT"))
        printf("slept %ld\\n", slept);
    return 0;
}
"""
PLACE = "job=job-1\ncluster=c\nnode=c-3\nhost=a1\nsite=a\nranks=4\n"
Answer = Callable[[str], bytes]


@pytest.fixture(scope="module", params=["archive", "sanitized"])
def ask(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A program that makes one call."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc on this machine")
    directory = tmp_path_factory.mktemp("ask")
    (directory / "ask.c").write_text(ASK)
    flags = [f"-I{for_programs('wherry.h').parent}", str(native_library("libwherry.a")), "-pthread"]
    if request.param == "sanitized":
        sources = [str(INSIDE / name) for name in ("inside.c", "client.c", "answer.c", "environment.c", "progress.c")]
        flags = [
            "-D_GNU_SOURCE",
            "-g",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            *sources,
            "-pthread",
        ]
        flags.append(f"-I{INSIDE}")
    words = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", "ask", "ask.c", *flags]
    subprocess.run(words, cwd=directory, check=True, capture_output=True, timeout=120)
    return directory / "ask"


def run(program: Path, *words: str, **variables: str) -> tuple[int, str]:
    """The call's result, and the rest of the output."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    done = subprocess.run(
        [program, *words], env={**kept, **variables}, capture_output=True, text=True, timeout=120, check=True
    )
    first, _, rest = done.stdout.partition(" ")
    return int(first), rest


@contextmanager
def answering(*answers: Answer) -> Iterator[tuple[dict[str, str], list[str]]]:
    """The environment of programs that are given these answers, one for each connection (the last one again and again);
    and their requests. An empty answer closes the connection."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    text = b""
                    while b"\r\n\r\n" not in text and (more := connection.recv(4096)):
                        text += more
                    head, _, body = text.partition(b"\r\n\r\n")
                    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                    while len(body) < size and (more := connection.recv(4096)):
                        body += more
                    asked.append((head + b"\n" + body).decode())
                    connection.sendall(answers[min(len(asked), len(answers)) - 1](asked[-1]))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield {"WHERRY_SERVICE": f"127.0.0.1:{port}", "WHERRY_TOKEN": "job-1." + "a" * 64}, asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(waiting.bound())


def says(text: str, status: int = 200, cut: int = 0) -> Answer:
    """An answer; `cut` bytes are missing at its end."""
    whole = f"HTTP/1.1 {status} X\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
    return lambda _: whole[: len(whole) - cut]


def test_outside_of_wherry_nothing_happens(ask: Path) -> None:
    with waiting.no_hang():
        assert run(ask, "where")[0] == run(ask, "hosts")[0] == run(ask, "move", "a1")[0] == 1
        assert run(ask, "all")[0] == 9
        assert run(ask, "where", WHERRY_TOKEN="x")[0] == 1


def test_answers_are_read(ask: Path) -> None:
    with answering(says(PLACE)) as (environment, asked):
        assert run(ask, "where", **environment) == (0, "c-3 0 \n")
    assert asked[0].startswith("GET /v1/self HTTP/1.1\r\n") and f"Bearer {environment['WHERRY_TOKEN']}" in asked[0]
    text = "count=3\nhosts.0.name=a1\nhosts.0.load=1.250000\nhosts.1.usable=1\n"
    with answering(says(text)) as (environment, _):
        assert run(ask, "hosts", **environment)[1].split("\n")[1] == "a1 1.25 1"


def test_what_is_cut_off_is_asked_again(ask: Path) -> None:
    with answering(lambda _: b"", says(PLACE, cut=3), says("", 429), says(PLACE)) as (environment, asked):
        assert run(ask, "where", **environment)[0] == 0
        assert len(asked) == 4


def test_a_move_is_begun_once_and_waited_for(ask: Path) -> None:
    begun, going = says("state=running\noperation=op-1\n", 202), says("state=running\noperation=op-1\n")
    done, failed = says("state=done\noperation=op-1\nmoved=1\n"), says("state=failed\nwhat=no\nwhy=memory\n")
    with answering(says("", 202, cut=1), begun, going, lambda _: b"", done) as (environment, asked):
        assert run(ask, "move", "a2", **environment)[0] == 0
    keys = [line for text in asked for line in text.splitlines() if line.startswith("Idempotency-Key")]
    assert len(keys) == 2 and len(set(keys)) == 1, "the repeated request is known by its key"
    assert asked[0].endswith('{"host":"a2"}') and "/v1/self/operations/op-1?wait=" in asked[-1]
    with answering(begun, failed) as (environment, _):
        assert run(ask, "move", "a2", **environment) == (-3, "? 0 no: memory\n")
    with answering(says("code=PERMISSION\nwhat=not yours\n", 403)) as (environment, _):
        assert run(ask, "move", "a2", **environment)[0] == -4
    with answering(says("code=NO_CAPACITY\nwhat=full\n", 403)) as (environment, _):
        assert run(ask, "move", "a2", **environment)[0] == -2
    with answering(says("code=HOST_DOWN\nwhat=a2 is down\n", 503)) as (environment, _):
        assert run(ask, "move", "a2", **environment)[0] == -2, "nothing was begun"
    with answering(says("code=BUG\nwhat=oh\n", 500)) as (environment, _):
        assert run(ask, "move", "a2", **environment)[0] == -3
    with answering(says("state=running\noperation=../x\n", 202)) as (environment, _):
        assert run(ask, "move", "a2", **environment)[0] == -3


def test_names_that_need_quotes_are_refused_without_asking(ask: Path) -> None:
    with answering(says(PLACE)) as (environment, asked):
        for words in (
            ("move", 'a"b'),
            ("move", ""),
            ("move", "a/b"),
            ("move", "a" * 64),
            ("phase", "a\nb"),
            ("phase",),
        ):
            assert run(ask, *words, **environment)[0] == -1, words
        assert run(ask, "where", **{**environment, "WHERRY_TOKEN": "a\r\nX: y"})[0] == -1
        assert run(ask, "where", **{**environment, "WHERRY_SERVICE": "nowhere"})[0] == -1
    assert asked == []


def test_how_many_nodes_moved_is_known_when_the_first_answer_was_cut_off(ask: Path) -> None:
    with answering(says("", 202, cut=1), says("state=done\noperation=op-1\nmoved=2\n", 202)) as (environment, asked):
        assert run(ask, "balance", **environment) == (0, "? 2 \n")
        assert len(asked) == 2


def test_numbers_have_a_point_in_a_program_whose_locale_has_a_comma(ask: Path, tmp_path: Path) -> None:
    made = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "comma")]
    with suppress(OSError):  # else of the machine's, if it has it
        subprocess.run(made, capture_output=True, timeout=waiting.bound(), check=False)
    locales = ({"LC_ALL": "comma", "LOCPATH": str(tmp_path)}, {"LC_ALL": "de_DE.UTF-8"}, {"LC_ALL": "de_DE"})
    comma = next((one for one in locales if run(ask, "point", **one)[0] == 1), None)
    if comma is None:
        pytest.skip("no locale with a decimal comma on this machine")
    with answering(says("rank=0\n")) as (environment, asked):
        assert run(ask, "expected", **comma, **environment)[0] == 0
        assert run(ask, "wish", **comma, **environment)[0] == 0
    assert '"expected":1.500' in asked[0] and '"downtime":0.250,"within":12.500' in asked[1]
    with answering(says("count=1\nhosts.0.name=a1\nhosts.0.load=1.250000\n")) as (environment, _):
        assert "\na1 1.25" in run(ask, "hosts", **comma, **environment)[1]


def test_no_daemon_is_an_error_and_no_hang(ask: Path) -> None:
    with reserved() as port:
        result, text = run(ask, "where", WHERRY_SERVICE=f"127.0.0.1:{port}", WHERRY_TOKEN="job-1.aa", SLEPT="1")
    assert result == -6 and "no daemon answers" in text
    assert 10_000 < int(text.partition("slept ")[2]) < 90_000
    with answering(lambda _: b"SSH-2.0 hello\r\n\r\n") as (environment, _):
        assert run(ask, "where", **environment)[0] == -7


@pytest.mark.thorough  # a fuzzer
def test_no_answer_breaks_a_program() -> None:
    corpus = {
        "place": says(PLACE)(""),
        "hosts": says("host=a\na=-1.5\na=9")(""),
        "cut": says(PLACE, cut=5)(""),
        "odd": b"HTTP/1.1 200\r\nContent-Length: 999999999\r\n\r\nhost=",
    }
    fuzz(("fuzz/fuzz_inside_answer.c", "inside/answer.c"), corpus, 30_000, 512)


def build(flavour: str, language: str, directory: Path) -> Path:
    """An example, with the flags that `wherry inside` prints."""
    compiler, suffix = ("mpicc", "c") if language == "c" else ("mpif90", "f90")
    if not shutil.which(f"{compiler}.{flavour}"):
        pytest.skip(f"no {compiler}.{flavour} on this machine")
    wherry = [str(Path(sys.executable).parent / "wherry"), "inside", language]
    flags = subprocess.run(wherry, check=True, capture_output=True, text=True, timeout=waiting.bound()).stdout.split()
    source = str(EXAMPLES / f"move_self.{suffix}")
    sources = [source, *flags] if language == "c" else [*flags, source]
    words = [f"{compiler}.{flavour}", "-O2", "-Wall", "-o", "move_self", *sources]
    subprocess.run(words, cwd=directory, check=True, capture_output=True, timeout=120)
    return directory / "move_self"


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_an_example_runs_without_wherry(language: str, tmp_path: Path) -> None:
    program = build("mpich", language, tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    done = subprocess.run([program], env=kept, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "not under Wherry\nsum 465\n"), done.stderr


def test_the_python_example_runs_without_wherry() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WHERRY_")}
    env = {**kept, "PYTHONPATH": str(for_programs("wherry_inside.py").parent), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, str(EXAMPLES / "move_self.py")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=waiting.bound(), check=False)
    assert (done.returncode, done.stdout) == (0, "not under Wherry\nsum 465\n"), done.stderr


def test_python_has_the_same_answers() -> None:
    code = (
        "import wherry_inside as w\n"
        "print(w.where())\n"
        "try:\n    w.move('a b')\n"
        "except w.InsideError as error:\n    print(error.code == w.E_ARGUMENT, error)\n"
    )
    with answering(says(PLACE)) as (environment, _):
        env = {**os.environ, **environment, "PYTHONPATH": str(for_programs("wherry_inside.py").parent)}
        env |= {"PYTHONDONTWRITEBYTECODE": "1", "OMPI_COMM_WORLD_RANK": "2"}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=waiting.bound(), check=True)
    first, second = done.stdout.splitlines()
    assert first == "Place(job='job-1', cluster='c', node='c-3', host='a1', site='a', rank=2, ranks=4)"
    assert second == "True that is no name of a host"
