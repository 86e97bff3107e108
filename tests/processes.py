"""What processes are running, on systems with /proc."""

from __future__ import annotations

from pathlib import Path


def children(parent: int) -> set[int]:
    """Processes started by another one that have not ended."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(folder.name))
    return found
