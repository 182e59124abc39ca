"""Programs that others wrote, or that every user may have, continue over moves as if there were none."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

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
PARALLEL = """
here=$1 gates=$2 groups=$3
export HOME=/tmp
await() { until [ -e $gates/$1 ]; do sleep 0.02; done; }
cat >$here/job <<'end'
number=$1 here=$2 gates=$3
touch $here/began-$number
say() {
  awk -v n=$number -v part=$1 'BEGIN { for (; i < 20000; i++) s = (s * 31 + n * part + i) % 65521; print n, part, s }'
}
for part in 1 2 3; do say $part; say $part >&2; done
until [ -e $gates/$((number / 6)) ]; do sleep 0.02; done
for part in $(seq 4 40); do say $part; done
exit $((number % 3))
end
seq 0 $((groups * 6 - 1)) |
  parallel --will-cite -j 4 -k --tag --joblog $here/log sh $here/job {} $here $gates >$here/out 2>$here/err
echo $? >$here/code-of-jobs
(seq 50000; touch $here/began-pipe; await pipe; seq 50000) |
  parallel --will-cite -j 3 -k --pipe --block 50k md5sum >$here/sums
touch $here/ended
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
        waiting.until((here / "ready").exists, (here / "said").read_text)  # it continues
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


@pytest.mark.skipif(not shutil.which("parallel"), reason="there is no GNU parallel: scripts/setup-test")
@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.smoke), 4])
def test_gnu_parallel(programs: Programs, tmp_path: Path, groups: int) -> None:
    """Its jobs end by themselves, one after the other, while it is moved. Their output is collected in files without
    names and comes out in their order, as where nothing was moved; so does output for inputs divided among them."""
    here, gates, unmoved = programs.directory, programs.directory / "gates", tmp_path
    gates.mkdir()
    (here / "parallel.sh").write_text(PARALLEL)
    words = ["sh", f"{here}/parallel.sh"]
    run = f"setsid {' '.join(words)} {here} {gates} {groups} </dev/null >{here}/said 2>&1 &"
    assert programs.run_in_node(run) == 0
    for group in range(groups):
        running = [here / f"began-{group * 6 + job}" for job in range(4)]
        waiting.until(lambda running=running: all(each.exists() for each in running), (here / "said").read_text)
        programs.move()
        (gates / str(group)).touch()
        programs.move()  # while jobs end and others begin
    waiting.until((here / "began-pipe").exists, (here / "said").read_text)
    programs.move()
    (gates / "pipe").touch()
    waiting.until((here / "ended").exists, (here / "said").read_text)
    again = subprocess.run(
        [*words, unmoved, gates, str(groups)], timeout=waiting.bound(), stdin=subprocess.DEVNULL, capture_output=True
    )
    for name in ("out", "err", "sums", "code-of-jobs"):
        assert (here / name).read_text() == (unmoved / name).read_text(), name
    assert (again.returncode, again.stderr, (here / "said").read_text()) == (0, b"", "")
    log = [line.split("\t") for line in (here / "log").read_text().splitlines()[1:]]
    assert sorted((int(job[0]) - 1, int(job[6])) for job in log) == [(job, job % 3) for job in range(groups * 6)]
    assert len((here / "out").read_text().splitlines()) == groups * 6 * 40


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
