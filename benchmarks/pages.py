"""The outputs shown in documentation pages, from the commands shown above them.

    python -m benchmarks.pages [--write] [PAGE]...

In blocks marked `text`, a line that begins with `$ ` is a command; what follows is what it
printed. Every command is run again, in an empty folder per page. Without `--write` the new blocks
are printed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.command import ROOT, parser_of

BLOCK = re.compile(r"^```text\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
ASK_CODE = "$ echo $?"
CUT = "..."


def pages() -> list[str]:
    """Names of the pages of docs/ that show outputs of commands."""
    found = sorted((ROOT / "docs").glob("*.md"))
    return [page.stem for page in found if BLOCK.search(page.read_text(encoding="utf-8"))]


def refreshed(text: str, folder: Path) -> str:
    """A page with the outputs of its commands.

    Where an output ended with a line `...`, the new one is cut after as many lines.
    """
    return BLOCK.sub(lambda match: f"```text\n{_played(match[1], folder)}```", text)


def _played(block: str, folder: Path) -> str:
    lines: list[str] = []
    code = 0
    for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]:
        command, *before = part.splitlines()
        if command == ASK_CODE:
            output = [str(code)]
        else:
            code, output = _output(command.removeprefix(PROMPT), folder)
        if before and before[-1] == CUT:
            output = [*output[: len(before) - 1], CUT]
        lines += [command, *output]
    return "\n".join(lines) + "\n"


def _output(command: str, folder: Path) -> tuple[int, list[str]]:
    """Exit code and lines of a command."""
    name, *arguments = shlex.split(command)
    if name != "slackswap":
        raise ValueError(f"only slackswap is run: {command!r}")
    plain = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "slackswap_opt", *arguments], cwd=folder, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**plain, "PYTHONPATH": path},
    )  # fmt: skip
    return done.returncode, [line.rstrip() for line in done.stdout.splitlines()]


def main() -> int:
    """Run, and write if asked to."""
    parser = parser_of(__doc__, write="update the pages")
    parser.add_argument(
        "pages", nargs="*", help="names of pages in docs/ (default: all with outputs)"
    )
    asked = parser.parse_args()
    for name in asked.pages or pages():
        page = ROOT / "docs" / f"{name}.md"
        with tempfile.TemporaryDirectory() as folder:
            text = refreshed(page.read_text(encoding="utf-8"), Path(folder))
        if asked.write:
            page.write_text(text, encoding="utf-8")
        else:
            print("\n".join(match[0] for match in BLOCK.finditer(text)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
