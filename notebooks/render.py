"""Run the notebooks and write what they show to docs/notebooks/.

    python notebooks/render.py            # run them all; fails where one does
    python notebooks/render.py --write    # and write the rendered copies

A rendered copy is a Markdown page with the output under each cell, and its pictures as files
beside it. The notebooks themselves hold no outputs.
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
PAGES = FOLDER.parent / "docs" / "notebooks"
SECONDS = 600
"""Longest run of a cell."""


@dataclass(frozen=True)
class Page:
    """A notebook as it looks after it ran.

    Attributes:
        text: Markdown.
        pictures: by file name.
    """

    text: str
    pictures: dict[str, bytes]


def notebooks() -> list[Path]:
    """The notebooks, in order."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path, folder: Path) -> Any:
    """A notebook after it ran in a folder; raises where a cell does."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    return notebook


def rendered(notebook: Any, stem: str) -> Page:
    """A notebook that ran, as a page."""
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.strip())
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source.strip()}\n```")
            parts += _outputs(cell.outputs, stem, pictures)
    source = f"*From [`notebooks/{stem}.ipynb`](../../notebooks/{stem}.ipynb), as it ran.*"
    heading, *rest = parts
    return Page("\n\n".join([heading, source, *rest]) + "\n", pictures)


def _outputs(outputs: list[Any], stem: str, pictures: dict[str, bytes]) -> Iterator[str]:
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stdout":
                yield f"```text\n{output.text.rstrip()}\n```"
            continue
        data = output.get("data", {})
        if "image/png" in data:
            name = f"{stem}-{len(pictures) + 1}.png"
            pictures[name] = base64.b64decode(data["image/png"])
            yield f"![{data.get('text/plain', 'picture')}]({name})"
        elif "text/markdown" in data:
            yield data["text/markdown"].strip()
        elif "text/plain" in data:
            yield f"```text\n{data['text/plain'].rstrip()}\n```"


def main() -> int:
    """Run, and write if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="stems of notebooks; all by default")
    parser.add_argument("--write", action="store_true", help="write docs/notebooks")
    asked = parser.parse_args()
    for path in notebooks():
        if asked.names and path.stem not in asked.names:
            continue
        page = rendered(executed(path, FOLDER), path.stem)
        print(f"{path.name}: {len(page.pictures)} pictures")
        if asked.write:
            PAGES.mkdir(exist_ok=True)
            (PAGES / f"{path.stem}.md").write_text(page.text, encoding="utf-8")
            for name, content in page.pictures.items():
                (PAGES / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
