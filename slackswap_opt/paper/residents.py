"""What is on the device at the instant of the largest memory.

The simulator tells how much memory is in use and when; this tells by what, from the schedule and
the times. The sum is held against the simulator's peak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from slackswap_opt.errors import SlackSwapError
from slackswap_opt.plan import Problem, Schedule
from slackswap_opt.simulator import Verdict

WORKSPACE = "workspace"
_Key = tuple[int, int, int, int]
_ENDS, _COMPUTE, _OUT, _IN = range(4)
"""The order at one instant: ends, then starts of compute, of copies out and of copies in."""


@dataclass(frozen=True)
class Held:
    """Bytes of one kind at the peak.

    Attributes:
        group: "activations", "gradients" (everything that is written after the forward phase) or
            "workspace".
        kind: name of the tensors within their layers.
        bytes: their sum.
    """

    group: str
    kind: str
    bytes: int


def residents_at_peak(problem: Problem, schedule: Schedule, verdict: Verdict) -> list[Held]:
    """What is held when the memory first reaches its peak, largest first.

    Raises:
        SlackSwapError: if the sum is not the simulator's peak, a defect.
    """
    device = _Device(problem, schedule)
    highest, held = 0, Counter[int]()
    for _, kind, number in sorted(_events(verdict)):
        device.apply(kind, number)
        if device.total > highest:
            highest, held = device.total, device.held.copy()
            scratch = device.scratch
    if highest != verdict.peak_bytes:
        raise SlackSwapError(
            f"{problem.step.name}: what is held adds up to {highest} bytes at the peak, the "
            f"simulator says {verdict.peak_bytes}; please report this as a defect"
        )
    return _by_kind(problem, held, scratch if highest else 0)


def _by_kind(problem: Problem, held: Counter[int], scratch: int) -> list[Held]:
    step, activation = problem.step, problem.liveness.activation
    sums = Counter[tuple[str, str]]()
    for tensor, size in held.items():
        layer = step.operations[step.index.writers[tensor][0]].layer
        group = "activations" if activation[tensor] else "gradients"
        sums[group, kind_of(step.tensors[tensor].name, layer)] += size
    if scratch:
        sums[WORKSPACE, WORKSPACE] += scratch
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    return [Held(group, kind, size) for (group, kind), size in ordered if size]


def kind_of(tensor: str, layer: str) -> str:
    """The name of a tensor within its layer: `layer.3.qkv` is a `qkv`."""
    return tensor.removeprefix(f"{layer}.") if layer else tensor


def _events(verdict: Verdict) -> Iterator[tuple[_Key, str, int]]:
    """Starts and ends in the order of docs/problem.md, rule 6.

    An event without duration ends before anything else starts.
    """
    played = verdict.timeline
    sources = (
        ("compute", _COMPUTE, 0, played.compute_start_ns, played.compute_end_ns),
        ("out", _OUT, 1, played.out_start_ns, played.out_end_ns),
        ("in", _IN, 2, played.in_start_ns, played.in_end_ns),
    )
    for name, rank, among_ends, starts, ends in sources:
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            if start >= 0:
                yield (start, rank, number, 0), f"{name} starts", number
            if end >= 0:
                now = (end, _ENDS, among_ends, number) if end > start else (end, rank, number, 1)
                yield now, f"{name} ends", number


@dataclass
class _Device:
    """Memory in use, by tensor."""

    problem: Problem
    schedule: Schedule
    held: Counter[int] = field(default_factory=Counter)
    scratch: int = 0
    leaving: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)

    @property
    def total(self) -> int:
        return self.scratch + self.held.total()

    def apply(self, kind: str, number: int) -> None:
        index = self.problem.step.index
        if kind == "compute starts":
            op = self.schedule.compute[number]
            self.scratch = int(index.workspace_bytes[op])
            for tensor, version in index.writes[op]:
                if version or index.static[tensor]:
                    continue
                if tensor in self.held:
                    self.scratch += int(index.size_bytes[tensor])
                else:
                    self._hold(tensor)
        elif kind == "compute ends":
            self.scratch = 0
            for tensor in self.schedule.frees[number]:
                if self._pending(tensor, number):
                    self.leaving.add(tensor)
                else:
                    del self.held[tensor]
        elif kind == "in starts":
            self._hold(self.schedule.copies_in[number].tensor)
        elif kind == "out ends":
            self.copied.add(number)
            tensor = self.schedule.copies_out[number].tensor
            if tensor in self.leaving and not self._pending(tensor, len(self.schedule.compute)):
                self.leaving.remove(tensor)
                del self.held[tensor]

    def _hold(self, tensor: int) -> None:
        self.held[tensor] = int(self.problem.step.index.size_bytes[tensor])

    def _pending(self, tensor: int, event: int) -> bool:
        """Whether a copy out that was triggered by then is not complete."""
        return any(
            copy.tensor == tensor and copy.after <= event and number not in self.copied
            for number, copy in enumerate(self.schedule.copies_out)
        )
