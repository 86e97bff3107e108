"""Noise, repetitions, devices and traffic: what `simulate` and `plan` are asked beside one step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackswap_opt.plan import Problem, Schedule
    from slackswap_opt.planners import Planner
    from slackswap_opt.simulator.shared import Traffic
    from slackswap_opt.study import Cell, Replay, Settings
    from slackswap_opt.study.robustness import Margin, Noise, Robustness
    from slackswap_opt.study.steady_state import SteadyState

MOST_FRAGILE = 10
SHOWN_PERCENTILES = (1, 50, 95, 99)
DEFAULT_JITTER = "5%"
NS_PER_S = 10**9

Jitter = Annotated[
    str | None,
    typer.Option(
        "--jitter",
        metavar="SHARE",
        help="Noise on durations: standard deviation, like 5%.",
        show_default=False,
    ),
]
LinkJitter = Annotated[
    str | None,
    typer.Option(
        "--link-jitter",
        metavar="SHARE",
        help="Noise on copies: standard deviation, like 10%.",
        show_default=False,
    ),
]
Trials = Annotated[int, typer.Option("--trials", min=1, help="How often noise is drawn.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the noise.")]
Confidence = Annotated[
    str | None,
    typer.Option(
        "--confidence",
        metavar="SHARE",
        help="Plan for less than the budget until so many of the trials fit it, like 99%.",
        show_default=False,
    ),
]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps in a row.")]
MicroBatches = Annotated[
    int, typer.Option("--micro-batches", min=1, help="Forward and backward passes per step.")
]
Devices = Annotated[
    int,
    typer.Option("--devices", min=1, help="Devices on the link, starting evenly over one step."),
]
Load = Annotated[
    str | None,
    typer.Option(
        "--load",
        metavar="RATE",
        help="Other traffic on the link each way, like 5GB/s.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Asked:
    """What `simulate` is asked beside playing the file.

    Attributes:
        noise: for trials; None for none.
        steps: in a row.
        micro_batches: per step.
        devices: on one link.
        load: bytes per microsecond each way.
    """

    noise: Noise | None
    steps: int
    micro_batches: int
    devices: int
    load: int

    @property
    def repeats(self) -> bool:
        """Whether more is asked than one step of one device on a link of its own."""
        return (self.steps, self.micro_batches, self.devices, self.load) != (1, 1, 1, 0)


def asked(
    noise: Noise | None, steps: int, micro_batches: int, devices: int, load: str | None
) -> Asked:
    """The options of `simulate`, understood.

    Raises:
        InputError: naming the option that is wrong.
    """
    return Asked(noise, steps, micro_batches, devices, 0 if load is None else rate(load))


def noise_of(
    jitter: str | None, link_jitter: str | None, trials: int, seed: int, *, needed: bool = False
) -> Noise | None:
    """The noise that options describe; None if none is asked for and none is needed.

    Raises:
        InputError: naming the option that is wrong.
    """
    from slackswap_opt.study.robustness import Noise

    if jitter is None and link_jitter is None:
        if not needed:
            return None
        jitter = DEFAULT_JITTER
    return Noise(
        share("--jitter", jitter or "0"), share("--link-jitter", link_jitter or "0"), trials, seed
    )


def share(option: str, text: str) -> float:
    """A share written as 5% or 0.05.

    Raises:
        InputError: if it is neither.
    """
    from slackswap_opt.errors import InputError
    from slackswap_opt.study.quantities import parse_share

    found = parse_share(text)
    if found is None:
        raise InputError(f"{option} {text!r} is not understood; write it like 5% or 0.05")
    return float(found)


def rate(text: str) -> int:
    """Bytes per microsecond from a rate like 5GB/s.

    Raises:
        InputError: if it is none, or less than 1 MB/s.
    """
    from slackswap_opt.errors import InputError

    units = {"MB": 1, "GB": 1000, "TB": 10**6}
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([MGT]B)/s\s*", text)
    found = round(Fraction(match[1]) * units[match[2]]) if match else 0
    if found < 1:
        raise InputError(f"--load {text!r} is not understood; write it like 5GB/s or 800MB/s")
    return found


# -- simulate -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What came of it; None where it was not asked."""

    robustness: Robustness | None
    steady: SteadyState | None


def answer(given: Asked, played: Replay) -> Answer:
    """Play what is asked.

    Raises:
        InputError: if the schedule cannot be repeated.
    """
    from slackswap_opt.study.robustness import robustness
    from slackswap_opt.study.steady_state import steady_state

    plan, capacity = played.plan, played.verdict.capacity_bytes
    found = None
    if given.noise is not None:
        found = robustness(played.problem, plan.schedule, given.noise, capacity)
    if not given.repeats:
        return Answer(found, None)
    step_ns = (played.verdict.step_ns or 0) * given.micro_batches
    steady = steady_state(
        plan.step,
        plan.machine,
        plan.schedule,
        capacity,
        steps=given.steps,
        micro_batches=given.micro_batches,
        offsets_ns=[step_ns * device // given.devices for device in range(given.devices)],
        traffic=_traffic(given.load),
    )
    return Answer(found, steady)


def _traffic(load: int) -> tuple[Traffic, ...]:
    from slackswap_opt.simulator.shared import Traffic

    return (Traffic(load, load),) if load else ()


def document(found: Answer) -> dict[str, object]:
    """For `--json`."""
    entry: dict[str, object] = {}
    if found.robustness is not None:
        entry["robustness"] = robustness_entry(found.robustness)
    if found.steady is not None:
        steady = found.steady
        entry["steady_state"] = {
            "steps": steady.steps,
            "micro_batches": steady.micro_batches,
            "fits": steady.fits,
            "devices": [
                {
                    "offset_s": offset / NS_PER_S,
                    "fits": verdict.fits,
                    "peak_bytes": verdict.peak_bytes,
                    "host_bytes": verdict.timeline.host_bytes,
                    "stall_s": verdict.stall_ns / NS_PER_S,
                    "step_s": [ns / NS_PER_S for ns in steady.step_times_ns(device)],
                }
                for device, (offset, verdict) in enumerate(
                    zip(steady.offsets_ns, steady.verdicts, strict=True)
                )
            ],
        }
    return entry


def robustness_entry(found: Robustness) -> dict[str, object]:
    """A schedule under noise, for `--json`."""
    from slackswap_opt.study.robustness import CONFIDENCE, PERCENTILES

    def seconds(ns: float | None) -> float | None:
        return None if ns is None or ns != ns else ns / NS_PER_S

    return {
        "jitter": found.noise.jitter,
        "link_jitter": found.noise.link_jitter,
        "trials": found.noise.trials,
        "seed": found.noise.seed,
        "out_of_memory": found.out_of_memory,
        "fits_at_least": found.fits_at_least,
        "confidence_of_limit": CONFIDENCE,
        "planned_step_s": seconds(found.planned_ns),
        "mean_step_s": seconds(found.mean_ns),
        "deviation_s": seconds(found.deviation_ns),
        "percentiles_s": {str(p): seconds(found.percentile_ns(p)) for p in PERCENTILES},
        "peak_bytes": found.peak_bytes,
        "fragile": [
            {
                "operation": event.operation,
                "event": event.event,
                "failed": event.failed,
                "waited": event.waited,
                "mean_wait_s": event.mean_wait_ns / NS_PER_S,
                "planned_wait_s": event.planned_wait_ns / NS_PER_S,
            }
            for event in found.fragile[:MOST_FRAGILE]
        ],
    }


def print_answer(found: Answer) -> None:
    """For people."""
    if found.robustness is not None:
        _print_robustness(found.robustness)
    if found.steady is not None:
        _print_steady(found.steady)


def _print_robustness(found: Robustness) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.study.robustness import CONFIDENCE

    def ms(ns: float | None) -> str:
        return "-" if ns is None or ns != ns else show.milliseconds(ns / NS_PER_S)

    noise = found.noise
    show.print_lines("")
    show.print_facts(
        {
            "noise": f"{noise.jitter * 100:.4g} % on durations, "
            f"{noise.link_jitter * 100:.4g} % on copies (standard deviations), "
            f"{show.count(noise.trials, 'trial')}, seed {noise.seed}",
            "out of memory": f"in {show.percent_up(found.out_of_memory)} of the trials; the plan "
            f"fits with a probability of at least {show.percent_down(found.fits_at_least)} "
            f"(at {CONFIDENCE:.0%} confidence)",
            "step": f"mean {ms(found.mean_ns)} ms, deviation {ms(found.deviation_ns)} ms; "
            f"{ms(found.planned_ns)} ms without noise",
            "percentiles": ", ".join(
                f"{percent} %: {ms(found.percentile_ns(percent))} ms"
                for percent in SHOWN_PERCENTILES
            ),
            "peak": f"{show.memory(found.peak_bytes)} at most",
        }
    )
    if found.fragile:
        show.print_lines("")
        show.print_table(
            "Where noise costs time or the step",
            [
                show.Column("before", left=True),
                show.Column("failed"),
                show.Column("waited"),
                show.Column("mean ms"),
                show.Column("planned ms"),
            ],
            [
                [
                    event.operation,
                    show.percent_up(event.failed),
                    show.percent_up(event.waited),
                    ms(event.mean_wait_ns),
                    ms(event.planned_wait_ns),
                ]
                for event in found.fragile[:MOST_FRAGILE]
            ],
        )


def _print_steady(steady: SteadyState) -> None:
    from slackswap_opt.cli import show

    rows = []
    for device, verdict in enumerate(steady.verdicts):
        times = steady.step_times_ns(device)
        rows.append(
            [
                str(device + 1),
                show.milliseconds(steady.offsets_ns[device] / NS_PER_S),
                show.milliseconds(times[0] / NS_PER_S if times else None),
                show.milliseconds(times[-1] / NS_PER_S if times else None),
                show.milliseconds(verdict.stall_ns / NS_PER_S),
                show.memory(verdict.peak_bytes),
                show.memory(verdict.timeline.host_bytes),
            ]
        )
    show.print_lines("")
    show.print_table(
        f"steps: {steady.steps}, micro-batches in each: {steady.micro_batches}"
        + ("" if steady.fits else "; `-`: ran out of memory"),
        [
            show.Column("device"),
            show.Column("starts ms"),
            show.Column("first step ms"),
            show.Column("last step ms"),
            show.Column("waits ms"),
            show.Column("peak"),
            show.Column("host"),
        ],
        rows,
    )


# -- plan ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A probability of fitting under noise."""

    confidence: float
    noise: Noise


def confidence_of(
    confidence: str | None,
    jitter: str | None,
    link_jitter: str | None,
    trials: int,
    seed: int,
    *,
    taken: bool,
) -> Wanted | None:
    """The options of `plan`, understood; None if no confidence is asked for.

    Raises:
        InputError: naming the option that is wrong, or that says nothing without another;
            with `taken` also where --allocator sets the budget already.
    """
    from slackswap_opt.errors import InputError

    if confidence is None:
        if jitter is not None or link_jitter is not None:
            raise InputError("noise needs a --confidence to plan for, such as 99%")
        return None
    if taken:
        raise InputError("--confidence and --allocator both plan for less; give one of them")
    noise = noise_of(jitter, link_jitter, trials, seed, needed=True)
    assert noise is not None
    return Wanted(share("--confidence", confidence), noise)


def no_margin(problem: Problem, wanted: Wanted) -> str:
    """Why there is no plan."""
    from slackswap_opt.study.robustness import MARGINS

    return (
        f"no plan for {problem.budget_bytes} bytes was shown to fit with a probability of "
        f"{wanted.confidence:.4%} under this noise, with margins of up to {MARGINS[-1]:.0%}; "
        "give more --trials, a larger budget or a lower --confidence"
    )


def plan_with_margin(
    problem: Problem,
    name: str,
    planner: Planner,
    settings: Settings,
    wanted: Wanted,
    report: Callable[[str], None],
) -> tuple[Cell, Margin] | None:
    """The plan of the smallest margin that keeps the budget under noise; None if none does."""
    from slackswap_opt.study import sweep
    from slackswap_opt.study.robustness import with_margin

    cells: dict[int, Cell] = {}

    def plan(smaller: Problem) -> Schedule | None:
        (cell,) = sweep(smaller, [smaller.budget_bytes], {name: planner}, settings, report)
        cells[smaller.budget_bytes] = cell
        return cell.judged[name].result.schedule

    found = with_margin(problem, plan, wanted.noise, wanted.confidence)
    return None if found is None else (cells[found.planned_bytes], found)


def margin_entry(found: Margin) -> dict[str, object]:
    """For `--json`."""
    return {
        "margin": {
            "share": found.margin,
            "planned_bytes": found.planned_bytes,
            "confidence": found.confidence,
            "tried": [{"share": share, "fits": fits} for share, fits in found.tried],
            "robustness": robustness_entry(found.robustness),
        }
    }


def print_margin(found: Margin) -> None:
    """For people."""
    from slackswap_opt.cli import show
    from slackswap_opt.study.robustness import CONFIDENCE

    trials = found.robustness
    show.print_lines(
        "",
        f"planned for {show.memory(found.planned_bytes)}, {found.margin:.2%} less than the budget; "
        f"{trials.fitting} of {trials.noise.trials} trials with noise fit the budget, so that the "
        f"plan fits with a probability of at least {show.percent_down(trials.fits_at_least)} "
        f"(at {CONFIDENCE:.0%} confidence)",
    )
