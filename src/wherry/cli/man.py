"""`wherry man`: the manual page, made from the commands."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

from cyclopts import App

from wherry.base.version import __version__

EXIT_CODES = {
    0: "ok",
    1: "failed",
    2: "usage: wrong words or a wrong file",
    3: "not found",
    4: "refused: nothing was changed",
    5: "wrong state",
    6: "partly done",
    7: "unreachable",
    8: "taken down: the cluster, and with it the job, was removed by somebody else",
    130: "interrupted",
}
ENVIRONMENT = {
    "WHERRY_INSTANCE": "the instance; instances share nothing. By default main, and one of their own for demo, bench "
    "run and study run, which take it down at their end",
    "WHERRY_STATE": "where state outlives a reboot, /var/lib/wherry by default",
    "WHERRY_DATABASE_URL": "postgresql://USER:PASSWORD@SERVER/DATABASE for the records, read when the instance's first "
    "daemon starts, which notes it; SQLite in WHERRY_STATE by default",
    "WHERRY_RUNTIME": "the OCI runtime of container nodes, by name or path; runc, else crun by default",
    "WHERRY_CRIU": "path of the CRIU to use; read when the daemon starts",
    "WHERRY_TWO_KERNELS": "1: containers may move between machines with two kernels, which has been tried too little; "
    "read when the daemon starts",
    "WHERRY_URL": "a daemon to ask over the network, https://HOST:PORT; empty: this machine's",
    "WHERRY_TOKEN": "the token to show there (wherry token create)",
    "WHERRY_CA": "a file with the certificates to trust there, for instance the daemon's ca.pem",
    "NO_COLOR": "no colors; there are none in pipes and files anyway",
}


def man() -> None:
    """Print the manual page of all commands: wherry man | man -l -."""
    from wherry.cli.main import make_app

    app = make_app(brief=False)
    lines = [
        f'.TH WHERRY 1 "" "Wherry {__version__}" "Wherry"',
        ".SH NAME",
        "wherry \\- virtual clusters for MPI programs",
    ]
    lines += [".SH SYNOPSIS", ".B wherry", ".I COMMAND", "[\\fIARGUMENTS\\fR]", ".SH DESCRIPTION", *_text(app.help)]
    lines += ["Every command has \\-\\-help, and most have \\-o json.", ".SH COMMANDS"]
    for words, command in _commands(app, ("wherry",)):
        lines += [f".SS {_escaped(' '.join(words))}", *_command(command)]
    for title, rows in (("EXIT STATUS", EXIT_CODES), ("ENVIRONMENT", ENVIRONMENT)):
        lines += [f".SH {title}"]
        lines += [part for key, text in rows.items() for part in (".TP", f".B {_escaped(str(key))}", *_text(text))]
    sys.stdout.write("\n".join(lines) + "\n")


def _commands(app: App, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], App]]:
    """All that can be typed, in the order of the help."""
    for name in app:
        if not name.startswith("-"):
            command = app[name]
            if command.default_command is not None:
                yield (*words, name), command
            yield from _commands(command, (*words, name))


def _command(command: App) -> Iterator[str]:
    """Its description, then each argument with its values, its default and its help."""
    description = inspect.cleandoc(inspect.getdoc(command.default_command) or "").split("\nParameters\n")[0]
    yield from _text(description)
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if not argument.show:
            continue
        names = [name for name in argument.names if not name.startswith("--no-")]
        yield ".TP"
        yield ".B " + _escaped(", ".join(names))
        if choices := argument.get_choices():
            yield _escaped(f"({', '.join(choices)})")
        yield from _text(argument.parameter.help or "")
        default = argument.field_info.default
        if (
            default not in (None, inspect.Parameter.empty, False, (), "")
            and argument.parameter.show_default is not False
        ):
            yield _escaped(f"Default: {default}.")


def _text(text: str) -> Iterator[str]:
    """Paragraphs as lines of roff."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield from (_escaped(line.strip()) for line in paragraph.splitlines())


def _escaped(line: str) -> str:
    """No character of the line is a command of roff."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line
