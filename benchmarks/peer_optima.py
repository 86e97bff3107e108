"""Our plans on the instances of other planners, in the peers' own cost and memory model.

    python -m benchmarks.peer_optima DIR [--time-limit S] [--solver cbc|highs] [--json] [--write]
                                         [--instance NAME] [--budget SIZE]

DIR holds instances (`benchmarks/peers_instances.py` has their form), directly or in folders. For
each budget it prints the peer's optimum or published cost, ours, the seconds that planning took,
and whether ours is proven, and by what. Every plan is replayed by a checker of its own
(`benchmarks/peers_replay.py`). Small instances are solved by the time-indexed reference ILP,
larger ones by the ILP planner; infeasible cases, and optima that the solver did not prove in
time, are confirmed by an exhaustive search where that is possible.

The exit status is 1 if a plan fails its check, contradicts a peer's optimum, or costs more than the
peer's. `--write` updates docs/peers.md. `--instance` and `--budget`, each of which may be given
again, leave out all other cases.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from benchmarks.command import ROOT, parser_of, rewrite, table_lines
from benchmarks.peers_instances import TIME, Case, Instance, Number, find, problem_of, read, units
from benchmarks.peers_replay import Replay, ReplayError, replay
from benchmarks.peers_search import TooManyStatesError, shortest
from slackswap_opt import IlpOptions, Problem, Schedule, bound, ilp
from slackswap_opt.errors import InputError, SolverUnavailableError
from slackswap_opt.planners import ReferenceOptions, reference_plan

SMALL = 25
"""Operations up to which the reference ILP plans."""
STATES = 100_000
"""States up to which an exhaustive search confirms that a case is infeasible."""
PAGE = ROOT / "docs/peers.md"


@dataclass(frozen=True)
class Planned:
    """What we make of a case.

    Attributes:
        schedule: None if there is none.
        cost_ns: what the planner says that it costs.
        proof: why nothing is better (or why there is nothing); empty if that is not proven.
        solver: names and versions.
    """

    schedule: Schedule | None
    cost_ns: int | None
    proof: str
    solver: str


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        case: the case.
        planned: our answer.
        replayed: what the independent checker says of it; None without a plan.
        seconds: wall time of planning.
        faults: what is wrong with it.
    """

    case: Case
    planned: Planned
    replayed: Replay | None
    seconds: float
    faults: tuple[str, ...]

    @property
    def our_cost(self) -> Fraction | None:
        """In the peer's units."""
        return None if self.planned.cost_ns is None else units(self.planned.cost_ns)

    @property
    def label(self) -> str:
        """The kind of case, with its prices."""
        prices = self.case.prices
        if prices is None:
            return self.case.kind
        return f"{self.case.kind} {number(prices.out)}/{number(prices.back)}"

    def entry(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {
            "instance": self.case.instance,
            "case": self.label,
            "budget": number(self.case.budget),
            "peer_cost": number(self.case.peer_cost),
            "our_cost": number(self.our_cost),
            "seconds": round(self.seconds, 3),
            "proven": bool(self.planned.proof),
            "replayed_cost": number(self.replayed.cost) if self.replayed else None,
            "replayed_peak": number(self.replayed.peak) if self.replayed else None,
            "proof": self.planned.proof,
            "solver": self.planned.solver,
        }


def number(value: Fraction | None) -> Number | None:
    """A whole number as such, others as floats."""
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)


# -- Planning --------------------------------------------------------------------------------------


def plan(problem: Problem, seconds: float, solver: str) -> Planned:
    """The best plan that the package finds; of small problems the optimum.

    Copies, where the problem allows them, are additive.
    """
    if problem.step.index.operations <= SMALL:
        return _reference(problem, seconds, solver)
    return plan_recompute_only(problem, seconds, solver)


def plan_recompute_only(problem: Problem, seconds: float, solver: str) -> Planned:
    """The ILP planner on a problem without swaps."""
    limit = bound(problem, solver=solver)
    options = IlpOptions(gap=0.0, seconds=seconds, solver=solver, bound=limit)
    result = ilp(problem, options)
    proof = "verified bound" if result.step_ns == limit.step_ns else ""
    return Planned(result.schedule, result.step_ns, proof, result.solver or "")


def _reference(problem: Problem, seconds: float, solver: str) -> Planned:
    options = ReferenceOptions(seconds, solver, additive=True)
    found = reference_plan(problem, options)
    if found.schedule is None:
        proof = f"solver ({found.solver})" if found.proven and found.model_ns is None else ""
        return Planned(None, None, proof, found.solver)
    exact = problem.swaps or found.step_ns == found.model_ns
    proof = f"solver ({found.solver})" if found.proven and exact else ""
    return Planned(found.schedule, found.model_ns, proof, found.solver)


def solve(instance: Instance, case: Case, seconds: float, solver: str) -> Row:
    """Plan a case and check the plan."""
    began = time.perf_counter()
    planned = plan(problem_of(instance, case), seconds, solver)
    took = time.perf_counter() - began
    planned = replace(planned, proof=searched(instance, case, planned))
    if planned.schedule is None:
        faults = () if case.peer_cost is None else ("no plan was found",)
        return Row(case, planned, None, took, faults)
    try:
        replayed = replay(instance, case, planned.schedule)
    except ReplayError as error:
        return Row(case, planned, None, took, (f"the plan is invalid: {error}",))
    return Row(case, planned, replayed, took, tuple(_faults(case, planned, replayed)))


def searched(instance: Instance, case: Case, planned: Planned) -> str:
    """What proves the answer: a search of all states, where no solver does or there is no plan."""
    if case.prices is not None or len(instance.ops) > SMALL:
        return planned.proof
    if planned.schedule is not None and planned.proof:
        return planned.proof
    try:
        found = shortest(instance, case.budget, STATES)
    except TooManyStatesError:
        return planned.proof
    cost = None if planned.cost_ns is None else units(planned.cost_ns)
    return f"search of all {found.states} states" if found.cost == cost else ""


def _faults(case: Case, planned: Planned, replayed: Replay) -> Iterator[str]:
    assert planned.cost_ns is not None
    cost = Fraction(planned.cost_ns, TIME)
    if replayed.cost != cost:
        yield f"the replay costs {number(replayed.cost)}, not {number(cost)}"
    if replayed.peak > case.budget:
        yield f"the replay needs {number(replayed.peak)}, more than {number(case.budget)}"
    if case.peer_cost is None:
        yield "a plan for a case that the peer calls infeasible"
        return
    if replayed.cost > case.peer_cost:
        yield f"it costs more than the peer's {number(case.peer_cost)}"
    if case.optimal and replayed.cost < case.peer_cost:
        yield f"it costs less than the peer's optimum of {number(case.peer_cost)}"


# -- Printing --------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    """The table of docs/peers.md."""
    heads = ("instance", "case", "budget", "peer", "ours", "replayed peak", "seconds", "proven by")
    cells = [
        (
            row.case.instance,
            row.label,
            _shown(row.case.budget),
            _shown(row.case.peer_cost, "infeasible"),
            _shown(row.our_cost, "none"),
            _shown(row.replayed.peak if row.replayed else None, "-"),
            f"{row.seconds:.1f}",
            row.planned.proof or "-",
        )
        for row in rows
    ]
    return "\n".join([*table_lines(heads, cells), "", summary(rows)])


def summary(rows: Sequence[Row]) -> str:
    """How many cases came out how."""
    proven = sum(bool(row.planned.proof) for row in rows)
    equal = sum(row.our_cost == row.case.peer_cost for row in rows)
    better = sum(
        row.our_cost is not None and row.case.peer_cost is not None
        and row.our_cost < row.case.peer_cost
        for row in rows
    )  # fmt: skip
    return (
        f"{len(rows)} cases: {equal} as the peer, {better} better, "
        f"{len(rows) - equal - better} worse or without a plan; {proven} proven."
    )


def _shown(value: Fraction | None, otherwise: str = "") -> str:
    return otherwise if value is None else f"{number(value):,}"


def _line(row: Row) -> str:
    peer = _shown(row.case.peer_cost, "infeasible")
    proof = f"proven: {row.planned.proof}" if row.planned.proof else "not proven"
    ours = _shown(row.our_cost, "none")
    faults = "".join(f"  FAULT: {fault}" for fault in row.faults)
    return (
        f"{row.case.instance:18}{row.label:28}{_shown(row.case.budget):>12}{peer:>12}{ours:>12}"
        f"{row.seconds:8.1f} s  {proof}{faults}"
    )


@dataclass(frozen=True)
class Only:
    """Which cases are wanted; all where nothing is named.

    Attributes:
        instances: their names.
        budgets: in the peers' units.
    """

    instances: tuple[str, ...] = ()
    budgets: tuple[Fraction, ...] = ()

    def includes(self, case: Case) -> bool:
        """Whether a case is wanted."""
        named = not self.instances or case.instance in self.instances
        return named and (not self.budgets or case.budget in self.budgets)


def run(
    paths: Iterable[Path], seconds: float, solver: str, *, quiet: bool, only: Only | None = None
) -> list[Row]:
    """Every case of every file that is wanted.

    Raises:
        InputError: if there is none, or a file is faulty.
    """
    instances = [read(path) for path in paths]
    wanted = [
        (instance, case)
        for instance in instances
        for case in sorted(instance.cases, key=lambda c: (c.kind, -c.budget))
        if (only or Only()).includes(case)
    ]
    if not wanted:
        known = ", ".join(instance.name for instance in instances)
        raise InputError(f"no case is of an instance and a budget asked for; instances: {known}")
    rows = []
    for instance, case in wanted:
        rows.append(solve(instance, case, seconds, solver))
        if not quiet:
            print(_line(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    parser = parser_of(__doc__, json=True, write="update docs/peers.md")
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the instances are")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for each case")
    parser.add_argument("--solver", default="cbc", choices=("cbc", "highs"))
    parser.add_argument("--instance", action="append", default=[], help="only those of this name")
    parser.add_argument(
        "--budget", action="append", default=[], type=Fraction, help="only those of this size"
    )
    asked = parser.parse_args(arguments)
    only = Only(tuple(asked.instance), tuple(asked.budget))
    if asked.write and only != Only():
        parser.error("--write is for all cases; leave out --instance and --budget")
    if not 0 < asked.time_limit < float("inf"):
        parser.error(f"--time-limit is {asked.time_limit:g}; give a positive number of seconds")
    try:
        paths = find(asked.folder)
        rows = run(paths, asked.time_limit, asked.solver, quiet=asked.json, only=only)
    except (InputError, SolverUnavailableError) as error:
        print(error, file=sys.stderr)
        return 2
    if asked.json:
        document = {"schema": "slackswap.peers/1", "rows": [row.entry() for row in rows]}
        print(json.dumps(document, indent=1))
    else:
        print(summary(rows))
    if asked.write:
        rewrite(PAGE, "peers", markdown(rows))
    return 1 if any(row.faults for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
