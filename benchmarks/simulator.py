"""How fast the simulator is, beside other ways to do the same, in one run.

    python -m benchmarks.simulator [--batches 1,10,100,1000,10000] [--json] [--quick] [--write]

A step of 1,000 operations of which 300 activations go out and come back (600 transfers), under 5 %
noise on all durations, at a capacity at which copies and operations wait for memory, on a link
that slows down while both directions are busy. Two tasks:

* timing: when each event ends if memory never waits and rates are constant, by `FixedOrder`, a
  plain recurrence, a heap loop and simpy;
* memory: admission by memory, duplex rates and the exact memory timeline, by `simulate_batch`,
  the plain event loop behind `simulate`, simpy with the same accounts, tensor by tensor, and simpy
  with counts of events that were worked out beforehand ("simpy, counts").

All engines play the same lanes and must agree. Times are of this process's CPU. Needs the extra
`bench`. `--write` puts what is found into docs/simulator.md.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import ROOT, parser_of, rewrite, table_lines
from benchmarks.simulator_rivals import (
    Case,
    SimpyPlayer,
    SimpyWithCounts,
    heap_loop,
    recurrence,
    simpy_timing,
)
from slackswap_opt.machine import Link, Machine, load_machine
from slackswap_opt.plan import Copy, Schedule
from slackswap_opt.simulator import FixedOrder, Scenarios, simulate, simulate_batch
from slackswap_opt.simulator.engine import Player, check_structure
from slackswap_opt.simulator.lane import WORK_PER_BYTE, Lane
from slackswap_opt.simulator.program import regular_program
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value

PAGE = ROOT / "docs/simulator.md"
OPERATIONS = 1000
SWAPPED = 0.3
"""Copies out, and copies in, per operation."""
NOISE = 0.05
ROOM = 4
"""The capacity lies a fourth of the way from the least that fits to the peak without a limit."""
EARLY = 40
"""How many operations before it is needed a copy in may start."""
GROWTH = (1000, 10_000, 100_000)
SEARCHED = 1000
"""Up to so many operations the capacity is searched for; longer steps get their peak."""
SECONDS = 1.0
"""Of CPU time for each engine and batch."""
MEASURED = 1000
"""Largest batch whose memory use is traced."""


Program = tuple[TrainingStep, Machine, Schedule, int]


@dataclass(frozen=True)
class Row:
    """Microseconds per schedule of one engine at one batch; None where it does not do that."""

    engine: str
    batch: int
    operations: int
    transfers: int
    timing_us_per_schedule: float | None
    memory_us_per_schedule: float | None
    bytes_per_schedule: float | None = None


@dataclass(frozen=True)
class Task:
    """A step, a schedule and a capacity at which it waits for memory."""

    step: TrainingStep
    machine: Machine
    schedule: Schedule
    capacity_bytes: int

    @property
    def transfers(self) -> int:
        """Copies out and in."""
        return len(self.schedule.copies_out) + len(self.schedule.copies_in)

    def scenarios(self, lanes: int) -> Scenarios:
        """Durations with noise, the same in every run."""
        dice = np.random.default_rng(0)
        duration = self.step.index.duration_ns[list(self.schedule.compute)]
        factor = 1 + NOISE * dice.standard_normal((len(duration), lanes))
        return Scenarios(duration_ns=np.maximum(1, np.rint(duration[:, None] * factor)).astype(int))

    def case(self, scenarios: Scenarios, lane: int) -> Case:
        """One lane for the rivals."""
        program = regular_program(self.step, self.schedule, self.machine.host)
        assert program is not None
        moved = self.step.index.transfer_bytes * WORK_PER_BYTE
        return Case(
            program,
            np.asarray(scenarios.duration_ns)[:, lane].tolist(),
            moved[[copy.tensor for copy in self.schedule.copies_out]].tolist(),
            moved[[copy.tensor for copy in self.schedule.copies_in]].tolist(),
            self.machine.link.rates(),
            self.machine.link.latency_ns,
            self.capacity_bytes,
        )

    def lane(self, case: Case) -> Lane:
        """The same for the event loop."""
        return Lane(
            case.duration_ns, case.out_work, case.in_work, case.rates, case.latency_ns,
            self.machine.link.compute_speeds(), self.machine.host, case.capacity_bytes,
        )  # fmt: skip


def task(operations: int) -> Task:
    """A chain of half the operations and its backward half; three activations in five go out."""
    layers = operations // 2
    dice = np.random.default_rng(1)
    duration = dice.integers(200_000, 400_000, 2 * layers).tolist()
    size = dice.integers(10_000_000, 16_000_000, layers).tolist()
    tensors = [Tensor.of(f"a{k}", size[k]) for k in range(layers)]
    steps = []
    for k in range(layers):
        reads = (Value(f"a{k - 1}"),) if k else ()
        steps.append(Operation(f"f{k}", Phase.FORWARD, duration[k], reads, (Value(f"a{k}"),)))
    for k in reversed(range(layers)):
        tensors.append(Tensor.of(f"g{k}", 2_000_000))
        reads = (Value(f"a{k}"), Value(f"g{k + 1}")) if k + 1 < layers else (Value(f"a{k}"),)
        steps.append(
            Operation(f"b{k}", Phase.BACKWARD, 2 * duration[layers + k], reads, (Value(f"g{k}"),))
        )
    step = TrainingStep.build("chain", steps, tensors)
    schedule = _swapping(step, layers)
    machine = _machine()
    ample = int(step.index.size_bytes.sum())
    peak = simulate(step, machine, schedule, ample).peak_bytes
    if operations > SEARCHED:
        return Task(step, machine, schedule, peak)
    least = _least(step, machine, schedule, peak)
    return Task(step, machine, schedule, least + (peak - least) // ROOM)


def _least(step: TrainingStep, machine: Machine, schedule: Schedule, peak: int) -> int:
    """A capacity that fits, within a thousandth of the least that does."""
    low, high = 0, peak
    while high - low > peak // 1000:
        tried = np.linspace(low, high, 34).astype(int)[1:-1]
        fits = simulate_batch(step, machine, schedule, tried).fits
        first = int(fits.argmax()) if fits.any() else len(fits)
        low, high = (
            int(tried[first - 1]) if first else low,
            int(tried[first]) if first < len(fits) else high,
        )
    return high


def _machine() -> Machine:
    machine = load_machine()
    return Machine("pcie4", machine.device, Link(25e9, 25e9, 24e9, 12e9, 10_000))


def _swapping(step: TrainingStep, layers: int) -> Schedule:
    """Out as soon as there, back some operations before it is needed."""
    at = {tensor.name: number for number, tensor in enumerate(step.tensors)}
    events = 2 * layers
    frees: list[list[int]] = [[] for _ in range(events)]
    outs = []
    count = round(events * SWAPPED)
    swapped = [k * (layers - 10) // count for k in range(count)]
    for k in range(layers):
        backward = events - 1 - k
        frees[backward].append(at[f"a{k}"])
        if k + 1 < layers:
            frees[backward].append(at[f"g{k + 1}"])
    for k in swapped:
        outs.append(Copy(at[f"a{k}"], k))
        frees[k + 1].append(at[f"a{k}"])
    ins = [Copy(at[f"a{k}"], max(k + 1, events - 1 - k - EARLY)) for k in reversed(swapped)]
    return Schedule(tuple(range(events)), tuple(map(tuple, frees)), tuple(outs), tuple(ins))


def cpu_us(run: Callable[[], object], seconds: float = SECONDS) -> float:
    """Microseconds of CPU that one call takes, the mean over so many seconds of calls.

    The mean, and about as long for each engine: on a shared machine the best of many short runs
    would favour those that are short.
    """
    calls = 0
    begun = time.process_time()
    while calls == 0 or time.process_time() - begun < seconds:
        run()
        calls += 1
    return (time.process_time() - begun) / calls * 1e6


def measure(batches: Sequence[int], operations: int, plain_runs: int) -> list[Row]:
    """Every engine on the same lanes."""
    found = task(operations)
    program = (found.step, found.machine, found.schedule)
    fixed = FixedOrder(*program)
    few = found.scenarios(plain_runs)
    check(found, fixed, few)
    cases = [found.case(few, lane) for lane in range(plain_runs)]
    lanes = [found.lane(case) for case in cases]

    def each(run: Callable[[int], object]) -> float:
        turn = itertools.cycle(range(plain_runs))
        return cpu_us(lambda: run(next(turn)))

    def row(engine: str, timing: float | None, memory: float | None) -> Row:
        return Row(engine, 1, operations, found.transfers, timing, memory)

    def loop(lane: int) -> object:
        check_structure(found.step, found.schedule)
        return Player(found.step, found.schedule, lanes[lane]).play()

    def simpy(lane: int) -> object:
        check_structure(found.step, found.schedule)
        player = SimpyPlayer(found.step, found.schedule, lanes[lane])
        player.run()
        return player.verdict()

    rows = [
        row("recurrence", each(lambda lane: recurrence(cases[lane], fixed.order)), None),
        row("heap loop", each(lambda lane: heap_loop(cases[lane])), None),
        row("event loop", None, each(loop)),
        row("simpy", each(lambda lane: simpy_timing(cases[lane])), each(simpy)),
        row("simpy, counts", None, each(lambda lane: SimpyWithCounts(cases[lane]).run())),
    ]
    for batch in batches:
        given = found.scenarios(batch)

        def play(given: Scenarios = given) -> object:
            return simulate_batch(*program, found.capacity_bytes, given, timeline=True)

        def times(given: Scenarios = given) -> object:
            return fixed.times(given)

        timing, memory = cpu_us(times) / batch, cpu_us(play) / batch
        used = None
        if batch <= MEASURED:
            tracemalloc.start()
            kept = play()
            used = tracemalloc.get_traced_memory()[1] / batch
            tracemalloc.stop()
            del kept
        rows.append(Row("batch", batch, operations, found.transfers, timing, memory, used))
    return rows


def check(found: Task, fixed: FixedOrder, few: Scenarios) -> None:
    """All engines say the same of these lanes, in which copies wait for memory.

    Raises:
        AssertionError: if not.
    """
    lanes = few.lanes() or 0
    times = fixed.times(few)
    played = simulate_batch(
        found.step, found.machine, found.schedule, found.capacity_bytes, few, timeline=True
    )
    free = simulate_batch(found.step, found.machine, found.schedule, 1 << 50, few)
    assert played.fits.all()
    waits = (played.in_start_ns != free.in_start_ns).any(axis=0)
    assert waits.all(), "a lane in which no copy waits for memory"
    for lane in range(lanes):
        case = found.case(few, lane)
        ends = {recurrence(case, fixed.order), heap_loop(case), simpy_timing(case)}
        assert ends == {int(times.step_ns[lane])}
        counts = SimpyWithCounts(case)
        player = SimpyPlayer(found.step, found.schedule, found.lane(case))
        for step_ns in (counts.run(), player.run()):
            assert abs(step_ns / int(played.step_ns[lane]) - 1) < 1e-3
        assert max(counts.peak, player.verdict().peak_bytes) <= found.capacity_bytes


def growth(sizes: Sequence[int]) -> list[Row]:
    """One schedule of each size."""
    rows = []
    for operations in sizes:
        found = task(operations)
        program = (found.step, found.machine, found.schedule, found.capacity_bytes)

        def one(program: Program = program) -> object:
            return simulate(*program)

        rows.append(Row("event loop", 1, operations, found.transfers, None, cpu_us(one)))
    return rows


def slope(rows: Sequence[Row]) -> float:
    """Of the logarithm of the time over that of the size."""
    sizes: NDArray[np.float64] = np.log([row.operations for row in rows])
    times = np.log([row.memory_us_per_schedule or 0.0 for row in rows])
    return float(np.polyfit(sizes, times, 1)[0])


def described(rows: Sequence[Row], grown: Sequence[Row]) -> str:
    """Everything that was found, in Markdown."""
    return "\n\n".join(
        (
            f"Microseconds of CPU per schedule of {rows[0].operations:,} operations and "
            f"{rows[0].transfers:,} transfers, and KiB that a batch needs per lane:",
            _speed_table(rows),
            _ratios(rows),
            "One schedule by `simulate`, from small to large:",
            _growth_table(grown),
        )
    )


def _cell(number: float | None, digits: int = 1) -> str:
    return "-" if number is None else f"{number:,.{digits}f}"


def _speed_table(rows: Sequence[Row]) -> str:
    cells = [
        (
            row.engine,
            f"{row.batch:,}",
            _cell(row.timing_us_per_schedule),
            _cell(row.memory_us_per_schedule),
            _cell(None if row.bytes_per_schedule is None else row.bytes_per_schedule / 1024, 0),
        )
        for row in rows
    ]
    return "\n".join(table_lines(("engine", "lanes", "timing", "memory", "KiB a lane"), cells))


def _ratios(rows: Sequence[Row]) -> str:
    """The batch that was asked for, of these the one nearest to 1,000, against every other."""
    batches = [row for row in rows if row.engine == "batch"]
    best = min(batches, key=lambda row: abs(row.batch - 1000))
    lines = []
    for row in rows:
        if row.engine == "batch":
            continue
        cells = []
        for slow, fast in (
            (row.timing_us_per_schedule, best.timing_us_per_schedule),
            (row.memory_us_per_schedule, best.memory_us_per_schedule),
        ):
            ratio = None if slow is None or not fast else slow / fast
            cells.append("-" if ratio is None else f"{ratio:,.0f} times")
        lines.append((row.engine, *cells))
    heads = (f"a batch of {best.batch:,} is faster than", "timing", "memory")
    return "\n".join(table_lines(heads, lines))


def _growth_table(grown: Sequence[Row]) -> str:
    cells = [
        (
            f"{row.operations:,}",
            f"{row.transfers:,}",
            f"{(row.memory_us_per_schedule or 0.0) / 1e6:.3f}",
        )
        for row in grown
    ]
    lines = table_lines(("operations", "transfers", "seconds"), cells)
    return "\n".join(lines) + f"\n\nThe log-log slope is {slope(grown):.2f}."


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = parser_of(__doc__, json=True, write="update docs/simulator.md")
    parser.add_argument("--batches", default="1,10,100,1000,10000", help="with commas between")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    given = parser.parse_args(arguments)
    batches = [int(text) for text in given.batches.split(",")]
    operations, runs, sizes = (400, 3, (400, 1000)) if given.quick else (OPERATIONS, 10, GROWTH)
    rows = measure(batches, operations, runs)
    grown = growth(sizes)
    if given.json:
        json.dump([asdict(row) for row in (*rows, *grown)], sys.stdout, indent=1)
        print()
    else:
        print(described(rows, grown))
    if given.write:
        rewrite(PAGE, "speed", described(rows, grown))


if __name__ == "__main__":
    main()
