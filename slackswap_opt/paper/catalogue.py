"""The paper's figures: for each, the work it rests on, its rows, how it is drawn, its caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slackswap_opt import figures
from slackswap_opt.figures import Limits, Point, Price
from slackswap_opt.figures.points import of, workloads_in
from slackswap_opt.paper.case import Case
from slackswap_opt.paper.entry import (
    BEST,
    PAIR,
    PaperFigure,
    Results,
    Tables,
    machines_of,
    points_in,
    range_of,
    steps_of,
)
from slackswap_opt.paper.grid import Grid
from slackswap_opt.paper.one_plan import (
    DECISIONS,
    JITTER,
    MEMORY,
    PEAKS,
    RESERVED,
    TIMELINE,
)
from slackswap_opt.paper.tasks import Priced, Smallest, Solve, Task
from slackswap_opt.planners import PLANNERS

PLAIN = "plain-a100"
"""The machine of the published comparison."""


# Throughput over the budget


def _budgets_needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    cases = [Case(name) for name in grid.workloads]
    solves = [Solve(case, grid.budgets, tuple(PLANNERS), grid.seconds, grid.gap) for case in cases]
    return (*solves, *(Smallest(case) for case in cases))


def _budgets_tables(tasks: Sequence[Task], results: Results) -> Tables:
    return {
        "budgets": points_in(tasks, results),
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
        f"{steps_of(tables['budgets'])}; {machines_of(tables['budgets'])}; "
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
    lambda tasks, results: {"published": points_in(tasks, results)},
    lambda tables: figures.bars(tables["published"]),
    "The values published for SlackSwap "
    "(arXiv 2610.13003), our greedy by the published rule, our ILP, and the limit that no plan "
    "exceeds under our costs. The publication gives neither batch and sequence lengths nor the "
    "attained rate, so the values are beside each other, not on one scale (see the page on "
    "published values). A ring marks a certified gap above the one asked for.",
    lambda grid, tables: (
        f"{steps_of(tables['published'])}; {machines_of(tables['published'])} "
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
        f"{steps_of(points)}; {machines_of(points)} with its link scaled; {len(grid.map_budgets)} "
        f"budgets by {len(grid.map_links)} link rates, ILP at most {grid.map_seconds:g} s a cell"
    )


GAINS = PaperFigure(
    "gains",
    "What the ILP gains over the greedy, over budgets and link rates",
    _map_tasks,
    lambda tasks, results: {"gains": points_in(tasks, results)},
    lambda tables: figures.gains(tables["gains"]),
    "The share of the greedy's step time that the ILP's plan saves. A dot marks a certified gap "
    "above the one asked for; cells without a plan are hatched (crossed where that is proven).",
    lambda grid, tables: _map_about(grid, tables["gains"]),
)

PHASES = PaperFigure(
    "phases",
    "What the ILP's plans are made of, over budgets and link rates",
    _map_tasks,
    lambda tasks, results: {"phases": of(points_in(tasks, results), BEST)},
    lambda tables: figures.phases(tables["phases"]),
    "Numbers are the percentage of throughput that a plan retains. Swapping "
    "or recomputing counts where it is used for at least 1 % of the saved bytes: left of the thick "
    "line swapping, right of it recomputing, no longer pays. A dot marks a certified gap above the "
    "one asked for.",
    lambda grid, tables: _map_about(grid, tables["phases"]),
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
        f"sensitivity-{name}": points_in(
            [task for task in tasks if getattr(task.case, field) is not None], results
        )
        for name, field in _VARIED.items()
    }


def _sensitivity_about(grid: Grid, tables: Tables) -> str:
    points = tables["sensitivity-link"]
    counts = (len(tables[f"sensitivity-{name}"]) // len(PAIR) for name in _VARIED)
    return (
        f"{steps_of(points)} where not varied; {machines_of(points)} where not varied; budget "
        f"{grid.shown:g} % of the ideal peak; {'/'.join(map(str, counts))} points, ILP at most "
        f"{grid.map_seconds:g} s a point"
    )


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
    _sensitivity_about,
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
    lambda tasks, results: {"scaling": points_in(tasks, results)},
    lambda tables: figures.scaling(tables["scaling"]),
    "The ILP's time includes bound and "
    "heuristics; hollow markers are searches that the clock ended. Times are wall time on the "
    "computer that made the data and differ on another.",
    lambda grid, tables: (
        f"{workloads_in(tables['scaling'])[0]} with {range_of(grid.depths)} layers; "
        f"{machines_of(tables['scaling'])}; budget {grid.scaled_budget:g} % of the ideal peak; ILP "
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


FIGURES: Mapping[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        BUDGETS, PUBLISHED, GAINS, DECISIONS, TIMELINE, MEMORY, PEAKS, RESERVED, JITTER,
        SENSITIVITY, PHASES, SCALING, PRICES,
    )
}  # fmt: skip
"""By name, in the order in which they are made."""
