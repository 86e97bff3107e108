"""JSON of traces: large, and written by programs that let NaN and repeated keys pass."""

from __future__ import annotations

import json
from typing import Any

from slackswap_opt.errors import InputError
from slackswap_opt.formats import strict_json


def parse(text: str) -> Any:
    """The document; fields are checked by those who read them.

    Raises:
        InputError: if it is not JSON; names line and column.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError("the JSON is nested too deeply; a trace needs six levels") from None
    except ValueError:
        strict_json.parse(text)  # slower, and says where
        raise InputError("the text is not valid JSON; export the trace again") from None
