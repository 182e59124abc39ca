"""`wherry`: parses the command line, calls the command, turns errors into three lines and an exit code.

Invariant: a command's module is imported only when that command runs, so `wherry --help` stays quick.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from wherry.base import interrupts
from wherry.base.components import installed
from wherry.base.errors import Code, Failed, Refused, WherryError
from wherry.base.paths import as_root
from wherry.base.version import __version__
from wherry.cli import program_words, streams

_DAILY = Group("Every day", sort_key=1)
_NOUNS = Group("Everything else, behind its noun", sort_key=2)
_COMMANDS = (
    ("doctor", "doctor:doctor", "Show what this machine supports, and remedies.", _DAILY),
    ("up", "cluster:up", "Make, change or repair the cluster of a file.", _DAILY),
    ("status", "status:status", "Show all clusters, or one with its nodes and jobs.", _DAILY),
    ("run", "run:run", "Run an MPI program on a cluster.", _DAILY),
    ("ssh", "ssh:ssh", "Open a shell on a node, or run a command line there.", _DAILY),
    ("exec", "exec:exec_", "Run a program on a node, with a terminal when there is one.", _DAILY),
    ("cp", "cp:cp", "Copy files to a node, or from it.", _DAILY),
    ("logs", "job:logs", "Show the output of a job.", _DAILY),
    ("move", "move:move", "Move a node to another host while its job runs.", _DAILY),
    ("swap", "swap:swap", "Swap two nodes while their jobs run.", _DAILY),
    ("balance", "balance:balance", "Show which nodes should move, and why; or move them.", _DAILY),
    ("down", "cluster:down", "Remove a cluster, or everything.", _DAILY),
    ("dashboard", "dashboard:dashboard", "Open the web page, signed in.", _DAILY),
    ("study", "study:app", "Repeatable experiments that end in a report.", _DAILY),
    ("demo", "demo:demo", "HPL natively, on a virtual cluster, and with a live move.", _DAILY),
    ("fabric", "fabric:app", "The fabric: sites, their hosts, and the links between them.", _NOUNS),
    ("site", "host:site", "Sites: locations with a network of their own, and the links between them.", _NOUNS),
    ("host", "host:app", "Hosts: the machines that carry nodes; add, drain, restore, lost.", _NOUNS),
    ("node", "node:app", "Nodes: the machines of clusters.", _NOUNS),
    ("lease", "lease:app", "Leases: the times at which clusters end.", _NOUNS),
    ("queue", "queue:app", "The queue: clusters that wait for room.", _NOUNS),
    ("job", "job:app", "Jobs: MPI programs run on clusters; their profiles.", _NOUNS),
    ("inside", "inside:inside", "Compiler flags for programs that ask Wherry themselves.", _NOUNS),
    ("image", "image:app", "Images: kernels and files that nodes of kind vm boot from.", _NOUNS),
    ("ledger", "ledger:app", "The ledger of moves: prediction and result of each.", _NOUNS),
    *((*command, _NOUNS) for component in installed() for command in component.commands),
    ("op", "op:app", "Operations: long commands, running and ended.", _NOUNS),
    ("event", "op:event", "Events: a log of all changes, with their reasons.", _NOUNS),
    ("daemon", "daemon:daemon", "The daemon: start, stop, listen, back up.", _NOUNS),
    ("login", "login:login", "Sign in to a daemon over the network.", _NOUNS),
    ("logout", "login:logout", "Sign out again.", _NOUNS),
    ("user", "user:app", "Users: accounts that ask over the network, with roles and quotas.", _NOUNS),
    ("token", "token:app", "Tokens: secrets by which programs ask as an account.", _NOUNS),
    ("key", "key:app", "Access keys of the EC2 Query API, for aws-cli, boto3 and others.", _NOUNS),
    ("ssh-key", "ssh_key:app", "Public keys, by which one reaches one's nodes over SSH.", _NOUNS),
    ("ssh-config", "ssh:ssh_config", "Print one's nodes as hosts for ssh, scp, sftp and rsync.", _NOUNS),
    ("ec2-env", "key:ec2_env", "Make an access key, and print the environment of its clients.", _NOUNS),
    ("project", "project:app", "Projects: users who share clusters.", _NOUNS),
    ("audit", "login:audit", "The audit log: each request with user, address and result.", _NOUNS),
    ("completion", "completion:completion", "Completion of commands, options and names for a shell.", _NOUNS),
    ("man", "man:man", "The manual page, made from the commands.", _NOUNS),
    ("version", "doctor:version", "The version.", _NOUNS),
    ("bench", "bench:app", "Benchmarks of Wherry itself, beside baselines and goals.", _NOUNS),
)


def make_app(brief: bool) -> App:
    """The whole command line. With `brief` each command has one line of help, and its module is not imported."""
    app = App(
        name="wherry",
        help="Runs unmodified MPI programs on virtual clusters and moves their nodes while they run.",
        version=__version__,
        help_format="plaintext",
        help_epilogue="Every command has --help, and most have -o json. Start with: wherry doctor",
        default_parameter=Parameter(negative=()),
        verbose=False,
        suppress_keyboard_interrupt=False,
    )
    for order, (name, where, text, group) in enumerate(_COMMANDS):
        brief_help = {"help": text} if brief else {}
        place = where if "." in where else f"wherry.cli.{where}"
        app.command(place, name=name, group=group, sort_key=order, **brief_help)
    for flag in ("--help", "--version"):
        app[flag].group = _NOUNS
    return app


def main(words: Sequence[str] | None = None) -> None:
    """The program `wherry`."""
    arguments = list(sys.argv[1:] if words is None else words)
    streams.open_closed()
    code = interrupts.exit_code(_run(arguments))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it would hide the code while Python ends
    sys.exit(code)


def _run(words: list[str]) -> int:
    words = program_words.cut(words)
    try:
        app = make_app(brief=not words or words[0] in ("-h", "--help"))
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except CycloptsError as error:
        return _report(_usage_error(error), words)
    except WherryError as error:
        return _report(error, words)
    except KeyboardInterrupt:
        return Code.CANCELLED.exit_code
    except BrokenPipeError:  # the reader of the output has ended, e.g. `| head`
        streams.discard_output()
        return streams.READER_GONE
    except OSError as error:  # a file of another user, a full disk
        streams.discard_output()
        return _report(_system_error(error, words), words)


def _system_error(error: OSError, words: list[str]) -> WherryError:
    what, why = str(error.filename or "a system call failed"), error.strerror or type(error).__name__
    if isinstance(error, PermissionError):
        return Failed(Code.PERMISSION, what, why, as_root(words))
    if error.filename is None and error.errno in streams.UNWRITABLE:
        return streams.unwritable("output", error)
    return Failed(Code.FAILED, what, why)


def _usage_error(error: CycloptsError) -> WherryError:
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
