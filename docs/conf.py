"""The documentation site: `sphinx-build -W docs build/docs` (extra `docs`)."""

import re
from importlib import metadata
from typing import Any

project = "SlackSwap-opt"
author = "The SlackSwap-opt authors"
copyright = author  # noqa: A001 - the name that Sphinx reads
try:
    release = metadata.version("slackswap-opt")
except metadata.PackageNotFoundError:
    release = "unknown"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["build"]
html_theme = "furo"
html_title = f"SlackSwap-opt {release}"
html_show_sourcelink = False
html_copy_source = False

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4

autodoc_default_options = {"members": True, "imported-members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./(?:README|CHANGELOG)\.md\)")
"""Links that lead somewhere in the repository, but to no page of the site."""
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_documented: set[int] = set()


def _without_outside_links(app: Any, page: str, source: list[str]) -> None:
    source[0] = _OUTSIDE.sub(r"\1", source[0])


def _once(app: Any, what: str, name: str, member: object, skip: bool, options: Any) -> bool | None:
    """A name that several rooms hand on is described where it comes first; others' are not."""
    if what != "module" or skip or not callable(member):
        return None
    ours = str(getattr(member, "__module__", "")).startswith("slackswap_opt")
    if id(member) in _documented or not ours:
        return True
    _documented.add(id(member))
    return None


def _code_is_literal(
    app: Any, what: str, name: str, member: object, options: Any, lines: list[str]
) -> None:
    """Docstrings write code in single backticks, as Markdown does."""
    lines[:] = [_CODE.sub(r"``\1``", line) for line in lines]


def setup(app: Any) -> None:
    """Connect them."""
    app.connect("autodoc-process-docstring", _code_is_literal, priority=400)  # before napoleon
    app.connect("source-read", _without_outside_links)
    app.connect("autodoc-skip-member", _once)
