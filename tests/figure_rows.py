"""Small made-up rows for every figure: what a figure draws does not have to be computed."""

from __future__ import annotations

from slackswap_opt.figures import (
    Decision,
    Limits,
    Memory,
    Peak,
    Point,
    Price,
    Resident,
    Span,
    Spread,
)

GIB = 2**30
PROVEN = "optimal-within-gap"


def point(
    workload: str,
    planner: str,
    fraction: float,
    retained: float | None,
    *,
    bound: float = 0.97,
    link: float = 25.0,
    layers: int = 8,
    swapped: int = 20,
    recomputed: int = 30,
    status: str = PROVEN,
    **more: object,
) -> Point:
    none = retained is None
    values: dict[str, object] = {
        "workload": workload,
        "machine": "a-machine",
        "planner": planner,
        "status": "infeasible" if none else status,
        "budget_fraction": fraction,
        "budget_bytes": int(10 * GIB * fraction),
        "throughput_retained": retained,
        "bound_retained": bound,
        "certified_gap": None if retained is None else max(0.0, 1 - retained / bound),
        "layers": layers,
        "batch": 4,
        "sequence": 128,
        "link_gb_per_s": link,
        "attained_flops": 0.5,
        "ideal_step_s": 0.1,
        "step_s": None if retained is None else 0.1 / retained,
        "kept_bytes": None if none else 50,
        "swapped_bytes": None if none else swapped,
        "recomputed_bytes": None if none else recomputed,
        "planning_s": 0.1 * layers,
    }
    return Point(**{**values, **more})  # type: ignore[arg-type]


BUDGETS = [
    point(workload, planner, fraction, retained, bound=bound, status=status)
    for workload in ("one", "two")
    for fraction, bound in ((1.0, 1.0), (0.5, 0.95), (0.3, 0.88))
    for planner, retained, status in (
        ("keep-all", 1.0 if fraction == 1 else None, PROVEN),
        ("recompute-all", 0.75, "feasible"),
        ("swap-all", 0.2, "feasible"),
        ("greedy", bound - 0.02 * (1 - fraction), "feasible"),
        ("ilp", bound - 0.002, PROVEN if fraction > 0.4 else "feasible"),
    )
]
LIMITS = [Limits("one", "a-machine", 0.1, 0.15, "swap-all"), Limits("two", "m", 0.2, None, None)]
BARS = [
    point(workload, planner, 0.5, value, bound=bound)
    for workload, bound, greedy, ilp in (
        ("bert-large", 0.97, 0.95, 0.965),
        ("own", 0.9, None, 0.88),
    )
    for planner, value in (("greedy", greedy), ("ilp", ilp))
]
MAP = [
    point(
        "one", planner, fraction, value, link=link, swapped=swapped, recomputed=recomputed,
        status=status, proven_infeasible=value is None and fraction < 0.3,
    )
    for fraction, link, greedy, ilp, swapped, recomputed, status in (
        (0.75, 6.0, 0.95, 0.96, 0, 0, PROVEN),
        (0.75, 25.0, 0.99, 0.99, 20, 0, PROVEN),
        (0.5, 6.0, 0.80, 0.85, 0, 40, "feasible"),
        (0.5, 25.0, None, 0.90, 20, 20, PROVEN),
        (0.2, 6.0, None, None, 0, 0, PROVEN),
        (0.2, 25.0, None, None, 0, 0, PROVEN),
    )
    for planner, value in (("greedy", greedy), ("ilp", ilp))
]  # fmt: skip
DECISIONS = [
    Decision(planner, True, f"layer.{n}", kind, f"layer.{n}.{kind}", size, action)
    for planner in ("greedy", "ilp")
    for n in range(6)
    for kind, size, action in (
        ("qkv", 75 * 2**20, "swap" if n < 2 else "keep"),
        ("inner", 100 * 2**20, "recompute" if planner == "ilp" or n % 2 else "keep"),
        ("mean", 1000, "keep"),
    )
]
SPANS = [
    Span("compute", "forward", 0, 30),
    Span("compute", "waiting", 30, 35),
    Span("compute", "re-executed", 35, 40),
    Span("compute", "backward", 40, 95),
    Span("compute", "optimizer", 95, 100),
    Span("copy out", "copy out", 5, 28),
    Span("copy in", "copy in", 45, 70),
]
MEMORY = [
    Memory(name, fits, n * 10.0, (n + 1) * 10.0, int(GIB * height * (5 - abs(n - 4))), 3 * GIB,
           int(6.5 * GIB))
    for name, fits, height in (("keep-all", False, 1.3), ("greedy", True, 0.5), ("ilp", True, 0.6))
    for n in range(10)
]  # fmt: skip
PEAKS = [
    Resident(planner, planner != "keep-all", group, kind, size * GIB)
    for planner, share in (("keep-all", 2), ("ilp", 1))
    for group, kind, size in (
        ("activations", "inner", 2 * share),
        ("activations", "qkv", share),
        ("gradients", "inner.grad", 1),
        ("workspace", "workspace", 1),
    )
]
RESERVED = [
    Peak(planner, measure, int(size * GIB), 6 * GIB)
    for planner, base in (("greedy", 5.8), ("ilp", 5.9))
    for measure, size in (("in use", base), ("expandable", base + 0.1), ("caching", base + 0.6))
]
SENSITIVITY = {
    "link": [
        point("one", planner, 0.5, 0.8 + 0.05 * n + (0.02 if planner == "ilp" else 0), link=link,
              swapped=10 * n, recomputed=40 - 10 * n, status=PROVEN if n else "feasible")
        for n, link in enumerate((6.0, 25.0, 450.0))
        for planner in ("greedy", "ilp")
    ],
    "attained": [
        point("one", planner, 0.5, None if planner == "greedy" and flops > 0.5 else 0.9,
              attained_flops=flops)
        for flops in (0.4, 0.8)
        for planner in ("greedy", "ilp")
    ],
}  # fmt: skip
SCALING = [
    point("one", planner, 0.5, value, layers=layers, time_limited=planner == "ilp" and layers == 4)
    for layers in (2, 4, 8)
    for planner, value in (("greedy", 0.93), ("ilp", 0.96))
]
PRICES = [
    Price(workload, "a-machine", fraction, int(fraction * 10 * GIB), price)
    for workload, factor in (("one", 1.0), ("two", 2.0))
    for fraction, price in ((0.3, 4 * factor), (0.6, factor), (0.9, 0.0))
]
SPREADS = [
    Spread(planner, amount, 100, 100.0, base, base - amount / 4, base + amount / 2, oom)
    for planner, base in (("greedy", 106.0), ("ilp", 104.0))
    for amount, oom in ((0.0, 0.0), (5.0, 0.0), (20.0, 0.25))
]
SPREADS.append(Spread("capuchin", 20.0, 100, 100.0, None, None, None, 1.0))
