"""What a PyTorch memory snapshot says, for `slackswap inspect`."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackswap_opt.allocator import HistoryReplay
    from slackswap_opt.formats.memory_snapshot import Snapshot, SnapshotSummary

_GZIP_MAGIC = b"\x1f\x8b"


def is_snapshot(target: str) -> bool:
    """Whether this is a file that holds a pickle, plain or gzip; sound or not."""
    from slackswap_opt.formats import memory_snapshot

    path = Path(target)
    try:
        with path.open("rb") as file:
            head = file.read(2)
        if head == _GZIP_MAGIC:
            with gzip.open(path) as packed:
                head = packed.read(2)
    except (OSError, EOFError, ValueError, zlib.error):
        return False
    return memory_snapshot.recognizes(head)


def inspect_snapshot(target: str, *, json: bool) -> None:
    """Print what a snapshot says.

    Raises:
        InputError: if it cannot be read or is faulty.
    """
    from slackswap_opt.errors import InputError
    from slackswap_opt.formats import files, memory_snapshot

    content = files.read_bytes(target)
    try:
        snapshot = memory_snapshot.read_snapshot(content, Path(target).name)
    except InputError as error:
        raise error.at(target) from None
    facts, replays, why_not = memory_snapshot.summary(snapshot), [], ""
    try:
        replays = _replays(snapshot)
    except InputError as error:
        why_not = error.faults[0]
    if json:
        _print_json(facts, replays, why_not)
    else:
        _print(facts, replays, why_not)


def _replays(snapshot: Snapshot) -> list[HistoryReplay]:
    from slackswap_opt.allocator import replay_history

    return [
        replay_history(snapshot, device) for device, events in enumerate(snapshot.history) if events
    ]


def _print_json(facts: SnapshotSummary, replays: list[HistoryReplay], why_not: str) -> None:
    import dataclasses

    from slackswap_opt.cli import show

    entries = [
        {
            "device": replay.device,
            "allocations": replay.allocations,
            "same_address": replay.same_address,
            "allocated_exact": replay.allocated_exact,
            "segments_agree": replay.segments_agree,
            "end_agrees": replay.end_agrees,
        }
        for replay in replays
    ]
    show.print_json(
        {
            "schema": "slackswap.snapshot/1",
            **dataclasses.asdict(facts),
            "model": entries,
            "model_not_applied": why_not or None,
        }
    )


def _print(facts: SnapshotSummary, replays: list[HistoryReplay], why_not: str) -> None:
    from slackswap_opt.cli import show

    time = "" if facts.history_us is None else f" in {show.milliseconds(facts.history_us / 1e6)} ms"
    same = sum(replay.same_address for replay in replays)
    total = sum(replay.allocations for replay in replays)
    show.print_facts(
        {
            "snapshot": f"{facts.name}, {show.count(facts.devices, 'device')}",
            "reserved": f"{show.memory(facts.reserved_bytes)} in "
            f"{show.count(facts.segments, 'segment')}, {facts.small_segments} of them small"
            + (", expandable" if facts.expandable else ""),
            "allocated": f"{show.memory(facts.allocated_bytes)} in "
            f"{show.count(facts.live_blocks, 'block')}, {show.memory(facts.requested_bytes)} of it "
            "asked for",
            "free": f"{show.memory(facts.free_bytes)}, the largest block "
            f"{show.memory(facts.largest_free_bytes)}",
            "history": f"{show.count(facts.history_events, 'event')}{time}: from "
            f"{show.memory(facts.start_bytes)} to a peak of {show.memory(facts.peak_bytes)}",
            "model": f"not applied: {why_not}"
            if why_not
            else f"puts {same} of {total} allocations at the recorded addresses"
            if total
            else "nothing to compare: no allocations in the history",
        }
    )
    show.print_lines("")
    show.print_table(
        "Live at the end",
        [
            show.Column("blocks"),
            show.Column("of"),
            show.Column("together"),
            show.Column("allocated at", left=True),
        ],
        [
            [
                str(entry.count),
                show.memory(entry.size_bytes),
                show.memory(entry.count * entry.size_bytes),
                entry.where or "(not recorded)",
            ]
            for entry in facts.largest
        ],
    )
