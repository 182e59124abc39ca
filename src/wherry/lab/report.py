"""A self-contained HTML page: tables, figures as inline SVG, the environment, and what may not be read out of it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2


@dataclass(frozen=True)
class Table:
    """Rows of texts below one head."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Report:
    """What goes on the page."""

    title: str
    summary: str
    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Writes the page."""
        path.write_text(_PAGE.render(report=self))


def svg(figure: Any) -> str:
    """A matplotlib figure as SVG text, its fonts as text so that the page stays small and can be searched."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wherry"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


_PAGE = jinja2.Environment(autoescape=True).from_string(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ report.title }}</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; background: #fff; padding: .5rem; } figure svg { width: 100%; height: auto; }
figcaption { color: #333; font-size: .9rem; } .scroll { overflow-x: auto; }
</style></head><body>
<h1>{{ report.title }}</h1>
<p>{{ report.summary }}</p>
{% for table in report.tables %}<h2>{{ table.title }}</h2>
<div class="scroll"><table><thead><tr>{% for cell in table.head %}<th>{{ cell }}</th>{% endfor %}</tr></thead><tbody>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}
{% for caption, image in report.figures %}<figure>{{ image | safe }}<figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
{% if report.remarks %}<h2>What these numbers can and cannot say</h2><ul>
{% for remark in report.remarks %}<li>{{ remark }}</li>
{% endfor %}</ul>{% endif %}
<h2>Where they were taken</h2>
<table><tbody>{% for key, value in report.environment.items() %}<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}</tbody></table>
</body></html>
"""
)
