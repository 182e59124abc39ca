"""The scripts of lint: the rules of plain English (scripts/check-words), each of which finds its faults, while good
sentences have no hit; and circles of imports (scripts/check-cycles)."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

TOP = Path(__file__).resolve().parents[3]
_LOADER = importlib.machinery.SourceFileLoader("check_words", str(TOP / "scripts/check-words"))
_SPEC = importlib.util.spec_from_loader("check_words", _LOADER)
assert _SPEC is not None
words = importlib.util.module_from_spec(_SPEC)
_LOADER.exec_module(words)

CONTRIBUTING = (TOP / "CONTRIBUTING.md").read_text()
FAULTS = {
    "clause as a noun": (
        "What came meanwhile is sent again.",
        "The rounds end. Who asks is refused.",
        "The ledger has a line for a move: what came of it.",
        "Whoever is refused gets an error.",
        "The move sends what came meanwhile.",
        "what came meanwhile is lost",
        "A host with a disk, and one that has none.",
        "The error is that which CRIU printed.",
        "Only those that run are moved.",
    ),
    "program as a person": (
        "A node stands during the dump.",
        "The daemon tells the agent.",
        "The record says when.",
        "The kernel knows the page.",
        "The daemon heard of the host.",
        "The daemon can tell the page from others.",
        "It believes the first answer.",
    ),
    "double negation": (
        "A file that is no program is not without a reason here.",
        "A lock keeps no move from not being made.",
        "No file that is no program is run.",
        "Nobody may ask for nothing.",
        "It is not unlikely.",
    ),
    "term": ("A move that failed is taken back.", "Mend the link.", "The program goes on."),
}
GOOD = (
    "The error shows what to type next, and the page explains what a move costs.",
    "What does a move cost?",
    "A user who asks is refused; the host that fails is removed.",
    "The letter K stands for KVM, and the host is known.",
    "There is no InfiniBand and no GPU, and a page is not sent if it has not changed.",
    "The rounds do not end until the pages are few; nothing is lost.",
    "A wherry-mending crew is nobody's.",
    "No file is at /no/such/file; it cannot run no-such-program, the host is 'nowhere'.",
    "The answer has code=BUG what=oh, and its output is in /tmp/said of the node.",
    "The error must not reveal files in directories that the owner cannot read; None is no limit.",
)


def _hits(file: str, text: str, rules: list[object] | None = None) -> list[tuple[int, str]]:
    checked = words.make_rules(CONTRIBUTING) if rules is None else rules
    return sorted((line, rule) for line, rule, _ in words.hits(file, text, checked))


def test_every_rule_has_sentences_here() -> None:
    assert {name for name, _, _ in words.make_rules(CONTRIBUTING)} == set(FAULTS)


@pytest.mark.parametrize(("rule", "sentence"), [(rule, each) for rule, those in FAULTS.items() for each in those])
def test_a_fault_is_found_by_its_rule(rule: str, sentence: str) -> None:
    assert (1, rule) in _hits("page.md", sentence)
    others = [each for each in words.make_rules(CONTRIBUTING) if each[0] != rule]
    assert (1, rule) not in _hits("page.md", sentence, others)


@pytest.mark.parametrize("sentence", GOOD)
def test_good_english_has_no_hit(sentence: str) -> None:
    assert _hits("page.md", sentence) == []


def test_terms_are_the_rows_of_the_table_and_none_refuses_what_another_asks_for() -> None:
    rows = [rule for rule in words.make_rules(CONTRIBUTING) if rule[0] == "term"]
    table = CONTRIBUTING.split("| Say | Not |")[1].split("\n\n")[0].splitlines()[2:]
    assert [f"say {line.split(' | ')[0].lstrip('| ')}" for line in table] == [instead for _, _, instead in rows]
    assert len(rows) <= 30
    for _, pattern, _ in rows:
        assert not any(pattern.search(instead) for _, _, instead in rows)


def test_a_hit_has_its_line_in_each_kind_of_file() -> None:
    assert _hits("page.md", "# Title\n\nA table:\n\n| a | b |\n|---|---|\n| x | the log says it |\n") == [
        (7, "program as a person")
    ]
    assert _hits("page.md", "Fine.\n\n```\nthe log says it\n```\n\nAlso `the log says it`,\nand the log\nsays it.") == [
        (9, "program as a person")
    ]
    assert _hits("module.py", '"""Good words in the first line.\n\nThe log says it.\n"""\n') == [
        (3, "program as a person")
    ]
    assert _hits("module.py", "x = 1  # one\n# the log\n# says it\n") == [(3, "program as a person")]
    assert _hits("module.py", 'raise ValueError(f"the log {x} says it")\n') == [(1, "program as a person")]
    comments = "/* Fine. */\n/* the log\n * says it */\n", "// the log\n// says it\n"
    assert _hits("file.c", 'puts("the log says it");\n'.join(comments)) == [
        (3, "program as a person"),
        (4, "program as a person"),
        (6, "program as a person"),
    ]
    assert _hits("script", "#!/bin/sh\n# the log\n# says it\nsays it x\n") == [(3, "program as a person")]


def test_headings_and_code_are_left_alone() -> None:
    assert _hits("page.md", "## What you get\n\n    the log says it\n") == []


# `make lint` refuses circles of imports, wherever the imports stand.


SCRIPT = Path(__file__).parents[3] / "scripts" / "check-cycles"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = spec_from_loader("check_cycles", SourceFileLoader("check_cycles", str(SCRIPT)))
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(directory: Path, **files: str) -> Path:
    for name, text in {"__init__": "", **files}.items():
        (directory / f"{name}.py").write_text(text)
    return directory


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "from p.a import A",
        "from p import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import A",
        "def later() -> None:\n    from p import a",
    ],
)
def test_a_circle_is_found(check: ModuleType, tmp_path: Path, back: str) -> None:
    graph = check.python_imports(package(tmp_path, a="from p.b import B", b="import p.c", c=back, d="import p.a"), "p")
    assert check.circles(graph) == [frozenset({"p.a", "p.b", "p.c"})]


def test_a_tree_has_none(check: ModuleType, tmp_path: Path) -> None:
    graph = check.python_imports(package(tmp_path, a="from p import b, c", b="from p.c import C", c="import os"), "p")
    assert check.circles(graph) == []


def test_here_is_no_unknown_one(check: ModuleType) -> None:
    found = check.circles(check.python_imports(SCRIPT.parents[1] / "src" / "wherry", "wherry"))
    assert set(found) == set(check.KNOWN)
