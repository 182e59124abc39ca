"""`wherry`: parses the words, calls the command, turns errors into three lines and an exit code.

Invariant: a command's module is imported only when that command is asked for, so `wherry --help` stays quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from wherry import __version__
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import as_root

_DAILY = Group("Every day", sort_key=1)
_NOUNS = Group("Things", sort_key=2)
_SERVICE = Group("Machine and service", sort_key=3)
_LAB = Group("Lab", sort_key=4)
_COMMANDS = (
    ("up", "cluster:up", "Make, change or repair the cluster that a file describes.", _DAILY),
    ("status", "cluster:status", "Show the clusters; or one with its nodes and jobs.", _DAILY),
    ("run", "job:run", "Run an MPI program on a cluster.", _DAILY),
    ("logs", "job:logs", "Show what a job wrote.", _DAILY),
    ("move", "move:move", "Move a node to another host while its job runs.", _DAILY),
    ("balance", "balance:balance", "Show which nodes should be elsewhere, and why; or move them.", _DAILY),
    ("down", "cluster:down", "Remove a cluster; or everything.", _DAILY),
    ("fabric", "fabric:app", "The fabric: sites, their hosts, and what joins them.", _NOUNS),
    ("site", "host:site", "Sites: places with a network of their own.", _NOUNS),
    ("host", "host:app", "Hosts: the machines that carry nodes.", _NOUNS),
    ("node", "node:app", "Nodes: the machines of clusters.", _NOUNS),
    ("job", "job:app", "Jobs: MPI programs run on clusters.", _NOUNS),
    ("image", "image:app", "Images: what nodes of kind vm are booted with.", _NOUNS),
    ("tile", "tile:app", "Tiles: small kernels whose processes move between them.", _NOUNS),
    ("op", "op:app", "Operations: the long acts that were asked for.", _NOUNS),
    ("event", "op:event", "Events: what happened, when, to what, and why.", _NOUNS),
    ("doctor", "service:doctor", "Say what this machine can and cannot do.", _SERVICE),
    ("daemon", "service:daemon", "Start, stop or show the daemon.", _SERVICE),
    ("version", "service:version", "Print the version.", _SERVICE),
    ("study", "study:app", "Studies: repeatable experiments that end in a report.", _LAB),
    ("bench", "bench:app", "Benchmarks of Wherry itself, beside baselines and goals.", _LAB),
    ("vmbench", "bench:vmbench", "A virtual machine's move under a job, beside virsh migrate --live.", _LAB),
    ("demo", "demo:demo", "HPL natively, on a virtual cluster, and with a live move.", _LAB),
)


def make_app(brief: bool) -> App:
    """The whole command line. `brief` gives every command one line, without importing it; else each tells it all."""
    app = App(
        name="wherry",
        help="Runs unmodified MPI programs on virtual clusters and moves their nodes while they run.",
        version=__version__,
        help_format="plaintext",
        help_epilogue="Every command has --help, and most have -o json. Begin with: wherry doctor",
        default_parameter=Parameter(negative=()),
        verbose=False,
        suppress_keyboard_interrupt=False,
    )
    for name, where, text, group in _COMMANDS:
        app.command(f"wherry.cli.{where}", name=name, group=group, **({"help": text} if brief else {}))
    return app


def main(words: Sequence[str] | None = None) -> None:
    """The program `wherry`."""
    given = list(sys.argv[1:] if words is None else words)
    sys.exit(_run(given))


def _run(words: list[str]) -> int:
    try:
        app = make_app(brief=not words or words[0] in ("-h", "--help"))
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        return _report(_usage(error), words)
    except WherryError as error:
        return _report(error, words)
    except KeyboardInterrupt:
        return Code.CANCELLED.exit_code
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        sys.stderr.close()
        return 1
    except OSError as error:  # a file of another user, a disk that is full
        return _report(_of_the_system(error, words), words)


def _of_the_system(error: OSError, words: list[str]) -> WherryError:
    what, why = str(error.filename or "the system refused something"), error.strerror or type(error).__name__
    if isinstance(error, PermissionError):
        return Failed(Code.PERMISSION, what, why, as_root(words))
    return Failed(Code.FAILED, what, why)


def _usage(error: CycloptsError) -> WherryError:
    text = " ".join(str(error).split())
    what, _, suggestion = text.partition(" Did you mean")
    command = " ".join(["wherry", *(error.command_chain or ())])
    return Refused(Code.USAGE, what, f"did you mean{suggestion}" if suggestion else "", f"{command} --help")


def _report(error: WherryError, words: list[str]) -> int:
    from wherry.cli.output import report

    ours = words[: words.index("--")] if "--" in words else words
    pairs = zip(ours, [*ours[1:], ""], strict=True)
    as_json = any(pair in (("-o", "json"), ("--output", "json")) for pair in pairs) or "--output=json" in ours
    return report(error, as_json)


if __name__ == "__main__":
    main()
