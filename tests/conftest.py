"""Lets every test import what lies here beside it.

A shell that starts tests in the background has them ignore SIGINT, and so would all that they start and end by Ctrl-C.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
