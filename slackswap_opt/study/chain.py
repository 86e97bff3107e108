"""The unit of a sweep: one step on one machine, all budgets, all planners.

A chain is opened once (its budgets in bytes and their bounds), then solved budget by budget, in
ascending order, since what a planner found for a smaller budget is a candidate at the next one.
Both are functions of plain data, so that they run in any process, and both answers can be written
to a journal and read again: a chain goes on after a kill as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from slackswap_opt.formats import native
from slackswap_opt.formulation.bound import Bound
from slackswap_opt.machine import Machine
from slackswap_opt.plan import Problem, Status, parse_budget
from slackswap_opt.planners import PLANNERS
from slackswap_opt.step import Parts, TrainingStep, liveness
from slackswap_opt.study.carry import pack, unpack
from slackswap_opt.study.compare import NS_PER_S, ratio, rows_of
from slackswap_opt.study.results import FAILED, SweepRow
from slackswap_opt.study.static_memory import RESERVE, device_memory
from slackswap_opt.study.sweep import Settings, bounds_of, fitting, solve_cell
from slackswap_opt.workloads import Workload, build_step

_ROOMS = ("formulation", "machine", "plan", "planners", "simulator", "step", "study", "workloads")
"""Where results come from: a change in any of them makes results of before obsolete."""


@dataclass(frozen=True)
class Point:
    """Where in the grid a chain is; the fields are those of `SweepRow`."""

    workload: str
    machine: str
    batch: int | None
    sequence: int | None
    layers: int | None
    link_gb_per_s: float
    attained_flops: float


@dataclass(frozen=True)
class Budgets:
    """The budgets of a chain.

    Attributes:
        texts: as written, in the order of the rows.
        of_device: whether they are memory of the device, from which static memory and reserve are
            taken; otherwise they are budgets.
        reserve: see `slackswap_opt.study.static_memory.device_memory`.
        static: see there.
    """

    texts: tuple[str, ...]
    of_device: bool = False
    reserve: str = RESERVE
    static: str | None = None


@dataclass(frozen=True, eq=False)
class Chain:
    """One step on one machine under all budgets, with all planners.

    Attributes:
        point: its place in the grid.
        source: what the step is built from, or the step; None if that failed.
        machine: where it runs.
        budgets: in the order of the rows.
        planners: names, in the order of the rows.
        settings: how planners and bound are run.
        fault: why there is no source.
        parts: how the step is put in parts; budgets in percent are of the step before that.
        swaps: whether tensors may be copied to the host.
    """

    point: Point
    source: Workload | TrainingStep | None
    machine: Machine
    budgets: Budgets
    planners: tuple[str, ...]
    settings: Settings
    fault: str = ""
    parts: Parts | None = None
    swaps: bool = True

    @cached_property
    def key(self) -> str:
        """A digest of everything that results depend on, the package included."""
        machine = asdict(self.machine)
        del machine["sources"]
        content = {
            "package": package_digest(),
            "point": asdict(self.point),
            "source": _content(self.source),
            "machine": machine,
            "budgets": asdict(self.budgets),
            "planners": self.planners,
            "settings": asdict(self.settings),
            "parts": None if self.parts is None else asdict(self.parts),
            "swaps": self.swaps,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and other.key == self.key


@dataclass(frozen=True)
class Opened:
    """What is known of a chain before any planner has run.

    Attributes:
        budget_bytes: by budget in the order written; not positive where static memory leaves
            nothing.
        device_bytes: memory of the device by budget; None where budgets are given as such.
        static_bytes: static memory; None where it plays no part.
        ideal_peak_bytes: peak of the step without a limit.
        ideal_step_ns: its time.
        bounds: by budget in bytes.
    """

    budget_bytes: tuple[int, ...]
    device_bytes: tuple[int | None, ...]
    static_bytes: int | None
    ideal_peak_bytes: int
    ideal_step_ns: int
    bounds: Mapping[int, Bound]

    def ascending(self) -> list[int]:
        """The different budgets."""
        return sorted(set(self.budget_bytes))

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "budget_bytes": list(self.budget_bytes),
            "device_bytes": list(self.device_bytes),
            "static_bytes": self.static_bytes,
            "ideal_peak_bytes": self.ideal_peak_bytes,
            "ideal_step_ns": self.ideal_step_ns,
            "bounds": [[budget, asdict(bound)] for budget, bound in self.bounds.items()],
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Opened:
        """From plain data."""
        return cls(
            tuple(data["budget_bytes"]),
            tuple(data["device_bytes"]),
            data["static_bytes"],
            data["ideal_peak_bytes"],
            data["ideal_step_ns"],
            {budget: Bound(**values) for budget, values in data["bounds"]},
        )


@dataclass(frozen=True)
class Solved:
    """One budget of a chain.

    Attributes:
        budget_bytes: which.
        rows: of the planners that did not fail, as `slackswap_opt.study.compare.Row` has them.
        failed: what went wrong, by planner.
        carried: by planner, its packed result for the next larger budget.
    """

    budget_bytes: int
    rows: Mapping[str, Mapping[str, Any]]
    failed: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)


def open_chain(chain: Chain) -> Opened:
    """Budgets in bytes, and their bounds.

    Raises:
        InputError: if the step cannot be built or a budget means nothing for it.
    """
    whole, budgets = _whole(chain), chain.budgets
    workload = chain.source if isinstance(chain.source, Workload) else None
    peak, machine = whole.liveness.ideal_peak_bytes, chain.machine
    if not budgets.of_device:
        given = peak if chain.parts is None else liveness(_given(chain)).ideal_peak_bytes
        sizes = tuple(parse_budget(text, given) for text in budgets.texts)
        bounds = bounds_of(whole, sizes, chain.settings)
        return Opened(sizes, (None,) * len(sizes), None, peak, whole.ideal_step_ns, bounds)
    divided = [
        device_memory(
            whole.step, workload, machine.device.memory_bytes, text, budgets.reserve, budgets.static
        )
        for text in budgets.texts
    ]
    sizes = tuple(memory.budget_bytes for memory in divided)
    return Opened(
        sizes,
        tuple(memory.device_bytes for memory in divided),
        divided[0].static.total_bytes,
        peak,
        whole.ideal_step_ns,
        bounds_of(whole, sizes, chain.settings),
    )


def solve_budget(
    chain: Chain, budget_bytes: int, bound: Bound, carried: Mapping[str, str]
) -> Solved:
    """Solve one budget of a chain; what a planner raises is recorded.

    Args:
        chain: the chain.
        budget_bytes: which budget.
        bound: its bound.
        carried: packed results for the next smaller budget, by planner.
    """
    problem = _whole(chain).with_budget(budget_bytes)
    planners = {name: PLANNERS[name] for name in chain.planners}
    before = {name: unpack(text, problem, bound) for name, text in carried.items()}
    cell = solve_cell(problem, bound, planners, chain.settings, before, record_failures=True)
    return Solved(
        budget_bytes,
        {row.planner: asdict(row) for row in rows_of(cell)},
        dict(cell.failed),
        {**carried, **{name: pack(judged) for name, judged in fitting(cell).items()}},
    )


def rows(chain: Chain, opened: Opened, solved: Mapping[int, Solved]) -> list[SweepRow]:
    """The rows of a solved chain: budgets in the order written, in each the planners."""
    found = []
    proven = _proven(solved)
    for text, size, device in zip(
        chain.budgets.texts, opened.budget_bytes, opened.device_bytes, strict=True
    ):
        known: dict[str, Any] = {
            "budget": text,
            "budget_bytes": size,
            "budget_fraction": ratio(size, opened.ideal_peak_bytes),
            "ideal_peak_bytes": opened.ideal_peak_bytes,
            "ideal_step_s": opened.ideal_step_ns / NS_PER_S,
            "bound_step_s": opened.bounds[size].step_ns / NS_PER_S,
            "device_memory_bytes": device,
            "static_bytes": opened.static_bytes,
            "swaps": chain.swaps,
        }
        cell = solved[size]
        for planner in chain.planners:
            if planner in cell.rows:
                own = _under(proven[size], cell.rows[planner], chain.settings.gap)
                bound = {"bound_step_s": own["bound_step_s"]}
                found.append(SweepRow(**{**own, **asdict(chain.point), **known, **bound}))
            else:
                found.append(
                    SweepRow(
                        **asdict(chain.point), planner=planner, status=FAILED,
                        reason=cell.failed[planner], **known,
                    )
                )  # fmt: skip
    return found


def _proven(solved: Mapping[int, Solved]) -> dict[int, float]:
    """The bound of each budget, in seconds: the best of those of larger ones and its own."""
    proven: dict[int, float] = {}
    above = 0.0
    for size in sorted(solved, reverse=True):
        own = (row["bound_step_s"] for row in solved[size].rows.values())
        above = proven[size] = max(above, *own, 0.0)
    return proven


def _under(bound_s: float, row: Mapping[str, Any], gap: float) -> Mapping[str, Any]:
    """A row under a bound that may be better than the one it was solved with."""
    if bound_s <= row["bound_step_s"]:
        return row
    if row["step_s"] is None:
        return {**row, "bound_step_s": bound_s}
    left = (row["step_s"] - bound_s) / row["step_s"]
    status = Status.OPTIMAL.value if left <= gap else row["status"]
    return {**row, "bound_step_s": bound_s, "certified_gap": left, "status": status}


def failed_rows(chain: Chain, reason: str) -> list[SweepRow]:
    """The rows of a chain that could not even be opened."""
    return [
        SweepRow(
            **asdict(chain.point), budget=text, planner=planner, status=FAILED, reason=reason,
            swaps=chain.swaps,
        )
        for text in chain.budgets.texts
        for planner in chain.planners
    ]  # fmt: skip


def lost(chain: Chain, budget_bytes: int, reason: str, carried: Mapping[str, str]) -> Solved:
    """A budget that no worker gave an answer for."""
    return Solved(budget_bytes, {}, dict.fromkeys(chain.planners, reason), carried)


@lru_cache(maxsize=1)
def package_digest() -> str:
    """Version of the package and digest of the code that results come from."""
    try:
        version = metadata.version("slackswap-opt")
    except metadata.PackageNotFoundError:
        version = "0+unknown"
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256(version.encode())
    for room in _ROOMS:
        for path in sorted((root / room).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{version}+{digest.hexdigest()[:16]}"


@lru_cache(maxsize=2)
def _whole(chain: Chain) -> Problem:
    """The chain's problem, kept from one budget to the next."""
    step, machine = _given(chain), chain.machine
    if chain.parts is not None:
        step = chain.parts.of(step, machine.device.launch_ns)
    return Problem(step, machine, 1, chain.swaps)


def _given(chain: Chain) -> TrainingStep:
    """The chain's step before it is put in parts."""
    if chain.source is None:
        raise ValueError(chain.fault)
    if isinstance(chain.source, Workload):
        return build_step(chain.source, chain.machine)
    return chain.source


def _content(source: Workload | TrainingStep | None) -> object:
    if isinstance(source, Workload):
        return source.model_dump(mode="json", exclude={"description", "notes", "sources"})
    return None if source is None else hashlib.sha256(native.dumps(source).encode()).hexdigest()


def axes_of(source: Workload | TrainingStep | None) -> tuple[int | None, int | None, int | None]:
    """Batch, sequence and layers of a source."""
    if not isinstance(source, Workload):
        return None, None, None
    return source.training.batch, source.training.sequence, source.architecture.layers


def with_link(machine: Machine, gb_per_s: float) -> Machine:
    """A machine whose link moves so many 10^9 bytes per second to the host, alone.

    The other three rates keep their ratio to this one.
    """
    link, rate = machine.link, gb_per_s * 1e9

    def scaled(other: float, most: float = math.inf) -> float:
        return min(other * rate / link.d2h_bytes_per_s, most)

    h2d = scaled(link.h2d_bytes_per_s)
    return replace(
        machine,
        link=replace(
            link,
            d2h_bytes_per_s=rate,
            h2d_bytes_per_s=h2d,
            d2h_duplex_bytes_per_s=scaled(link.d2h_duplex_bytes_per_s, rate),
            h2d_duplex_bytes_per_s=scaled(link.h2d_duplex_bytes_per_s, h2d),
        ),
    )


def with_attained_flops(machine: Machine, fraction: float) -> Machine:
    """A machine whose large kernels reach this fraction of the arithmetic peak."""
    return replace(machine, device=replace(machine.device, attained_flops=fraction))
