"""How a schedule does when durations and copies are not what the plan took for granted.

Noise: every compute event takes its duration, and every copy moves its bytes, times a factor of its
own. Factors are independent and lognormal with mean 1 and the standard deviation asked for, so they
are positive and do not shift the mean. Compute, copies out and copies in draw from generators of
their own: noise on the link leaves the durations of a seed as they are.

A trial plays the whole program, under the same rules and the same capacity; what runs out of
memory there would have on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.errors import InputError
from slackswap_opt.plan import Problem, Schedule
from slackswap_opt.simulator import BatchVerdict, Scenarios, simulate, simulate_batch
from slackswap_opt.simulator.lane import WORK_PER_BYTE

Floats = NDArray[np.float64]

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
CONFIDENCE = 0.95
"""Of the one-sided limits on probabilities."""
MARGINS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""Parts of the budget that are left free, in the order in which they are tried."""
HALVINGS = 4
"""How often the step between the first margin that suffices and the one before it is halved."""
FINEST = 0.0005
"""Margins closer than this are not told apart."""
MOST_JITTER = 2.0
LANES = 1000
"""Trials that are played together."""


@dataclass(frozen=True)
class Noise:
    """What trials draw from.

    Attributes:
        jitter: standard deviation of the factor on each compute event.
        link_jitter: the same on each copy.
        trials: how many.
        seed: of the generators.
    """

    jitter: float = 0.05
    link_jitter: float = 0.0
    trials: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {value:g}; give a fraction from 0 to {MOST_JITTER:g} (5% or 0.05)"
            for name, value in (("jitter", self.jitter), ("link jitter", self.link_jitter))
            if not 0 <= value <= MOST_JITTER
        ]
        if self.trials < 1:
            faults.append(f"trials is {self.trials}; give at least 1")
        if self.seed < 0:
            faults.append(f"seed is {self.seed}; give 0 or more")
        if faults:
            raise InputError(*faults)


@dataclass(frozen=True)
class Fragile:
    """An event at which noise costs time or the step.

    Attributes:
        event: index of the compute event.
        operation: its name.
        failed: part of all trials that ran out of memory before it.
        waited: part of all trials in which the compute stream waited before it.
        mean_wait_ns: mean wait before it, over all trials.
        planned_wait_ns: wait before it without noise.
    """

    event: int
    operation: str
    failed: float
    waited: float
    mean_wait_ns: float
    planned_wait_ns: int

    @property
    def added_wait_ns(self) -> float:
        """Mean wait that noise adds."""
        return self.mean_wait_ns - self.planned_wait_ns


@dataclass(frozen=True)
class Robustness:
    """A schedule under noise.

    Attributes:
        noise: what was drawn.
        planned_ns: step time without noise; None if it does not fit even then.
        step_ns: (fitting trials,) step times, ascending.
        peak_bytes: largest memory in use in any trial.
        fitting: trials that ran to the end.
        fragile: events, those that fail most first, then those that add the longest waits.
    """

    noise: Noise
    planned_ns: int | None
    step_ns: NDArray[np.int64]
    peak_bytes: int
    fitting: int
    fragile: tuple[Fragile, ...]

    @property
    def fits(self) -> float:
        """Part of the trials that fit."""
        return self.fitting / self.noise.trials

    @property
    def fits_at_least(self) -> float:
        """The probability of fitting is at least this, at a confidence of `CONFIDENCE`."""
        return lower_limit(self.fitting, self.noise.trials)

    @property
    def out_of_memory(self) -> float:
        """Part of the trials that ran out of memory."""
        return 1 - self.fits

    @property
    def mean_ns(self) -> float:
        """Mean step time of the trials that fit, nan if none does."""
        return float(self.step_ns.mean()) if self.step_ns.size else math.nan

    @property
    def deviation_ns(self) -> float:
        """Standard deviation of the same."""
        return float(self.step_ns.std()) if self.step_ns.size else math.nan

    def percentile_ns(self, percent: float) -> int | None:
        """The step time that so many percent of the fitting trials do not exceed."""
        if not self.step_ns.size:
            return None
        rank = math.ceil(percent / 100 * self.step_ns.size)
        return int(self.step_ns[max(rank, 1) - 1])


def scenarios(problem: Problem, schedule: Schedule, noise: Noise) -> Scenarios:
    """The trials, as lanes."""
    index = problem.step.index
    work = index.transfer_bytes * WORK_PER_BYTE
    queues = (
        (index.duration_ns[list(schedule.compute)], noise.jitter),
        (work[[copy.tensor for copy in schedule.copies_out]], noise.link_jitter),
        (work[[copy.tensor for copy in schedule.copies_in]], noise.link_jitter),
    )
    drawn = []
    for stream, (exact, deviation) in enumerate(queues):
        dice = np.random.default_rng([noise.seed, stream])
        drawn.append(_noisy(exact, deviation, noise.trials, dice))
    return Scenarios(*drawn)


def _noisy(
    exact: NDArray[np.int64], deviation: float, trials: int, dice: np.random.Generator
) -> NDArray[np.int64]:
    """(numbers, trials) each number times lognormal factors of mean 1, rounded."""
    if deviation == 0:
        return np.repeat(exact[:, None], trials, axis=1)
    sigma = math.sqrt(math.log1p(deviation**2))
    normal = dice.standard_normal((trials, len(exact)))  # a trial's draws do not depend on how many
    factor = np.exp(sigma * normal - sigma**2 / 2)
    return np.asarray(np.rint(exact * factor), dtype=np.int64).T


def robustness(
    problem: Problem, schedule: Schedule, noise: Noise, capacity_bytes: int | None = None
) -> Robustness:
    """Play a schedule under noise.

    Args:
        problem: step, machine and budget.
        schedule: the program.
        noise: what to draw.
        capacity_bytes: memory in each trial; the budget if not given.

    Raises:
        ScheduleError: if the schedule is wrong.
    """
    step, machine = problem.step, problem.machine
    capacity = problem.budget_bytes if capacity_bytes is None else capacity_bytes
    planned = simulate(step, machine, schedule, capacity)
    drawn = scenarios(problem, schedule, noise)
    parts = [
        simulate_batch(step, machine, schedule, capacity, part) for part in _parts(drawn, noise)
    ]
    for part in parts:
        for error in part.errors.values():
            raise error
    steps = np.concatenate([part.step_ns[part.fits] for part in parts])
    waits = _Waits(len(schedule.compute))
    for part in parts:
        waits.add(part)
    planned_wait = np.zeros(len(schedule.compute), dtype=np.int64)
    for stall in planned.timeline.stalls:
        planned_wait[stall.event] += stall.end_ns - stall.start_ns
    return Robustness(
        noise,
        planned.step_ns,
        np.sort(steps),
        max(int(part.peak_bytes.max()) for part in parts),
        len(steps),
        waits.fragile(problem, schedule, noise.trials, planned_wait),
    )


def _parts(drawn: Scenarios, noise: Noise) -> list[Scenarios]:
    """The trials in batches."""
    tables = (drawn.duration_ns, drawn.out_work, drawn.in_work)
    return [
        Scenarios(*(np.asarray(table)[:, first : first + LANES] for table in tables))
        for first in range(0, noise.trials, LANES)
    ]


class _Waits:
    """Waits and failures by compute event, summed over trials."""

    def __init__(self, events: int) -> None:
        self.waited = np.zeros(events, dtype=np.int64)
        self.wait_ns = np.zeros(events, dtype=np.float64)
        self.failed = np.zeros(events, dtype=np.int64)

    def add(self, part: BatchVerdict) -> None:
        start, end = part.compute_start_ns, part.compute_end_ns
        before = np.vstack((np.zeros((1, part.lanes), dtype=np.int64), end[:-1]))
        wait = np.where(start >= 0, start - before, 0)
        stuck = part.stuck_event
        np.add.at(self.failed, stuck[stuck >= 0], 1)
        self.waited += (wait > 0).sum(axis=1)
        self.wait_ns += wait.sum(axis=1, dtype=np.float64)

    def fragile(
        self, problem: Problem, schedule: Schedule, trials: int, planned: NDArray[np.int64]
    ) -> tuple[Fragile, ...]:
        ops = problem.step.operations
        found = [
            Fragile(
                event,
                ops[schedule.compute[event]].name,
                int(self.failed[event]) / trials,
                int(self.waited[event]) / trials,
                float(self.wait_ns[event]) / trials,
                int(planned[event]),
            )
            for event in np.flatnonzero(self.failed + self.waited).tolist()
        ]
        return tuple(sorted(found, key=lambda f: (-f.failed, -f.added_wait_ns, f.event)))


def lower_limit(successes: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The exact (Clopper-Pearson) one-sided lower limit on a probability.

    The largest p for which so many successes or more have a chance of at most 1 - confidence.
    """
    if successes == 0:
        return 0.0
    low, high = 0.0, successes / trials
    for _ in range(60):
        middle = (low + high) / 2
        if _at_least(successes, trials, middle) <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _at_least(successes: int, trials: int, p: float) -> float:
    """Chance of `successes` or more out of `trials`."""
    if p <= 0:
        return 0.0
    if p >= 1:
        return 1.0
    counts = range(successes, trials + 1)
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            whole
            - math.lgamma(count + 1)
            - math.lgamma(trials - count + 1)
            + count * math.log(p)
            + (trials - count) * math.log1p(-p)
        )
        for count in counts
    )


@dataclass(frozen=True)
class Margin:
    """A part of the budget that planning left free, and what came of it.

    Attributes:
        margin: the part.
        planned_bytes: the budget that the plan was made for.
        robustness: the plan at the whole budget in trials that played no part in choosing it.
        confidence: the probability of fitting that was asked for.
        tried: every margin tried, in order, and the part of its first trials that fit; None where
            there was no plan.
    """

    margin: float
    planned_bytes: int
    robustness: Robustness
    confidence: float
    tried: tuple[tuple[float, float | None], ...]


def with_margin(
    problem: Problem,
    plan: Callable[[Problem], Schedule | None],
    noise: Noise,
    confidence: float,
    margins: Sequence[float] = MARGINS,
) -> Margin | None:
    """Plan for less than the budget until the plan fits the budget under noise.

    Margins are tried in order until one suffices; then the step before it is halved, `HALVINGS`
    times, for a smaller one. A margin suffices if two sets of trials both show, at a confidence of
    `CONFIDENCE`, a probability of fitting of at least `confidence`. Every set has a seed of its
    own. What is reported is the second set of the plan that is chosen.

    A plan that fits more rarely than asked for passes one set in at most one case in twenty, both
    in one case in 400. At most 20 plans can be tried before the chance that any of them passed by
    luck exceeds 1 - `CONFIDENCE`; with `MARGINS` at most 12 are.

    Args:
        problem: what is asked.
        plan: plans a problem; None where it finds no plan.
        noise: what trials draw from; the n-th plan is tried under the seeds 2 n and 2 n + 1 after
            the one given.
        confidence: the probability of fitting to be shown, below 1.
        margins: parts of the budget, ascending.

    Returns:
        The smallest margin found that does; None if none does.

    Raises:
        InputError: if so many trials cannot show such a probability.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; give a probability such as 99%")
    if lower_limit(noise.trials, noise.trials) < confidence:
        needed = math.ceil(math.log(1 - CONFIDENCE) / math.log(confidence))
        raise InputError(
            f"{noise.trials} trials cannot show a confidence of {confidence:.4%}; "
            f"give at least {needed} with --trials"
        )
    search = _MarginSearch(problem, plan, noise, confidence)
    low, found = 0.0, None
    for margin in margins:
        found = search.attempt(margin)
        if found is not None:
            break
        low = margin
    if found is None:
        return None
    for _ in range(HALVINGS):
        middle = (low + found.margin) / 2
        if found.margin - middle < FINEST:
            break
        better = search.attempt(middle)
        if better is None:
            low = middle
        else:
            found = better
    return replace(found, tried=tuple(search.tried))


class _MarginSearch:
    """Plans for margins, each held against trials of its own."""

    def __init__(
        self,
        problem: Problem,
        plan: Callable[[Problem], Schedule | None],
        noise: Noise,
        confidence: float,
    ) -> None:
        self.problem, self.plan = problem, plan
        self.noise, self.confidence = noise, confidence
        self.tried: list[tuple[float, float | None]] = []

    def attempt(self, margin: float) -> Margin | None:
        """What comes of a margin; None if it was not shown to suffice."""
        seed = self.noise.seed + 2 * len(self.tried)
        budget = int(self.problem.budget_bytes * (1 - margin))
        schedule = self.plan(self.problem.with_budget(budget)) if budget > 0 else None
        if schedule is None:
            self.tried.append((margin, None))
            return None
        first = robustness(self.problem, schedule, replace(self.noise, seed=seed))
        self.tried.append((margin, first.fits))
        if first.fits_at_least < self.confidence:
            return None
        second = robustness(self.problem, schedule, replace(self.noise, seed=seed + 1))
        if second.fits_at_least < self.confidence:
            return None
        return Margin(margin, budget, second, self.confidence, tuple(self.tried))
