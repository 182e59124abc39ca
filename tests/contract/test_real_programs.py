"""Programs that others wrote, or that every user may have, go on over moves as if there were none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from shared_node import SharedNode, shared_directory

import waiting
from wherry.base.errors import WherryError
from wherry.fabric.protocol import Fabric
from wherry.node.protocol import NodeDriver

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="container nodes need root"),
    pytest.mark.parametrize("nodes", ["container"], indirect=True, scope="module"),
]
PROCESSES = """
import multiprocessing, os, sys

def serve(tasks, results, lock):
    while True:
        with lock:
            task = tasks.get()
        if task is None:
            break
        results.put(task * task)

if __name__ == "__main__":
    method, directory = sys.argv[1:]
    multiprocessing.set_start_method(method)
    tasks, results, lock = multiprocessing.Queue(), multiprocessing.Queue(), multiprocessing.Lock()
    workers = [multiprocessing.Process(target=serve, args=(tasks, results, lock)) for _ in range(3)]
    for worker in workers:
        worker.start()
    with multiprocessing.Pool(2) as pool:
        while not os.path.exists(directory + "/enough"):
            for number in range(20):
                tasks.put(number)
            assert sorted(results.get() for _ in range(20)) == [number * number for number in range(20)]
            assert pool.map(abs, range(-20, 0)) == list(range(20, 0, -1))
            open(directory + "/ready", "w").close()
    for worker in workers:
        tasks.put(None)
    for worker in workers:
        worker.join()
"""
JAVA = """
import java.io.File;
import java.util.concurrent.*;

public class Sums {
    static final int TASKS = 8;

    public static void main(String[] words) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        while (!new File(words[0] + "/enough").exists()) {
            Future<?>[] tasks = new Future<?>[TASKS];
            for (int i = 0; i < TASKS; i++) {
                final long factor = i;
                tasks[i] = pool.submit(() -> {
                    long sum = 0;
                    for (int j = 0; j < 100000; j++)
                        sum += j * factor;
                    return sum + new byte[100000].length;
                });
            }
            for (int i = 0; i < TASKS; i++)
                if (!tasks[i].get().equals(4999950000L * i + 100000))
                    System.exit(1);
            new File(words[0] + "/ready").createNewFile();
        }
        pool.shutdown();
    }
}
"""
SEMAPHORE = """
import multiprocessing, os, sys
directory, = sys.argv[1:]
os.mkdir("/dev/shm/elsewhere")
file = os.open("/dev/shm/first", os.O_RDWR | os.O_CREAT)
os.link("/dev/shm/first", "/dev/shm/elsewhere/second")
os.unlink("/dev/shm/first")
open(directory + "/ready", "w").close()
while not os.path.exists(directory + "/enough"):
    pass
"""


class Programs(SharedNode):
    """A node in which a program runs until a file is there."""

    def begin(self, words: str) -> None:
        here = self.directory
        (here / "processes.py").write_text(PROCESSES)
        (here / "Sums.java").write_text(JAVA)
        (here / "semaphore.py").write_text(SEMAPHORE)
        command = (
            f"{words.format(here=here)} </dev/null >{here}/said 2>&1; echo $? >{here}/new; mv {here}/new {here}/code"
        )
        assert self.run_in_node(f"setsid /bin/sh -c '{command}' </dev/null >/dev/null 2>&1 &") == 0
        waiting.until((here / "ready").exists, (here / "said").read_text)

    def end(self) -> None:
        here = self.directory
        (here / "ready").unlink()
        waiting.until((here / "ready").exists, (here / "said").read_text)  # it goes on
        (here / "enough").touch()
        waiting.until((here / "code").exists, (here / "said").read_text)
        assert (here / "code").read_text() == "0\n", (here / "said").read_text()


@pytest.fixture
def programs(nodes: tuple[NodeDriver, Fabric]) -> Iterator[Programs]:
    with shared_directory(nodes) as (node_under_test, directory):
        yield Programs(node_under_test, directory)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_python(programs: Programs, method: str) -> None:
    """Their semaphores have names, of which one was removed as soon as they were made."""
    programs.begin(f"/usr/bin/python3 {{here}}/processes.py {method} {{here}}")
    for _ in range(3):
        programs.move()
    programs.end()


@pytest.mark.skipif(not shutil.which("valgrind"), reason="there is no valgrind: make setup-apps")
def test_a_program_under_valgrind(programs: Programs) -> None:
    """It has descriptors at the very end of its limit, and no vDSO."""
    loop = "until [ -e {here}/enough ]; do : >{here}/ready; done"
    programs.begin(f'/usr/bin/valgrind -q --trace-children=no /bin/sh -c "{loop}"')
    for _ in range(3):
        programs.move()
    programs.end()


@pytest.mark.skipif(not shutil.which("javac"), reason="there is no Java development kit: make setup-apps")
def test_a_java_runtime(programs: Programs) -> None:
    """It keeps a lock on a file of its own by a mapping, and makes and ends threads."""
    programs.begin("java -Xmx64m {here}/Sums.java {here}")
    for _ in range(3):
        programs.move()
    programs.end()


def test_a_file_that_has_a_name_in_another_directory_only_is_refused(programs: Programs) -> None:
    """Before the freeze: CRIU would not find it."""
    programs.begin("/usr/bin/python3 {here}/semaphore.py {here}")
    with pytest.raises(WherryError, match="/dev/shm/first") as refusal:
        programs.move()
    assert "removed" in str(refusal.value)
