"""The rows of `launcher`: a script for bash, which has the launcher's words as `"$@"` and prints its results.

A script runs in an empty directory with the programs `rank` and `loads` (launcher_rank.c, launcher_loads.c), as the
leader of a session. Its output has neither numbers of processes nor paths, so that two launchers can be compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PROLOGUE = r"""
ranks() { find /proc -maxdepth 2 -name exe -lname "$PWD/*" -printf '%h\n' 2>/dev/null | cut -d/ -f3; }
ended() {
    local end=$((SECONDS + 6))
    while [ -n "$(ranks)" ]; do [ $SECONDS -lt $end ] || { echo "ranks run on"; return; }; sleep 0.1; done
    echo "ranks end"
}
got() { for rank in 0 1; do [ -e got.$rank ] && paste -sd+ got.$rank || echo nothing; done | paste -sd, ; }
started() { for try in {1..300}; do [ -e up.0 ] && [ -e up.1 ] && return; sleep 0.1; done; echo "ranks did not start"; }
signalled() {
    local name=$1
    shift
    env --default-signal "$@" -n 2 ./rank watch >out 2>err & job=$!
    started
    sleep 0.5
    kill -"$name" $job
    { wait $job; } 2>/dev/null
    code=$?
    echo "ranks got $(got); exit code $code; $(ended)"
}
"""

_128 = "the code is 128 and the signal's number, for each MPI"
_HYDRA = "hydra's with several hosts: docs/run.md, limits of the MPIs"
_PEER = "Open MPI 5 over TCP: a rank elsewhere sees the connection end before its launcher names the signal or code"


@dataclass(frozen=True)
class Meant:
    """A pattern of `wherry run`'s output where mpirun's may differ, and why; of one MPI, or of each."""

    said: str
    why: str
    mpi: str = ""


_READER = (
    Meant(r"exit code 1; ranks end", "the job ends with 1 and an error, for each MPI", "MPICH"),
    Meant(r"exit code 1; ranks end", "the job ends with 1 and an error; Open MPI's mpirun continues without output"),
)


@dataclass(frozen=True)
class Experiment:
    """One row: a title, a script, and outputs that `wherry run` may have instead of mpirun's."""

    name: str
    title: str
    script: str
    meant: tuple[Meant, ...] = ()
    quick: bool = False

    def reason(self, version: str, said: str) -> str:
        """Why `wherry run` had this output with an MPI; empty if no reason is known."""
        known = (one for one in self.meant if version.startswith(one.mpi) and re.fullmatch(one.said, said))
        return next((one.why for one in known), "")


ROWS = (
    Experiment("usr1", "SIGUSR1 to the command", 'signalled USR1 "$@"', quick=True),
    Experiment(
        "usr2",
        "SIGUSR2 to the command",
        'signalled USR2 "$@"',
        meant=(Meant(r"ranks got USR2,USR2; exit code 0; ranks end", "reaches ranks of each MPI; hydra dies of it"),),
    ),
    Experiment("alrm", "SIGALRM to the command", 'signalled ALRM "$@"'),
    Experiment(
        "term",
        "SIGTERM to the command",
        'signalled TERM "$@"',
        quick=True,
        meant=(Meant(r"ranks got TERM,TERM; exit code 143; ranks end", _128),),
    ),
    Experiment(
        "int",
        "SIGINT to the command (Ctrl-C)",
        'signalled INT "$@"',
        meant=(Meant(r"ranks got (TERM,TERM|INT,INT); exit code 130; ranks end", _128),),
    ),
    Experiment(
        "hup",
        "SIGHUP to the command",
        'signalled HUP "$@"',
        meant=(
            Meant(
                r"ranks got TERM,TERM; exit code 129; ranks end",
                "as SIGTERM, for each MPI: the code is 128 and the signal's number",
            ),
        ),
    ),
    Experiment(
        "kill",
        "SIGKILL to the command",
        'signalled KILL "$@"',
        meant=(
            Meant(
                r"ranks got nothing,nothing; exit code 137; ranks run on",
                "jobs outlive their client and the daemon: wherry job cancel",
            ),
        ),
    ),
    Experiment(
        "head",
        "`| head -1`",
        '"$@" -n 2 ./rank yes 2>err | head -1 >first; echo "exit code ${PIPESTATUS[0]}; $(ended)"',
        quick=True,
        meant=(
            Meant(
                r"exit code 141; ranks end",
                "141 is the exit code of SIGPIPE in a shell; Open MPI's mpirun crashes, or exits with 1",
            ),
        ),
    ),
    Experiment(
        "full",
        "a full disk behind `>`",
        '"$@" -n 2 ./rank yes >/dev/full 2>err; echo "exit code $?; $(ended)"',
        meant=_READER,
    ),
    Experiment(
        "closed-output",
        "standard output is closed",
        '"$@" -n 2 ./rank yes >&- 2>err; echo "exit code $?; $(ended)"',
        meant=_READER,
    ),
    Experiment(
        "steps",
        "output without a flush, into a pipe",
        r"""
        "$@" -n 1 ./rank steps 2>err | while read -r line; do date +%s%N; done >seen
        first=$(head -1 seen) last=$(tail -1 seen)
        [ $((last - first)) -gt 900000000 ] && echo "line by line" || echo "all at the end"
        """,
    ),
    Experiment(
        "order",
        "20,000 lines of a rank on each stream",
        r"""
        "$@" -n 1 ./rank lines 20000 >out 2>err
        echo "exit code $?"
        for stream in out:output err:error; do
            seq -f "rank 0 line %.0f of standard ${stream#*:}" 0 19999 >expected
            cmp -s expected "${stream%:*}" && echo "${stream#*:} is whole"
        done
        """,
    ),
    Experiment(
        "volume",
        "output of two ranks at once",
        r"""
        for rank in 0 1; do seq -f "rank $rank line %.0f of standard output" 0 19999; done >expected
        "$@" -n 2 ./rank lines 20000 2>err | wc -c | sed "s/^$(wc -c <expected)$/all bytes/"
        """,
    ),
    Experiment(
        "newline",
        "a variable with a line break",
        r"""export LINES_=$'one\n\ntwo'; "$@" -n 1 sh -c 'printf %s "$LINES_" | od -An -c' """,
        quick=True,
    ),
    Experiment(
        "function",
        "an exported function of bash",
        r"""f() { echo called; }; export -f f; "$@" -n 1 bash -c f""",
    ),
    Experiment(
        "raw-variable",
        "a variable that is not UTF-8",
        r"""export RAW=$'caf\351'; "$@" -n 1 sh -c 'printf %s "$RAW" | od -An -c'""",
    ),
    Experiment(
        "raw-argument",
        "an argument that is not UTF-8",
        r""""$@" -n 1 sh -c 'printf %s "$1" | od -An -c' sh $'caf\351'""",
    ),
    Experiment("umask", "`umask 027`", """umask 027; "$@" -n 1 sh -c 'umask; touch made'; stat -c %a made"""),
    Experiment("nice", "`nice -n 5`", 'nice -n 5 "$@" -n 1 nice'),
    Experiment("stack", "`ulimit -s unlimited`", """ulimit -s unlimited; "$@" -n 1 sh -c 'ulimit -s'"""),
    Experiment("open-files", "`ulimit -n 500`", """ulimit -n 500; "$@" -n 1 sh -c 'ulimit -Sn; ulimit -Hn'"""),
    Experiment("core", "`ulimit -S -c 5`", """ulimit -S -c 5; "$@" -n 1 bash -c 'ulimit -c'"""),
    Experiment(
        "core-file",
        "a core file in the working directory",
        r"""
        ulimit -c unlimited
        "$@" -n 2 ./rank segv >out 2>err
        ls core* >/dev/null 2>&1 && echo "a core file" || echo "no core file"
        """,
    ),
    Experiment(
        "input-file",
        "standard input: a file",
        'head -c 30000 /dev/zero >data; "$@" -n 2 ./rank read <data',
        quick=True,
    ),
    Experiment("input-pipe", "standard input: a pipe", 'head -c 30000 /dev/zero | "$@" -n 2 ./rank read'),
    Experiment(
        "input-socket",
        "standard input: a socket",
        r"""
        python3 - "$@" <<'END'
import socket, subprocess, sys
ours, theirs = socket.socketpair()
child = subprocess.Popen([*sys.argv[1:], "-n", "2", "./rank", "read"], stdin=theirs)
theirs.close()
ours.sendall(b"x" * 30000)
ours.close()
child.wait()
END
        """,
    ),
    Experiment(
        "input-large",
        "standard input: a file of 3 MB",
        'head -c 3000000 /dev/zero >data; "$@" -n 2 ./rank read <data 2>err; echo "exit code $?"',
        meant=(Meant(r".*exit code \d+", "hydra's: input is lost when rank 0 reads slowly", "MPICH"),),
    ),
    Experiment(
        "input-device",
        "standard input: a device (`</dev/zero`)",
        '"$@" -n 2 ./rank bytes </dev/zero 2>err',
        meant=(Meant(r"5 bytes", "natively the MPI fails or does not end"),),
    ),
    Experiment("input-null", "standard input: `</dev/null`", '"$@" -n 2 ./rank read </dev/null'),
    Experiment(
        "input-closed",
        "standard input is closed",
        '"$@" -n 2 ./rank read <&-',
        meant=(Meant(r"0 bytes", "a closed input is an empty one; natively Open MPI waits"),),
    ),
    Experiment("code", "rank 1 ends with 7", '"$@" -n 2 ./rank exit 7 >out 2>err; echo "exit code $?"', quick=True),
    Experiment(
        "early",
        "rank 1 ends with 7 without MPI_Finalize",
        'timeout -s TERM 8 "$@" -n 2 ./rank early 7 >out 2>err; code=$?\n'
        '[ $code = 124 ] && echo "it waits for rank 0" || echo "exit code $code; $(ended)"',
        meant=(
            Meant(r"it waits for rank 0", _HYDRA, "MPICH"),
            Meant(r"exit code (1|14); ranks end", _PEER, "Open MPI 5"),
        ),
    ),
    Experiment(
        "segv",
        "SIGSEGV of rank 1",
        '"$@" -n 2 ./rank segv >out 2>err; echo "exit code $?; $(ended)"',
        meant=(
            Meant(r"exit code 255; ranks end", _HYDRA, "MPICH"),
            Meant(r"exit code (1|14); ranks end", _PEER, "Open MPI 5"),
        ),
    ),
    Experiment("abort", "MPI_Abort(3) of rank 1", '"$@" -n 2 ./rank abort 3 >out 2>err; echo "exit code $?; $(ended)"'),
    Experiment(
        "absent",
        "the program is not there",
        '"$@" -n 2 ./absent >out 2>err; echo "exit code $?"',
        meant=(Meant(r"exit code 3", "Wherry refuses it before anything starts, with its code for a missing file"),),
    ),
    Experiment(
        "directory",
        "a working directory outside of the home",
        r"""
        there=$(mktemp -d /opt/wherry-bench.XXXXXX)
        cd "$there"
        "$@" -n 1 sh -c '[ "$(pwd)" = "$1" ] && echo "rank 0 is there"; touch by-rank' sh "$there" 2>err
        [ -e by-rank ] && echo "and writes" || echo "and cannot write"
        cd /
        rm -r "$there"
        """,
    ),
    Experiment(
        "path",
        "an entry of PATH that is relative",
        r"""mkdir bin; ln rank bin/found-there; export PATH=bin:$PATH; "$@" -n 2 found-there who rank | sort""",
        meant=(
            Meant(
                r"rank 0 of 2; rank 1 of 2", "Open MPI 5 does not look there; Wherry does, for each MPI", "Open MPI 5"
            ),
        ),
    ),
    Experiment(
        "options",
        "options behind the program's name",
        '"$@" -n 1 echo -n 3 --detach -o json --mpi; echo "; exit code $?"',
    ),
    Experiment("mpmd", "two programs, by `:`", '"$@" -n 1 ./rank who one : -n 1 ./rank who two | sort', quick=True),
    Experiment(
        "loads",
        "a program that loads its MPI by itself",
        r"""
        library=$(ldd rank | awk '/libmpi/ {print $3; exit}')
        "$@" -n 2 ./loads "$library" >out 2>err
        echo "exit code $?; $(grep -c ended out) ranks ended"
        """,
        quick=True,
    ),
)
