"""generate.py TABLE OUTPUT: writes the wrappers of libwherry-mpi.so, in C, from functions.table.

Each wrapper calls the function that it wraps with the words that it got, and reports the call to record.c. A
function of the table has three forms: C's; Fortran's under the names that compilers make of one; and as the module mpi_f08
calls it. Only the arguments differ: Fortran passes addresses of everything, and handles as integers. Functions that
name requests have a form by the profiling name as well (pending.h).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

HEAD = """/* Made by generate.py of functions.table. */
#include "collectives.h"
#include "direct.h"
#include "fortran.h"
#include "levels.h"
#include "library.h"
#include "pending.h"
#include "receives.h"
#include "record.h"
#include "shared.h"

const char *const operation_names[] = {%s};
const unsigned operations = %d;
"""

BUFFERS = {"buf", "sendbuf", "recvbuf", "otherbuf", "intobuf"}

FREED = {
    "freerequest": "forget_request({})",
    "freecomm": "forget_comm({})",
    "freetype": "forget_types()",
}
"""The calls that forget a freed object, by the kind of the function."""

SENT, GOT = "{sendbuf}, {sendcount}, {sendtype}", "{recvbuf}, {recvcount}, {recvtype}"
GOT_EACH, TO_ALL = "{recvbuf}, {counts}, {displacements}, {recvtype}", "{recvbuf}, {count}, {type}, {op}"
BY_LEVELS = {
    "Barrier": "{comm}",
    "Bcast": "{buf}, {count}, {type}, {root}, {comm}",
    "Reduce": f"{{sendbuf}}, {TO_ALL}, {{root}}, {{comm}}",
    "Allreduce": f"{{sendbuf}}, {TO_ALL}, {{comm}}",
    "Scan": f"{{sendbuf}}, {TO_ALL}, {{comm}}",
    "Exscan": f"{{sendbuf}}, {TO_ALL}, {{comm}}",
    "Reduce_scatter_block": f"{{sendbuf}}, {TO_ALL}, {{comm}}",
    "Reduce_scatter": "{sendbuf}, {recvbuf}, {counts}, {type}, {op}, {comm}",
    "Gather": f"{SENT}, {GOT}, {{root}}, {{comm}}",
    "Gatherv": f"{SENT}, {GOT_EACH}, {{root}}, {{comm}}",
    "Scatter": "{otherbuf}, {othercount}, {othertype}, {intobuf}, {intocount}, {intotype}, {root}, {comm}",
    "Scatterv": "{otherbuf}, {counts}, {displacements}, {othertype}, {intobuf}, {intocount}, {intotype}, {root}, {comm}",
    "Allgather": f"{SENT}, {GOT}, {{comm}}",
    "Allgatherv": f"{SENT}, {GOT_EACH}, {{comm}}",
    "Alltoall": f"{SENT}, {GOT}, {{comm}}",
    "Alltoallv": "{sendbuf}, {sendcounts}, {senddisplacements}, {sendtype}, {recvbuf}, {counts}, {displacements}, {type}, {comm}",
}
"""Collectives that collectives.h does itself if of use: the arguments that it wants, as the table names them."""

AT_ONCE = {
    f"I{name.lower()}": f"{BY_LEVELS[name]}, {{request}}"
    for name in BY_LEVELS
    if name
    not in ("Gatherv", "Scatterv", "Alltoallv")  # which libraries do so, and of which not all ranks know the sizes
}
"""The same of direct.h."""

NAMES_REQUESTS = ("Wait", "Test", "Request_")
"""How functions begin that tell of requests, or take them: these also have a wrapper by the profiling name."""

WAITED = {
    "Wait": ("1, request, status, 0", "all(&waited, {error}, 1)"),
    "Test": ("1, request, status, 0", "all(&waited, {error}, {flag})"),
    "Waitall": ("{number}, requests, statuses, 1", "all(&waited, {error}, 1)"),
    "Testall": ("{number}, requests, statuses, 1", "all(&waited, {error}, {flag})"),
    "Waitany": ("{number}, requests, status, 0", "any(&waited, {error}, 1, {index})"),
    "Testany": ("{number}, requests, status, 0", "any(&waited, {error}, {flag}, {index})"),
    "Waitsome": ("{number}, requests, statuses, 1", "some(&waited, {error}, {outcount}, indices)"),
    "Testsome": ("{number}, requests, statuses, 1", "some(&waited, {error}, {outcount}, indices)"),
}
"""Functions that may complete receives by shared memory: the arguments of shared.h's functions around it."""

PUT = {"Send", "Ssend", "Rsend", "Isend", "Issend", "Irsend", "Sendrecv"}
GOT_IN = {
    "Recv": "buf, count, type",
    "Sendrecv": "recvbuf, recvcount, recvtype",
    "Sendrecv_replace": "buf, count, type",
}
"""Functions that may send by shared memory, and where a message is received so when the function returns."""

PAIRS = {
    "collective": (("sendbuf", "send", "recv"), ("intobuf", "into", "other")),
    "each": (("sendbuf", "send", "recv"),),
}
"""Of a kind: the buffer that may be MPI_IN_PLACE, the buffer that counts without it, and the one with it."""


@dataclass(frozen=True)
class Form:
    """A form of a function: how the value of an argument is had from the word of its name."""

    fortran: bool = False

    def number(self, name: str) -> str:
        return f"*(const int *){name}" if self.fortran else f"(int){name}"

    def handle(self, name: str) -> str:
        return f"fortran_handle({name})" if self.fortran else f"handle({name})"

    def at(self, name: str) -> str:
        """A handle behind an address, as Fortran passes each."""
        return f"fortran_handle({name})" if self.fortran else f"handle_at({name})"

    def in_place(self, name: str) -> str:
        return f"fortran_in_place({name})" if self.fortran else f"({name} == mpi.in_place)"

    def in_c(self, name: str) -> str:
        """The argument as collectives.c wants it."""
        if name in BUFFERS:
            return f"fortran_buffer({name})" if self.fortran else name
        if name.endswith("type") or name == "op":
            return f"{'operator' if name == 'op' else 'type'}_in_c({self.handle(name)})"
        if name.endswith(("counts", "displacements")):
            return name  # the address of integers, in both languages
        if name == "request":
            return "(word)&made" if self.fortran else name
        return self.handle(name) if name == "comm" else self.number(name)

    def size(self, count: str, type_: str) -> str:
        return f"{self.number(count)}, {self.handle(type_)}"


def sized(form: Form, kind: str, arguments: list[str]) -> str:
    """Count and type of a rank's part, as two arguments. Arguments that MPI_IN_PLACE makes void are not read."""
    if "count" in arguments:
        return form.size("count", "type")
    for buffer, usual, other in PAIRS[kind]:
        if buffer in arguments and f"{usual}count" in arguments:
            void = form.in_place(buffer)
            count, type_ = form.number(f"{usual}count"), form.handle(f"{usual}type")
            if f"{other}count" not in arguments:  # a list of counts, of which a rank's own is hard to find
                return f"{void} ? 0 : {count}, {void} ? 0 : {type_}"
            instead = form.number(f"{other}count"), form.handle(f"{other}type")
            return f"{void} ? {instead[0]} : {count}, {void} ? {instead[1]} : {type_}"
    return "0, 0"


def told(form: Form, kind: str, arguments: list[str], operation: str) -> str:
    """The call of record.c for a kind."""
    said, comm = f"{operation}, begin", form.handle("comm")
    match kind:
        case "send":
            return f"record_send({said}, {form.size('count', 'type')}, {form.number('dest')}, {comm})"
        case "receive" | "post":
            many = form.size("count", "type")
            return f"record_receive({said}, {many}, {form.number('source')}, {comm}, {int(kind == 'receive')})"
        case "exchange":
            peers = f"{form.number('dest')}, {form.number('source')}"
            return f"record_exchange({said}, {form.size('count', 'type')}, {peers}, {comm})"
        case "keep":
            what = f"{form.size('count', 'type')}, {form.number('dest')}, {comm}"
            return f"remember_request({form.at('request')}, {what}), record_time({said})"
        case "start":
            return f"record_start({said}, {form.at('request')})"
        case "startall":
            kept = "true" if form.fortran else "false"
            return f"record_starts({said}, {form.number('number')}, requests, {kept})"
        case "collective" | "each":
            root = form.number("root") if "root" in arguments else "-1"
            each = int(kind == "each")
            return f"record_collective({said}, {sized(form, kind, arguments)}, {each}, {root}, {comm})"
        case "sum":
            return f"record_sum({said}, counts, {form.handle('type')}, {comm})"
        case "unsized":
            return f"record_collective({said}, 0, 0, 0, -1, {comm})"
        case "put":
            return f"record_put({said}, {form.size('count', 'type')})"
        case "test":
            return f"record_test({said})"
        case "time" | "freerequest" | "freecomm" | "freetype":
            return f"record_time({said})"
    raise SystemExit(f"generate.py: {kind} is no kind")


def around(name: str, arguments: list[str]) -> tuple[str, str]:
    """The code about requests in C before a call and after it: Fortran's functions call C's, by either name."""
    if name == "Request_free":
        return "pending_freed(request);", ""
    if not name.startswith(NAMES_REQUESTS):
        return "", ""
    if name == "Request_get_status":  # which has the handle, not where it is
        return "named = pending_named(1, (word)&request);", "pending_seen(named, result ? 0 : flag);"
    named = "number, requests" if "requests" in arguments else "1, request"
    return f"named = pending_named({named});", "pending_ended(named);"


def profiled(name: str, arguments: list[str]) -> str:
    """A function by its profiling name, which is not counted."""
    before, after = around(name, arguments)
    declared = ", ".join(f"word {word}" for word in arguments)
    lines = [
        f"int PMPI_{name}({declared});",
        f"int PMPI_{name}({declared})",
        "{",
        f'    static const char *const names[] = {{"PMPI_{name}", NULL}};',
        f"    static int (*next)({declared});",
        *(["    struct pending *named;"] if after else []),
        "    int result;",
        "",
        "    if (!next)",
        f"        *(void **)&next = function_next(names, (void *)(size_t)PMPI_{name});",
        f"    {before}",
        f"    result = next({', '.join(arguments)});",
        *([f"    {after}"] if after else []),
        "    return result;",
        "}",
    ]
    return "\n".join(lines)


def by_shared_memory(form: Form, name: str, passed: str) -> list[str]:
    """The call of the library's function, with its messages by shared memory."""
    fortran, error = str(int(form.fortran)), "ierror ? *(int *)ierror : 0" if form.fortran else "result"
    before: list[str] = []
    after: list[str] = []

    def then(condition: str, call: str) -> list[str]:
        if not form.fortran:
            return [f"    if ({condition})", f"        result = {call};"]
        set_error = ["        if (ierror)", "            *(int *)ierror = result;"]
        return [f"    if ({condition}) {{", f"        result = {call};", *set_error, "    }"]

    if name in WAITED:
        begin, end = WAITED[name]
        status = "statuses" if "statuses" in begin else "status"
        values = {word: f"*(const int *){word}" for word in ("flag", "index", "outcount")}
        before += ["    struct waited waited;", f"    word seen = {status};", "", "    waited.ours = false;"]
        arguments = begin.format(number=form.number("number"))
        before += ["    if (receives)", f"        seen = waited_begin(&waited, {fortran}, {arguments});"]
        after += then("waited.ours", "waited_" + end.format(error=error, **values))
        passed = passed.replace(status, "seen")
    if name in GOT_IN:
        seen = f"shared ? shared_status({fortran}, status, &memory) : status"
        before += ["    struct own_status memory;", f"    word seen = {seen};"]
        after += then("shared", f"shared_receive({fortran}, {error}, {GOT_IN[name]}, comm, seen)")
        passed = passed.replace(" status", " seen")
    if name in PUT:
        before += ["    word at = buf, many = count, kind = type;", "", "    if (shared)"]
        before += [f"        shared_send({fortran}, &at, &many, &kind, dest, comm);"]
        passed = passed.replace("buf, count, type", "at, many, kind", 1)
    if name in ("Irecv", "Recv_init"):
        posted = f"shared_post({fortran}, request, buf, count, type, comm, {int(name == 'Recv_init')})"
        after += then(f"shared && !({error})", posted)
    if name == "Request_free":
        before += ["    if (receives)", f"        shared_forget({fortran}, request);"]
    return [*before, f"    result = next({passed});", *after]


def wrapper(name: str, symbols: list[str], form: Form, kind: str, arguments: list[str], operation: str) -> str:
    """A function. Its first symbol is its name, the others are further names of it."""
    words = [*arguments, "ierror"] if form.fortran else arguments
    declared, passed = ", ".join(f"word {word}" for word in words) or "void", ", ".join(words)
    names = ", ".join(f'"{symbol}"' for symbol in symbols)
    before, after = ("", "") if form.fortran else around(name, arguments)
    # MPICH's Fortran calls MPI, and is counted there; but for mpi_f08, PMPI where no buffer is an argument.
    elsewhere = form.fortran and not (symbols[0].endswith("_f08_") and not BUFFERS & set(arguments))
    ours = "!mpi.has_own_fortran || " if elsewhere else ""
    lines = [
        f"int {symbols[0]}({declared});",
        f"int {symbols[0]}({declared})",
        "{",
        "    static const char *const names[] = {" + names + ", NULL};",
        f"    static int (*next)({declared});",
        *(["    uint64_t begin;"] if kind not in ("begin", "end") else []),
        *(["    struct pending *named;"] if after else []),
        *(["    word made = 0;"] if form.fortran and name in AT_ONCE else []),
        "    int result;",
        "",
        "    if (!next)",
        f"        *(void **)&next = function_next(names, (void *)(size_t){symbols[0]});",
    ]
    if kind == "begin":
        lines += [f"    result = next({passed});", "    library_begins();", "    return result;", "}"]
    elif kind == "end":
        lines += [
            "    library_ends();",
            f"    result = next({passed});",
            "    shared_remove();",
            "    return result;",
            "}",
        ]
    else:
        done = "!*(const int *)ierror" if form.fortran else "!result"
        missing = "!ierror || " if form.fortran else ""
        if kind in FREED:  # before there can be another one of the name; also within another call, as by a callback
            lines += ["    if (page)", f"        {FREED[kind].format(form.at(arguments[0]))};"]
        lines += [f"    {before}"] if before else []
        if after:
            lines += [f"    if (!call_begins(&begin, {operation})) {{", f"        result = next({passed});"]
            lines += [f"        {after}", "        return result;", "    }"]
        else:
            lines += [f"    if ({ours}!call_begins(&begin, {operation}))", f"        return next({passed});"]
        if name in BY_LEVELS:
            wanted = BY_LEVELS[name].format_map({word: form.in_c(word) for word in arguments})
            lines += [
                f"    if (!levels || !levels_{name.lower()}(&result, {wanted}))",
                f"        result = next({passed});",
            ]
            lines += ["    else if (ierror)", "        *(int *)ierror = result;"] if form.fortran else []
            lines += ["    choices_end();"]
        elif name in AT_ONCE:
            wanted = AT_ONCE[name].format_map({word: form.in_c(word) for word in arguments})
            lines += [
                f"    if (!levels || !direct_{name.lower()}(&result, {wanted}))",
                f"        result = next({passed});",
            ]
            if form.fortran:
                lines += ["    else {", "        if (!result)", "            *(int *)request = fortran_request(made);"]
                lines += ["        if (ierror)", "            *(int *)ierror = result;", "    }"]
        else:
            lines += by_shared_memory(form, name, passed)
            lines += [f"    {after}"] if after else []
        lines += [f"    if ({missing}{done})"]
        lines += [f"        {told(form, kind, arguments, operation)};", "    else"]
        lines += [f"        record_time({operation}, begin);", "    return result;", "}"]
    prototype = [f'int {symbol}({declared}) __attribute__((alias("{symbols[0]}")));' for symbol in symbols[1:]]
    return "\n".join(lines + prototype)


def forms(name: str, kind: str, arguments: list[str], fortran: list[str] | None, number: int) -> list[str]:
    """All forms of a function of the table."""
    operation, lower = str(number), f"mpi_{name.lower()}"
    made = [wrapper(name, [f"MPI_{name}"], Form(), kind, arguments, operation)]
    words = arguments if fortran is None else fortran
    manglings = [f"{lower}_", f"{lower}__"]
    for symbols in (manglings, [f"{lower}_f08_"]):
        made += [wrapper(name, symbols, Form(fortran=True), kind, words, operation)]
    if name.startswith(NAMES_REQUESTS):
        made += [f"#ifndef WHERRY_SIMULATED\n{profiled(name, arguments)}\n#endif"]
    return made


def main(table: Path, output: Path) -> None:
    made: list[str] = []
    names: list[str] = []
    for line in table.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        usual, colon, other = line.partition(":")
        joined, kind, *arguments = usual.split()
        for name in joined.split(","):
            made += forms(name, kind, arguments, other.split() if colon else None, len(names))
            names.append(name)
    head = HEAD % (", ".join(f'"{name}"' for name in names), len(names))
    output.write_text(head + "\n" + "\n\n".join(made) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
