"""What an allocator reserves for a schedule, as facts, a table and a document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackswap_opt.allocator import Hole, Kind, PoolUse, Reserved
    from slackswap_opt.allocator.blocks import PoolKey
    from slackswap_opt.plan import Schedule
    from slackswap_opt.simulator import Verdict
    from slackswap_opt.step import TrainingStep
    from slackswap_opt.study.reserved import Fitted

NS_PER_S = 10**9


@dataclass(frozen=True)
class Held:
    """A schedule in an allocator, without a limit and with one.

    Attributes:
        free: without a limit.
        limited: with one.
    """

    free: Reserved
    limited: Reserved


def held(
    step: TrainingStep,
    schedule: Schedule,
    verdict: Verdict,
    kind: Kind,
    *,
    limit_bytes: int | None,
    own_pool: bool,
) -> Held:
    """Play a simulated schedule through an allocator; its limit is the capacity if not given."""
    from slackswap_opt.allocator import reserve

    limit = verdict.capacity_bytes if limit_bytes is None else limit_bytes
    return Held(
        reserve(step, schedule, verdict, kind, own_pool=own_pool),
        reserve(step, schedule, verdict, kind, capacity_bytes=limit, own_pool=own_pool),
    )


def kind_of(name: str) -> Kind:
    """The allocator of a name.

    Raises:
        InputError: if there is none.
    """
    from slackswap_opt.allocator import Kind
    from slackswap_opt.cli import inputs
    from slackswap_opt.errors import InputError

    try:
        return Kind(name)
    except ValueError:
        raise InputError(inputs.unknown("allocator", name, [k.value for k in Kind])) from None


def out_of_memory(limited: Reserved) -> str:
    """What ran out, in words."""
    refused = limited.refused
    assert refused is not None, "memory ran out"
    return (
        f"the {limited.kind.value} allocator runs out of memory at {limited.capacity_bytes} bytes: "
        f"{refused.size_bytes} bytes for {refused.owner!r} at {refused.operation!r}, where "
        f"{refused.requested_bytes} bytes are in use and {refused.reserved_bytes} reserved; "
        "plan with --allocator to leave room for fragmentation"
    )


def facts(found: Held) -> dict[str, str]:
    """Lines for a summary."""
    from slackswap_opt.cli import show

    free, limited = found.free, found.limited
    lines = {
        "reserved": f"{show.memory(free.reserved_peak_bytes)} by the {free.kind.value} allocator "
        f"without a limit, {show.percent_up(free.fragmentation)} of it fragmentation"
    }
    at = free.at_peak
    if at is not None:
        pools = at.pools
        parts = {
            "in use": sum(p.requested_bytes for p in pools),
            "rounding": sum(p.rounding_bytes for p in pools),
            "holes": sum(p.hole_bytes for p in pools),
            "cached segments": sum(p.cached_bytes for p in pools),
        }
        lines["at its peak"] = f"{show.milliseconds(free.peak_ns / NS_PER_S)} ms: " + ", ".join(
            f"{show.memory(size)} {what}" for what, size in parts.items() if size
        )
    if limited.refused is not None:
        lines["allocator"] = f"out of memory at {show.memory(limited.capacity_bytes or 0)}"
    elif limited.flushes:
        lines["allocator"] = (
            f"fits {show.memory(limited.capacity_bytes or 0)} after giving its cache back "
            f"{show.count(limited.flushes, 'time')}; each one waits for the device, which is not "
            "simulated"
        )
    else:
        lines["allocator"] = f"fits {show.memory(limited.capacity_bytes or 0)}"
    return lines


def print_holes(found: Held) -> None:
    """The largest holes at the reserved peak."""
    from slackswap_opt.cli import show

    at = found.free.at_peak
    if at is None or not at.holes:
        return
    show.print_lines("")
    show.print_table(
        "Largest holes at the reserved peak",
        [
            show.Column("hole"),
            show.Column("after", left=True),
            show.Column("before", left=True),
            show.Column("pool", 1, left=True),
            show.Column("of segment", 2),
        ],
        [
            [
                show.memory(hole.size_bytes),
                hole.before or "(start)",
                hole.after or "(end)",
                _pool(hole.pool),
                show.memory(hole.segment_bytes),
            ]
            for hole in at.holes
        ],
    )


def document(found: Held) -> dict[str, object]:
    """The same for `--json`."""
    free, limited = found.free, found.limited
    at = free.at_peak
    refused = limited.refused
    return {
        "kind": free.kind.value,
        "reserved_peak_bytes": free.reserved_peak_bytes,
        "requested_peak_bytes": free.requested_peak_bytes,
        "fragmentation": free.fragmentation,
        "peak_s": free.peak_ns / NS_PER_S,
        "pools": [] if at is None else [_pool_entry(pool) for pool in at.pools],
        "holes": [] if at is None else [_hole_entry(hole) for hole in at.holes],
        "limit_bytes": limited.capacity_bytes,
        "fits": limited.fits,
        "flushes": limited.flushes,
        "out_of_memory": None
        if refused is None
        else {
            "at_s": refused.at_ns / NS_PER_S,
            "tensor": refused.owner,
            "operation": refused.operation,
            "size_bytes": refused.size_bytes,
            "reserved_bytes": refused.reserved_bytes,
            "requested_bytes": refused.requested_bytes,
        },
    }


def line_of(fitted: Fitted) -> str:
    """How a plan was fitted, in words."""
    from slackswap_opt.cli import show

    held = fitted.reserved
    assert held is not None, "there is a plan"
    given = next(iter(fitted.cell.judged.values())).capacity_bytes
    return (
        f"reserved: {show.memory(held.reserved_peak_bytes)} by the {held.kind.value} allocator, "
        f"{show.percent_up(held.fragmentation)} of it fragmentation; planned for "
        f"{show.memory(given)}, after {show.count(len(fitted.tried), 'trial')} (to check: simulate "
        f"--allocator {held.kind.value} --allocator-limit {fitted.cell.problem.budget_bytes}B)"
    )


def entry_of(fitted: Fitted) -> dict[str, object]:
    """The same for `--json`."""
    held = fitted.reserved
    assert held is not None, "there is a plan"
    return {
        "allocator": {
            "kind": held.kind.value,
            "reserved_peak_bytes": held.reserved_peak_bytes,
            "fragmentation": held.fragmentation,
            "planned_bytes": next(iter(fitted.cell.judged.values())).capacity_bytes,
            "tried": [
                {"budget_bytes": budget, "reserved_peak_bytes": reserved}
                for budget, reserved in fitted.tried
            ],
        }
    }


def _stream(pool: PoolKey) -> str:
    from slackswap_opt.allocator import Stream

    return Stream(pool.stream).name.lower()


def _pool(pool: PoolKey) -> str:
    return f"{'small' if pool.small else 'large'}, {_stream(pool)}"


def _pool_entry(use: PoolUse) -> dict[str, object]:
    return {
        "stream": _stream(use.pool),
        "small": use.pool.small,
        "segments": use.segments,
        "reserved_bytes": use.reserved_bytes,
        "requested_bytes": use.requested_bytes,
        "rounding_bytes": use.rounding_bytes,
        "pending_bytes": use.pending_bytes,
        "hole_bytes": use.hole_bytes,
        "cached_bytes": use.cached_bytes,
        "holes": use.holes,
    }


def _hole_entry(hole: Hole) -> dict[str, object]:
    return {
        "size_bytes": hole.size_bytes,
        "stream": _stream(hole.pool),
        "small": hole.pool.small,
        "segment": hole.segment,
        "segment_bytes": hole.segment_bytes,
        "before": hole.before,
        "after": hole.after,
    }
