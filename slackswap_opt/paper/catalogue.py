"""The paper's figures: for each, the work it rests on, its rows, how it is drawn, its caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackswap_opt import figures
from slackswap_opt.figures import (
    Decision,
    Figure,
    Limits,
    Memory,
    Peak,
    Point,
    Price,
    Resident,
    Span,
    Spread,
)
from slackswap_opt.figures.points import at_workload, of, workloads_in
from slackswap_opt.paper.case import Case
from slackswap_opt.paper.detail import KEPT_ALL, Detail
from slackswap_opt.paper.grid import Grid
from slackswap_opt.paper.tasks import Priced, Smallest, Solve, Task
from slackswap_opt.planners import PLANNERS

PLAIN = "plain-a100"
"""The machine of the published comparison."""
BEST = "ilp"
PAIR = ("greedy", BEST)
Results = Mapping[Task, Any]
"""What each task gave, as plain JSON values."""
Tables = dict[str, list[Any]]
"""Rows by table; a figure's first table has its name."""


@dataclass(frozen=True)
class PaperFigure:
    """One figure.

    Attributes:
        name: of its files.
        title: what lists and captions call it.
        needs: the tasks whose results it shows, for a grid and further step files.
        tables: its rows, from the results of those tasks.
        draw: the figure, from its rows.
        caption: how to read it, without workload, machine and date.
        about: workload, machine and budget of its rows.
    """

    name: str
    title: str
    needs: Callable[[Grid, tuple[str, ...]], tuple[Task, ...]]
    tables: Callable[[Sequence[Task], Results], Tables]
    draw: Callable[[Tables], Figure]
    caption: str
    about: Callable[[Grid, Tables], str]


# Throughput over the budget


def _budgets_needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    cases = [Case(name) for name in grid.workloads]
    solves = [Solve(case, grid.budgets, tuple(PLANNERS), grid.seconds, grid.gap) for case in cases]
    return (*solves, *(Smallest(case) for case in cases))


def _budgets_tables(tasks: Sequence[Task], results: Results) -> Tables:
    return {
        "budgets": _points(tasks, results),
        "limits": [
            Limits(**row) for task in tasks if isinstance(task, Smallest) for row in results[task]
        ],
    }


BUDGETS = PaperFigure(
    "budgets",
    "Throughput retained over the activation budget",
    _budgets_needs,
    _budgets_tables,
    lambda tables: figures.budgets(tables["budgets"], tables["limits"]),
    "No schedule lies in the grey region above the "
    "curves: its edge is the verified bound. Hatched budgets are proven infeasible; the dashed "
    "line is the smallest budget for which a plan was found. Filled ILP points are within the "
    "certified gap asked for, hollow ones are not; a cross marks a budget at which a planner has "
    "no plan.",
    lambda grid, tables: (
        f"{_steps(tables['budgets'])}; {_machines(tables['budgets'])}; "
        f"{len(grid.budgets)} budgets from {max(grid.budgets):g} to {min(grid.budgets):g} % of the "
        f"ideal peak; ILP at most {grid.seconds:g} s a point"
    ),
)


# Published values


def _published_needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    return tuple(
        Solve(Case(name, machine=PLAIN), (grid.shown,), PAIR, grid.seconds, grid.gap)
        for name in grid.workloads
    )


PUBLISHED = PaperFigure(
    "published",
    "Published values beside ours, at half of the activation memory",
    _published_needs,
    lambda tasks, results: {"published": _points(tasks, results)},
    lambda tables: figures.bars(tables["published"]),
    "The values published for SlackSwap "
    "(arXiv 2610.13003), our greedy by the published rule, our ILP, and the limit that no plan "
    "exceeds under our costs. The publication gives neither batch and sequence lengths nor the "
    "attained rate, so the values are beside each other, not on one scale (see the page on "
    "published values). A ring marks a certified gap above the one asked for.",
    lambda grid, tables: (
        f"{_steps(tables['published'])}; {_machines(tables['published'])} "
        f"(attained fraction {tables['published'][0].attained_flops:g}); budget "
        f"{grid.shown:g} % of the ideal peak"
    ),
)


# Maps over budget and link rate


def _map_tasks(grid: Grid, graphs: tuple[str, ...]) -> tuple[Task, ...]:
    cases = [
        Case(small.workload, layers=small.layers, link_gb_per_s=link)
        for small in grid.reduced
        for link in grid.map_links
    ]
    cases += [Case(path, link_gb_per_s=link) for path in graphs for link in grid.map_links]
    return tuple(Solve(case, grid.map_budgets, PAIR, grid.map_seconds, grid.gap) for case in cases)


def _map_about(grid: Grid, points: Sequence[Point]) -> str:
    return (
        f"{_steps(points)}; {_machines(points)} with its link scaled; {len(grid.map_budgets)} "
        f"budgets by {len(grid.map_links)} link rates, ILP at most {grid.map_seconds:g} s a cell"
    )


GAINS = PaperFigure(
    "gains",
    "What the ILP gains over the greedy, over budgets and link rates",
    _map_tasks,
    lambda tasks, results: {"gains": _points(tasks, results)},
    lambda tables: figures.gains(tables["gains"]),
    "The share of the greedy's step time that the ILP's plan saves. A dot marks a certified gap "
    "above the one asked for; cells without a plan are hatched (crossed where that is proven).",
    lambda grid, tables: _map_about(grid, tables["gains"]),
)

PHASES = PaperFigure(
    "phases",
    "What the ILP's plans are made of, over budgets and link rates",
    _map_tasks,
    lambda tasks, results: {"phases": of(_points(tasks, results), BEST)},
    lambda tables: figures.phases(tables["phases"]),
    "Numbers are the percentage of throughput that a plan retains. Swapping "
    "or recomputing counts where it is used for at least 1 % of the saved bytes: left of the thick "
    "line swapping, right of it recomputing, no longer pays. A dot marks a certified gap above the "
    "one asked for.",
    lambda grid, tables: _map_about(grid, tables["phases"]),
)


# One problem in full


def _detail_needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    case = Case(grid.pictured, layers=grid.pictured_layers)
    return (Detail(case, grid.shown, 2 * grid.seconds, grid.gap, grid.jitters, grid.trials),)


def _detail_about(grid: Grid, tables: Tables) -> str:
    points = tables["points"]
    budget = points[0].budget_bytes / 2**30
    return (
        f"{_steps(points)}; {_machines(points)}; budget {grid.shown:g} % of the ideal peak, "
        f"{budget:.2f} GiB; {_certificate(points)}"
    )


def _certificate(points: Sequence[Point]) -> str:
    (best,) = of(points, BEST)
    if best.certified_gap is None:
        return "the ILP has no plan"
    ended = ", ended by the clock" if best.time_limited else ""
    return f"certified gap of the ILP's plan {100 * best.certified_gap:.3f} %{ended}"


def _rows(name: str, kind: type[Any]) -> Callable[[Sequence[Task], Results], list[Any]]:
    def read(tasks: Sequence[Task], results: Results) -> list[Any]:
        (task,) = tasks
        return [kind(**row) for row in results[task][name]]

    return read


def _with_points(name: str, tasks: Sequence[Task], results: Results, **tables: list[Any]) -> Tables:
    return {name: tables.pop(name), **tables, "points": _rows("points", Point)(tasks, results)}


def _decisions_tables(tasks: Sequence[Task], results: Results) -> Tables:
    rows = _rows("actions", Decision)(tasks, results)
    return _with_points(
        "decisions", tasks, results, decisions=[r for r in rows if r.planner in PAIR]
    )


DECISIONS = PaperFigure(
    "decisions",
    "What greedy and ILP do with each saved activation",
    _detail_needs,
    _decisions_tables,
    lambda tables: figures.decisions(tables["decisions"]),
    "A row per kind of tensor (with its size), a column per layer.",
    _detail_about,
)


def _timeline_tables(tasks: Sequence[Task], results: Results) -> Tables:
    (task,) = tasks
    spans = [
        Span(row["lane"], row["kind"], row["start_ms"], row["end_ms"])
        for row in results[task]["spans"]
        if row["planner"] == BEST
    ]
    memory = _rows("memory", Memory)(tasks, results)
    return _with_points(
        "timeline", tasks, results, timeline=spans,
        memory=[row for row in memory if row.planner in (BEST, KEPT_ALL)],
    )  # fmt: skip


TIMELINE = PaperFigure(
    "timeline",
    "One step by the ILP's plan, as simulated",
    _detail_needs,
    _timeline_tables,
    lambda tables: figures.step_timeline(
        tables["timeline"],
        [row for row in tables["memory"] if row.planner == BEST],
        [row for row in tables["memory"] if row.planner == KEPT_ALL],
    ),
    "Compute with re-executions and waits, copies to the "
    "host and back, and the memory under the budget. The dashed line is the step without a limit.",
    _detail_about,
)

MEMORY = PaperFigure(
    "memory",
    "Memory over the step, for each planner",
    _detail_needs,
    lambda tasks, results: _with_points(
        "memory", tasks, results, memory=_rows("memory", Memory)(tasks, results)
    ),
    lambda tables: figures.memory(tables["memory"]),
    "Each planner that has a schedule, on its step's own time; the "
    "dashed line keeps everything. Keep-all does not fit and is shown without the limit; planners "
    "without a plan at this budget are not shown.",
    _detail_about,
)

PEAKS = PaperFigure(
    "peaks",
    "Where the bytes are when memory is at its largest",
    _detail_needs,
    lambda tasks, results: _with_points(
        "peaks", tasks, results, peaks=_rows("peaks", Resident)(tasks, results)
    ),
    lambda tables: figures.peaks(tables["peaks"]),
    "By kind of tensor, at the instant at which each planner's memory first reaches its peak.",
    _detail_about,
)


RESERVED = PaperFigure(
    "reserved",
    "Reserved against ideal peak",
    _detail_needs,
    lambda tasks, results: _with_points(
        "reserved", tasks, results, reserved=_rows("reserved", Peak)(tasks, results)
    ),
    lambda tables: figures.reserved(tables["reserved"]),
    "The largest memory in use, without fragmentation, and what a model of PyTorch's caching "
    "allocator reserves for it over two steps, with segments of a fixed size and with expandable "
    "ones. A bar above the line does not fit the budget; keep-all is shown without it.",
    _detail_about,
)


JITTERED = ("greedy", "capuchin", BEST)

JITTER = PaperFigure(
    "jitter",
    "Step time under jitter",
    _detail_needs,
    lambda tasks, results: _with_points(
        "jitter",
        tasks,
        results,
        jitter=[row for row in _rows("spreads", Spread)(tasks, results) if row.planner in JITTERED],
    ),
    lambda tables: figures.jitter(tables["jitter"]),
    "Every duration and every copy is multiplied by a factor of its own, lognormal with mean 1; "
    "markers are medians, bars the range from 5 to 95 %. Where trials run out of memory (OOM), "
    "their share is written.",
    lambda grid, tables: f"{_detail_about(grid, tables)}; {grid.trials} trials of each amount",
)


# Sensitivity and scaling


def _sensitivity_needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    name, layers = grid.sensitive.workload, grid.sensitive.layers
    cases = [
        *(Case(name, layers=layers, link_gb_per_s=value) for value in grid.links),
        *(Case(name, layers=layers, batch=value) for value in grid.batches),
        *(Case(name, layers=layers, sequence=value) for value in grid.sequences),
        *(Case(name, layers=layers, attained_flops=value) for value in grid.attained),
    ]
    return tuple(Solve(case, (grid.shown,), PAIR, grid.map_seconds, grid.gap) for case in cases)


_VARIED = {
    "link": "link_gb_per_s",
    "batch": "batch",
    "sequence": "sequence",
    "attained": "attained_flops",
}


def _sensitivity_tables(tasks: Sequence[Task], results: Results) -> Tables:
    return {
        f"sensitivity-{name}": _points(
            [task for task in tasks if getattr(task.case, field) is not None], results
        )
        for name, field in _VARIED.items()
    }


SENSITIVITY = PaperFigure(
    "sensitivity",
    "Sensitivity to link, batch, sequence length and attained FLOP rate",
    _sensitivity_needs,
    _sensitivity_tables,
    lambda tables: figures.sensitivity({name: tables[f"sensitivity-{name}"] for name in _VARIED}),
    "Throughput retained (above) and what the ILP's plan does with the saved bytes (below), over "
    "the link's rate, from a shared PCIe 3.0 to NVLink-C2C, batch, sequence length, and the "
    "attained share of the arithmetic peak. The budget stays the same fraction of "
    "each step's own peak.",
    lambda grid, tables: (
        f"{_steps(tables['sensitivity-link'])} where not varied; "
        f"{_machines(tables['sensitivity-link'])} where not varied; budget {grid.shown:g} % of the "
        f"ideal peak; {'/'.join(str(len(tables[f'sensitivity-{name}']) // 2) for name in _VARIED)} "
        f"points, ILP at most {grid.map_seconds:g} s a point"
    ),
)


def _scaling_needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    planners = ("greedy", "capuchin", BEST)
    return tuple(
        Solve(Case(grid.scaled, layers=layers), (grid.scaled_budget,), planners, grid.seconds,
              grid.gap)
        for layers in grid.depths
    )  # fmt: skip


SCALING = PaperFigure(
    "scaling",
    "Planning time and certified gap over the number of layers",
    _scaling_needs,
    lambda tasks, results: {"scaling": _points(tasks, results)},
    lambda tables: figures.scaling(tables["scaling"]),
    "The ILP's time includes bound and "
    "heuristics; hollow markers are searches that the clock ended. Times are wall time on the "
    "computer that made the data and differ on another.",
    lambda grid, tables: (
        f"{workloads_in(tables['scaling'])[0]} with {_range(grid.depths)} layers; "
        f"{_machines(tables['scaling'])}; budget {grid.scaled_budget:g} % of the ideal peak; ILP "
        f"at most {grid.seconds:g} s a point"
    ),
)


# Prices


def _prices_needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    return tuple(Priced(Case(name), grid.prices) for name in grid.workloads)


PRICES = PaperFigure(
    "prices",
    "Prices of memory along the budget",
    _prices_needs,
    lambda tasks, results: {"prices": [Price(**row) for task in tasks for row in results[task]]},
    lambda tables: figures.prices(tables["prices"]),
    "What one more GiB of budget would save of the bound's step time, from the dual multipliers of "
    "the bound. Nothing where the bound is the ideal step.",
    lambda grid, tables: (
        f"{', '.join(dict.fromkeys(row.workload for row in tables['prices']))}; "
        f"{tables['prices'][0].machine}; {len(grid.prices)} budgets from {max(grid.prices):g} to "
        f"{min(grid.prices):g} % of the ideal peak, without those proven infeasible"
    ),
)


def _points(tasks: Sequence[Task], results: Results) -> list[Point]:
    return [Point(**row) for task in tasks if isinstance(task, Solve) for row in results[task]]


def _steps(points: Sequence[Point]) -> str:
    told = []
    for name in workloads_in(points):
        some = at_workload(points, name)[0]
        shape = f" ({some.layers} layers, {some.batch} x {some.sequence})" if some.layers else ""
        told.append(name + shape)
    return ", ".join(told)


def _machines(points: Sequence[Point]) -> str:
    return ", ".join(dict.fromkeys(point.machine for point in points))


def _range(values: Sequence[float]) -> str:
    return f"{min(values):g} to {max(values):g}"


FIGURES: Mapping[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        BUDGETS, PUBLISHED, GAINS, DECISIONS, TIMELINE, MEMORY, PEAKS, RESERVED, JITTER,
        SENSITIVITY,
        PHASES, SCALING, PRICES,
    )
}  # fmt: skip
"""By name, in the order in which they are made."""
