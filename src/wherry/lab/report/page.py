"""A self-contained HTML page: tables, figures as inline SVG, remarks on limits of the numbers, environment."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2


@dataclass(frozen=True)
class Table:
    """A titled table of texts with one header row."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    main: bool = False
    """A main table is placed before the figures and never folded, however long it is."""

    @property
    def kinds(self) -> list[str]:
        """CSS class of each column: `n` if all its cells are numbers, else `t`."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.head)
        return ["n" if any(column) and all(map(_is_number, column)) else "t" for column in columns]


def _is_number(text: str) -> bool:
    return text in ("", "-", "not measured") or text.lstrip("-<")[:1].isdigit()


@dataclass
class Report:
    """The contents of the page."""

    title: str
    summary: str
    first: list[tuple[str, str]] = field(default_factory=list)
    """As `figures`, over the whole width and before the tables."""
    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)
    """Captions and SVG."""
    details: list[Table] = field(default_factory=list)
    """Tables placed after the figures, each folded when it is long."""
    remarks: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The page."""
        return _PAGE.render(report=self, long=_LONG)

    def write(self, path: Path) -> None:
        """Writes the page."""
        path.write_text(self.html())


def svg(figure: Any) -> str:
    """A matplotlib figure as SVG. Labels stay text, so that the page is small and searchable."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wherry"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


_LONG = 12
"""A detail table with at least this many rows is folded."""
_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ report.title }}</title>
<style>
:root { color-scheme: light dark; --line: #8883; --soft: #8881; --quiet: #777; --mark: #1f5a8f; }
@media (prefers-color-scheme: dark) { :root { --quiet: #999; --mark: #7db3e0; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, "DejaVu Sans", sans-serif; max-width: 66rem; margin: 0 auto;
       padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 .6rem; }
h2, summary { font-size: 1.1rem; font-weight: 600; margin: 2.2rem 0 .5rem; }
.lead { border-left: 4px solid var(--mark); padding: .1rem 0 .1rem 1rem; margin: 0; max-width: 52rem; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; line-height: 1.4;
        font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; text-align: left; }
thead th { border-bottom: 2px solid var(--line); color: var(--quiet); font-weight: 600; vertical-align: bottom; }
tbody tr:hover { background: var(--soft); }
.n { text-align: right; } .n.s { white-space: nowrap; } td:first-child { font-weight: 500; }
.scroll { overflow-x: auto; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1.2rem;
           margin-top: 2rem; }
figure { margin: 0; background: #fff; color: #222; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; }
.first { margin-top: 1.6rem; }
figure svg { width: 100%; height: auto; display: block; } figcaption { font-size: .85rem; padding-top: .5rem; }
details summary { cursor: pointer; } .count { color: var(--quiet); font-weight: 400; font-size: .85rem; }
li { margin: .35rem 0; max-width: 56rem; } .where td:first-child { white-space: nowrap; color: var(--quiet); }
.where td { overflow-wrap: anywhere; }
@page { size: A4; margin: 16mm 14mm;
        @bottom-right { content: counter(page) " / " counter(pages); font: 8pt "DejaVu Sans"; color: #777; } }
@media print {
  body { max-width: none; padding: 0; font-size: 9pt; } table { font-size: 7.5pt; } th, td { padding-right: .45rem; }
  .n.s { white-space: normal; } .scroll { overflow: visible; } .figures { display: block; }
  figure { break-inside: avoid; margin-bottom: .8rem; } h2, summary { break-after: avoid; } tr { break-inside: avoid; }
}
</style></head><body>
{% macro rows(table) %}
<div class="scroll"><table><thead><tr>
{%- for cell in table.head %}<th class="{{ table.kinds[loop.index0] }}">{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in table.rows %}
<tr>{% for cell in row %}
<td class="{{ table.kinds[loop.index0] }}{{ " s" if cell | length < 36 }}">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endmacro %}
<h1>{{ report.title }}</h1>
<p class="lead">{{ report.summary }}</p>
{% for caption, image in report.first %}
<figure class="first">{{ image | safe }}<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
{% for table in report.tables %}
<h2>{{ table.title }}</h2>
{{ rows(table) }}
{% endfor %}
{% if report.figures %}
<div class="figures">
{% for caption, image in report.figures %}
<figure>{{ image | safe }}<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
</div>
{% endif %}
{% if report.remarks %}
<h2>What these numbers can and cannot say</h2>
<ul>
{% for remark in report.remarks %}
<li>{{ remark }}</li>
{% endfor %}
</ul>
{% endif %}
{% for table in report.details %}
<details{{ "" if table.rows | length >= long else " open" }}><summary>{{ table.title }}
<span class="count">{{ table.rows | length }} rows</span></summary>
{{ rows(table) }}
</details>
{% endfor %}
<h2>Where they were taken</h2>
<table class="where"><tbody>
{% for key, value in report.environment.items() %}
<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table>
</body></html>
"""
)
