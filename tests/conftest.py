"""Hypothesis draws the same examples in every run; `--hypothesis-profile explore` draws others."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, print_blob=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile("repeatable")
