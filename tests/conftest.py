"""Hypothesis draws the same examples in every run; `--hypothesis-profile explore` draws others.

How long an example takes is no property of the code: on a busy machine all take longer.
"""

import signal

from hypothesis import HealthCheck, settings

UNTIMED = settings(print_blob=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", UNTIMED, derandomize=True)
settings.register_profile("explore", UNTIMED, derandomize=False)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores interrupts in what it runs in the background, and so would all that tests
    # start, those that are to be interrupted among it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
