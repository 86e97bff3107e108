"""Shares and sizes as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from slackswap_opt.errors import InputError
from slackswap_opt.plan import parse_budget

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?)\s*(%?)\s*")


PARTS_ABOVE = "256MiB"
"""Tensors from this size on are in parts, where nothing else is said."""


def parse_share(text: str) -> Fraction | None:
    """A share such as `5%` or `0.05`; None if the text is neither."""
    match = _SHARE.fullmatch(text)
    return Fraction(match[1]) / (100 if match[2] else 1) if match else None


def parse_size(text: str, whole_bytes: int, what: str) -> int:
    """A size in bytes from `40GiB`, `40GB`, a number of bytes, or a share (`50%`) of a whole.

    Args:
        text: what the user wrote.
        whole_bytes: what shares refer to.
        what: the option or field, for the message.

    Raises:
        InputError: if the text is none of these.
    """
    try:
        return parse_budget(text, whole_bytes)
    except InputError:
        zero = re.fullmatch(r"\s*0+(\.0+)?\s*(%|[kKmMgGtT]?i?[bB])?\s*", text)
        if zero:
            return 0
        raise InputError(
            f"{what} {text!r} is not understood; write it like 40GiB, 40GB or 50%"
        ) from None


def parse_bytes(text: str, what: str) -> int:
    """A size in bytes from `256MiB`, `256MB` or a number of bytes, where there is no whole.

    Args:
        text: what the user wrote.
        what: the option or field, for the message.

    Raises:
        InputError: if the text is none of these; shares are not.
    """
    try:
        sizes = {parse_size(text, whole, what) for whole in (2**20, 2**60)}
    except InputError:
        sizes = set()
    if len(sizes) != 1:
        raise InputError(f"{what} {text!r} is not understood; write it like 256MiB or 256MB")
    return sizes.pop()
