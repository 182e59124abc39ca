"""report.pdf: the same tables, figures and sentences as the page, set by matplotlib on A4, without other programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wherry.lab.report.figures import Drawing
from wherry.lab.report.page import Report, Table

_WIDTH, _HEIGHT = 8.27, 11.69  # inches of A4
_MARGIN = 0.7
_LINE = 0.155
"""Inches from line to line at 9 points."""
_ON_A_PAGE = 3
"""Figures on a page."""
_COLUMNS = 100
"""Characters of a line in the fixed-width type of 8 points."""


def write(report: Report, drawings: Sequence[tuple[str, Drawing]], path: Path) -> None:
    """Writes the file."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.backends.backend_pdf import PdfPages

    with PdfPages(path, metadata={"Title": report.title, "CreationDate": None}) as pages:
        _text_pages(pages, report.title, [*_wrapped(report.summary), "", *_tables(report.tables)])
        for start in range(0, len(drawings), _ON_A_PAGE):
            _figure_page(pages, drawings[start : start + _ON_A_PAGE])
        remarks = [line for remark in report.remarks for line in [*_wrapped(f"- {remark}", "  "), ""]]
        facts = [line for key, value in report.environment.items() for line in _wrapped(f"{key}: {value}", "    ")]
        said = "What these numbers can and cannot say"
        _text_pages(pages, said, [*remarks, "Where they were taken", "", *facts])
        _text_pages(pages, "Details", _tables(report.details))


def _figure_page(pages: Any, drawings: Sequence[tuple[str, Drawing]]) -> None:
    """Some figures below each other, each with its caption above it."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    left, below = _MARGIN / _WIDTH, _MARGIN / _HEIGHT
    layout = ConstrainedLayoutEngine(rect=(left, below, 1 - 2 * left, 1 - 2 * below), hspace=0.06)
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout=layout)
    parts = figure.subfigures(_ON_A_PAGE, 1, squeeze=False)[:, 0]
    for part, (caption, drawing) in zip(parts, drawings, strict=False):
        part.suptitle("\n".join(textwrap.wrap(caption, 95)), fontsize=8.5)
        drawing.draw(part.subplots())
    pages.savefig(figure)


def _text_pages(pages: Any, title: str, lines: list[str]) -> None:
    from matplotlib.figure import Figure

    each = int((_HEIGHT - 3 * _MARGIN) / _LINE)
    for start in range(0, max(1, len(lines)), each):
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        heading = "\n".join(textwrap.wrap(title if start == 0 else f"{title} (continued)", 60))
        figure.text(_MARGIN / _WIDTH, 1 - _MARGIN / _HEIGHT, heading, fontsize=13, weight="bold", va="top")
        for row, line in enumerate(lines[start : start + each]):
            at = 1 - (1.6 * _MARGIN + row * _LINE) / _HEIGHT
            text = line.replace("$", r"\$")  # no mathematics
            figure.text(_MARGIN / _WIDTH, at, text, fontsize=7.5, family="monospace", va="top")
        pages.savefig(figure)


def _tables(tables: Sequence[Table]) -> list[str]:
    lines = []
    for table in tables:
        lines += [table.title, "-" * len(table.title), *_table(table), ""]
    return lines


def _table(table: Table) -> list[str]:
    """Rows in columns; a cell that is too wide goes on below itself."""
    rows = [[str(cell) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(1, *(len(row[i]) for row in rows)) for i in range(len(table.head))]  # 1: textwrap takes no less
    while sum(widths) + 2 * len(widths) > _COLUMNS:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for part in range(max(map(len, cells))):
            texts = [cell[part] if part < len(cell) else "" for cell in cells]
            lines.append("  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
    return lines


def _wrapped(text: str, indent: str = "", most: int = 40) -> list[str]:
    return textwrap.wrap(text, _COLUMNS, subsequent_indent=indent, max_lines=most, placeholder=" ...")
