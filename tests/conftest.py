"""Lets every test import what lies here beside it.

A shell that starts tests in the background has them ignore SIGINT, and so would all that they start and end by Ctrl-C.

Property tests look at the same examples every time, as what passed is to pass again: `make test-properties` at others.
"""

import signal

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("others", derandomize=False, print_blob=True)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
