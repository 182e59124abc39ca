"""Studies, benchmarks, and their reports.

Invariant: no module of this package is imported without its libraries, which are the extra `lab`: whoever lacks one is
told how to install it, before anything was started.
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
