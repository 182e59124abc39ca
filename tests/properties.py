"""How many examples a property test looks at: few in `make test`, which looks at the same ones each time; many of other
ones in `make test-properties`, whose profile is `others`."""

from __future__ import annotations

from hypothesis import settings

MORE = 50


def examples(usual: int) -> int:
    """The number for `max_examples` of a test that has `usual` ones in `make test`."""
    return usual * (MORE if settings.get_current_profile_name() == "others" else 1)
