"""Hypothesis draws the same examples in every run; `--hypothesis-profile explore` draws others."""

import signal

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores interrupts in what it runs in the background, and so would all that tests
    # start, those that are to be interrupted among it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
