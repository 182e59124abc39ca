"""Studies, benchmarks, and their reports.

Invariant: importing this package raises UNSUPPORTED, with the command that installs them, when a library of the extra
`lab` is missing; so nothing is started without them.
"""

from __future__ import annotations

from importlib.util import find_spec

from wherry.base.errors import Code, Refused

LIBRARIES = ("jinja2", "matplotlib", "numpy", "scipy", "weasyprint")

if _missing := [name for name in LIBRARIES if find_spec(name) is None]:
    raise Refused(
        Code.UNSUPPORTED,
        "studies, benchmarks and the demo need the libraries of the lab",
        f"not installed: {', '.join(_missing)}",
        "pip install 'wherry[lab]', in a checkout: make setup",
    )
