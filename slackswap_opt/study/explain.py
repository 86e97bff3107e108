"""Why a plan is what it is: what binds, what more of it would save, and each tensor's choice.

Every figure is a price of the bound's relaxation at the cut where the bound was found, so it
explains the limit that the plan is held against, and the plan as far as it comes near that limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.errors import SlackSwapError
from slackswap_opt.formulation.prices import Binding, Prices, Resource, TensorPrice, prices
from slackswap_opt.plan import Action, Problem
from slackswap_opt.plan.files import PlanFile
from slackswap_opt.study.replay import replay

GIB = 2**30
RATE_OF_A_GB_S = 1000
"""One GB/s in bytes per microsecond."""
SAME = 0.001
"""Ways whose costs differ by less than this part are equally good."""
LEAST_NS = 1.0
"""Costs below this count as none."""


class NoPricesError(SlackSwapError):
    """The solver found no optimum of the bound's relaxation, so there are no prices."""


@dataclass(frozen=True)
class Limit:
    """A constraint that binds.

    Attributes:
        resource: "device memory", "link to the host", "link to the device" or "host memory".
        operation: where: see `slackswap_opt.formulation.prices.Binding`; None for the end of the
            step and for host memory.
        saves_ns: what easing it saves: per GiB for memory, per second of the engine's time for a
            link.
    """

    resource: str
    operation: str | None
    saves_ns: float


@dataclass(frozen=True)
class Choice:
    """A saved activation that must get past the cut, what was done with it, and why.

    Attributes:
        tensor: its name.
        layer: label of its producer.
        size_bytes: memory that it holds.
        action: what the plan does.
        keep_ns: overhead that its memory costs at the prices.
        swap_ns: the same for its copies; None if it may not leave.
        recompute_ns: the same for re-executing its producer, and what that reads and nothing else
            needs; None if it cannot run again.
        excess_ns: cost of the action less that of the cheapest way; 0 where the two differ by a
            thousandth or less.
        break_even_out_bytes_per_s: the link's rate to the host at which swapping would cost as much
            as the action (as the best alternative, if it is swapped), both directions being slowed
            down or sped up alike and a ns of link time costing the same; None if there is no such
            rate.
        break_even_in_bytes_per_s: the rate to the device that goes with it.
        why: one clause.
    """

    tensor: str
    layer: str
    size_bytes: int
    action: Action
    keep_ns: float
    swap_ns: float | None
    recompute_ns: float | None
    excess_ns: float
    break_even_out_bytes_per_s: float | None
    break_even_in_bytes_per_s: float | None
    why: str


@dataclass(frozen=True)
class Explanation:
    """What stands behind a plan.

    Attributes:
        workload: name of the step.
        machine: its name.
        planner: who made the plan.
        budget_bytes: device memory for everything that is not static.
        ideal_step_ns: duration without a memory limit.
        step_ns: simulated step time of the plan.
        bound_step_ns: the limit recorded in the file.
        cut: operation at whose start the prices are taken; None where nothing binds.
        priced_step_ns: the limit that the prices prove.
        solver: name and version of the solver behind the prices; empty where nothing binds.
        device_ns_per_gib: what one more GiB of budget saves at most.
        host_ns_per_gib: what one more GiB of host memory saves at most; None without a limit.
        out_ns_per_gb_s: what one more GB/s to the host saves, to first order.
        in_ns_per_gb_s: the same for the direction to the device.
        limits: what binds.
        choices: tensors that must get past the cut, the largest first, then in the step's order.
        elsewhere: saved activations that the cut does not see.
    """

    workload: str
    machine: str
    planner: str
    budget_bytes: int
    ideal_step_ns: int
    step_ns: int
    bound_step_ns: int
    cut: str | None
    priced_step_ns: int
    solver: str
    device_ns_per_gib: float
    host_ns_per_gib: float | None
    out_ns_per_gb_s: float
    in_ns_per_gb_s: float
    limits: tuple[Limit, ...]
    choices: tuple[Choice, ...]
    elsewhere: int


def explain(plan: PlanFile, *, solver: str = "cbc") -> Explanation:
    """Explain a plan; it is played first, and must be what the file says.

    Args:
        plan: the file's content.
        solver: "cbc" or "highs", for the relaxation.

    Raises:
        InvalidPlanError: if the file says something that is not so.
        CertificateError: if the plan is faster than the bound in the file.
        NoPricesError: if the solver fails.
        SolverUnavailableError: if it cannot be started.
    """
    problem = replay(plan).problem
    names = [op.name for op in plan.step.operations]
    found = _NOTHING
    if plan.bound.cut is not None:
        priced = prices(problem, names.index(plan.bound.cut), solver=solver)
        if priced is None:
            raise NoPricesError(
                f"the solver {solver!r} found no optimum of the bound's relaxation, so there are "
                "no prices; try the other one with --solver"
            )
        found = priced
    crossing = [p for p in found.tensors if plan.step.tensors[p.tensor].name in plan.actions]
    crossing.sort(key=lambda p: -plan.step.tensors[p.tensor].size_bytes)
    seen = {price.tensor for price in crossing}
    return Explanation(
        workload=plan.step.name,
        machine=plan.machine.name,
        planner=plan.planner,
        budget_bytes=plan.budget_bytes,
        ideal_step_ns=problem.ideal_step_ns,
        step_ns=plan.simulated.step_ns,
        bound_step_ns=plan.bound.step_ns,
        cut=plan.bound.cut,
        priced_step_ns=max(problem.ideal_step_ns, found.step_ns),
        solver=found.solver,
        device_ns_per_gib=found.device_ns_per_byte * GIB,
        host_ns_per_gib=None
        if plan.machine.host.pinned_bytes is None
        else found.host_ns_per_byte * GIB,
        out_ns_per_gb_s=found.out_ns_per_rate * RATE_OF_A_GB_S,
        in_ns_per_gb_s=found.in_ns_per_rate * RATE_OF_A_GB_S,
        limits=tuple(_limit(names, binding) for binding in found.binding),
        choices=tuple(_choice(problem, plan, price) for price in crossing),
        elsewhere=sum(
            bool(saved) and tensor not in seen
            for tensor, saved in enumerate(problem.liveness.saved)
        ),
    )


_NOTHING = Prices(-1, 0, "", 0.0, 0.0, 0.0, 0.0, 0.0, (), ())
"""Prices where the bound is the ideal step."""


def limits_at(problem: Problem, cut: int, *, solver: str = "cbc") -> tuple[Limit, ...]:
    """What binds at the start of an operation, with prices; nothing if the solver gives none.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
    """
    found = prices(problem, cut, solver=solver)
    names = [op.name for op in problem.step.operations]
    return () if found is None else tuple(_limit(names, binding) for binding in found.binding)


def _limit(names: list[str], binding: Binding) -> Limit:
    memory = binding.resource in (Resource.DEVICE, Resource.HOST)
    where = None if binding.operation is None else names[binding.operation]
    return Limit(binding.resource.value, where, binding.price * (GIB if memory else 1e9))


def _choice(problem: Problem, plan: PlanFile, price: TensorPrice) -> Choice:
    tensor = plan.step.tensors[price.tensor]
    action = plan.actions.get(tensor.name, Action.KEEP)
    ways = {
        way: cost
        for way, cost in (
            (Action.KEEP, price.keep_ns),
            (Action.SWAP, price.swap_ns),
            (Action.RECOMPUTE, price.recompute_ns),
        )
        if cost is not None
    }
    taken = ways.get(action)
    excess = 0.0 if taken is None else taken - min(ways.values())
    factor = _break_even(price, action, ways)
    rates = problem.machine.link.rates()
    producer = int(problem.liveness.first_write[price.tensor])
    return Choice(
        tensor.name,
        plan.step.operations[producer].layer,
        tensor.size_bytes,
        action,
        price.keep_ns,
        price.swap_ns,
        price.recompute_ns,
        0.0 if _same(excess, taken) else excess,
        None if factor is None else factor * rates.d2h * 1e6,
        None if factor is None else factor * rates.h2d * 1e6,
        _why(action, ways),
    )


def _break_even(price: TensorPrice, action: Action, ways: dict[Action, float]) -> float | None:
    """The factor on the link's rates at which swapping costs as much as the alternative.

    Of the cost of swapping, `link_ns` is inversely proportional to the rate, and the rest (latency,
    host memory) does not depend on it: link_ns / factor + rest = alternative.
    """
    others = [cost for way, cost in ways.items() if way is not Action.SWAP]
    alternative = min(others) if action is Action.SWAP else ways.get(action, min(others))
    if price.swap_ns is None or price.link_ns <= LEAST_NS:
        return None
    left = alternative - max(0.0, price.swap_ns - price.link_ns)
    return price.link_ns / left if left > 0 else None


def _why(action: Action, ways: dict[Action, float]) -> str:
    """The action against the other ways, in words."""
    taken = ways.get(action)
    others = {way: cost for way, cost in ways.items() if way is not action}
    if taken is None:
        return "not one of the ways over the cut"
    if not others:
        return "the only way"
    best = min(others, key=lambda way: others[way])
    difference = others[best] - taken
    if _same(difference, taken):
        return f"as cheap as {_GERUND[best]}"
    if difference > 0:
        return f"cheapest, {_GERUND[best]} comes next"
    return f"{_GERUND[best]} looks cheaper"


def _same(difference: float, cost: float | None) -> bool:
    return abs(difference) <= max(LEAST_NS, SAME * (cost or 0.0))


_GERUND = {Action.KEEP: "keeping", Action.SWAP: "swapping", Action.RECOMPUTE: "recomputing"}
