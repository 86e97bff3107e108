"""Traces: held against the Trace Event Format by a strict parser, and against the verdict."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from slackswap_opt.errors import ScheduleError
from slackswap_opt.export import chrome_trace
from slackswap_opt.export.chrome_trace import COMPUTE, D2H, H2D, microseconds
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import swap_all
from slackswap_opt.simulator import Verdict, simulate
from slackswap_opt.workloads import build_step, load_workload
from tests.strategies import Program, programs
from tests.test_simulator_properties import RELAXED

FIELDS = {
    "M": {"ts", "ph", "name", "pid", "args"},
    "B": {"ts", "ph", "name", "pid", "tid", "cat", "args"},
    "E": {"ts", "ph", "name", "pid", "tid", "cat"},
    "s": {"ts", "ph", "name", "pid", "tid", "cat", "id"},
    "f": {"ts", "ph", "name", "pid", "tid", "cat", "id", "bp"},
    "C": {"ts", "ph", "name", "pid", "args"},
}
"""Every kind of event that is written, with the fields that it must have and no others."""


class Slice:
    def __init__(self, begin, end_ns):
        self.name, self.category, self.arguments = begin["name"], begin["cat"], begin["args"]
        self.start_ns, self.end_ns = nanoseconds(begin), end_ns
        self.flows: list[tuple[str, int]] = []


def nanoseconds(event) -> int:
    value = event["ts"] * 1000
    assert value == int(value), "a time is not in whole nanoseconds"
    return int(value)


class Trace:
    """A parsed trace: slices by track, counters by name, arrows by number."""

    def __init__(self, text: str) -> None:
        self.document = json.loads(text, parse_float=Decimal, parse_constant=pytest.fail)
        assert set(self.document) == {"displayTimeUnit", "otherData", "traceEvents"}
        self.names: dict[int, str] = {}
        self.process = ""
        self.slices: dict[int, list[Slice]] = defaultdict(list)
        self.counters: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.arrows: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
        self.open: dict[int, dict] = {}
        for event in self.document["traceEvents"]:
            self.add(event)
        assert not self.open, "a slice never ends"

    def add(self, event) -> None:
        kind = event["ph"]
        assert set(event) - {"tid"} == FIELDS[kind] - {"tid"}
        assert isinstance(event["ts"], Decimal)
        assert event["pid"] == 1
        at = nanoseconds(event)
        assert at >= 0
        thread = event.get("tid")
        if kind == "M":
            if event["name"] == "process_name":
                self.process = event["args"]["name"]
            elif event["name"] == "thread_name":
                self.names[thread] = event["args"]["name"]
        elif kind == "B":
            assert thread not in self.open, "slices of a track overlap"
            done = self.slices[thread]
            assert not done or done[-1].end_ns <= at, "slices of a track go back in time"
            self.open[thread] = event
        elif kind == "E":
            begin = self.open.pop(thread)
            assert (begin["name"], begin["cat"]) == (event["name"], event["cat"])
            assert at >= nanoseconds(begin)
            self.slices[thread].append(Slice(begin, at))
        elif kind in "sf":
            assert nanoseconds(self.open[thread]) == at, "an arrow is not bound to a slice"
            assert kind not in self.arrows[event["id"]], "an arrow starts or ends twice"
            self.arrows[event["id"]][kind] = (thread, at)
        else:
            assert set(event["args"]) == {"bytes"}
            assert not self.counters[event["name"]] or self.counters[event["name"]][-1][0] <= at
            self.counters[event["name"]].append((at, event["args"]["bytes"]))


def trace_of(program: Program, verdict: Verdict) -> Trace:
    return Trace(chrome_trace(program.step, program.schedule, verdict, machine="here"))


@settings(RELAXED, max_examples=40)
@given(programs())
def test_a_trace_is_well_formed_and_says_what_was_simulated(program: Program):
    try:
        verdict = simulate(*program)
    except ScheduleError:
        return
    trace, line = trace_of(program, verdict), verdict.timeline
    assert trace.names.keys() == {COMPUTE, D2H, H2D}
    stalls = [s for s in trace.slices[COMPUTE] if s.category == "stall"]
    assert [(s.start_ns, s.end_ns, s.arguments["cause"]) for s in stalls] == [
        (s.start_ns, s.end_ns, s.cause.value) for s in line.stalls
    ]
    events = [s for s in trace.slices[COMPUTE] if s.category != "stall"]
    begun = int((line.compute_start_ns >= 0).sum())
    assert [s.start_ns for s in events] == line.compute_start_ns[:begun].tolist()
    assert [s.name for s in events] == [
        program.step.operations[op].name for op in program.schedule.compute[:begun]
    ]
    for thread, starts in ((D2H, line.out_start_ns), (H2D, line.in_start_ns)):
        assert [s.start_ns for s in trace.slices[thread]] == starts[starts >= 0].tolist()
    assert trace.counters.get("memory in use", []) == list(
        zip(line.memory_ns.tolist(), line.memory_bytes.tolist(), strict=True)
    )
    assert trace.document["otherData"]["peak_bytes"] == verdict.peak_bytes
    assert len(trace.arrows) == int((line.in_start_ns >= 0).sum())
    for arrow in trace.arrows.values():
        assert set(arrow) == {"s", "f"}
        assert (arrow["s"][0], arrow["f"][0]) == (D2H, H2D)
        assert arrow["s"][1] <= arrow["f"][1]


MACHINE = load_machine()
STEP = build_step(load_workload("bert-large", layers=2), MACHINE)
PROBLEM = Problem(STEP, MACHINE, 1)
BUDGET = PROBLEM.liveness.ideal_peak_bytes * 7 // 10
SCHEDULE = swap_all(PROBLEM.with_budget(BUDGET)).schedule
assert SCHEDULE is not None
VERDICT = simulate(STEP, MACHINE, SCHEDULE, BUDGET)
RESERVED = (np.array([0, 1500]), np.array([0, 2**21]))
TEXT = chrome_trace(
    STEP, SCHEDULE, VERDICT, machine=MACHINE.name, budget_bytes=BUDGET,
    counters={"reserved": RESERVED},
)  # fmt: skip


def test_a_plan_has_names_metadata_and_counters():
    trace = Trace(TEXT)
    assert trace.process == f"{STEP.name} on {MACHINE.name}"
    about = trace.document["otherData"]
    assert (about["workload"], about["machine"]) == (STEP.name, MACHINE.name)
    assert (about["budget_bytes"], about["step_ns"]) == (BUDGET, VERDICT.step_ns)
    assert trace.counters["budget"] == [(0, BUDGET), (VERDICT.step_ns, BUDGET)]
    assert trace.counters["reserved"] == [(0, 0), (1500, 2**21)]
    waits = [s for s in trace.slices[COMPUTE] if s.category == "stall"]
    assert sum(s.end_ns - s.start_ns for s in waits) == VERDICT.stall_ns > 0


def test_neighbours_share_one_number_so_that_they_never_overlap():
    for slices in Trace(TEXT).slices.values():
        for left, right in pairwise(slices):
            assert left.end_ns <= right.start_ns
    texts = [line for line in TEXT.splitlines() if '"tid": 1,' in line and '"ph": "M"' not in line]
    ends = {line.split(",")[0] for line in texts if '"ph": "E"' in line}
    begins = {line.split(",")[0] for line in texts if '"ph": "B"' in line}
    assert len(ends & begins) == len(begins) - 1, "compute and waits leave no gap"


@pytest.mark.parametrize(
    ("ns", "text"), [(0, "0.000"), (1, "0.001"), (999, "0.999"), (1000, "1.000"),
                     (10**18 + 7, "1000000000000000.007")],
)  # fmt: skip
def test_times_are_exact_decimals(ns, text):
    assert microseconds(ns) == text


def test_names_that_need_escapes_survive():
    name = 'a "quoted"\n\\ näme'
    trace = Trace(chrome_trace(replace(STEP, name=name), SCHEDULE, VERDICT))
    assert trace.process == name


def test_an_unfinished_step_is_traced_as_far_as_it_ran():
    least = PROBLEM.liveness.ideal_peak_bytes // 10
    verdict = simulate(STEP, MACHINE, SCHEDULE, least)
    assert not verdict.fits
    trace = Trace(chrome_trace(STEP, SCHEDULE, verdict))
    assert 0 < len(trace.slices[COMPUTE]) < len(SCHEDULE.compute)
    assert trace.document["otherData"]["step_ns"] is None


def processor() -> str | None:
    """A trace processor that is here already; the tests download none."""
    return os.environ.get("TRACE_PROCESSOR") or shutil.which("trace_processor_shell")


@pytest.mark.skipif(processor() is None, reason="there is no trace_processor_shell")
def test_perfettos_trace_processor_reads_the_same(tmp_path):
    api = pytest.importorskip("perfetto.trace_processor")
    path = tmp_path / "trace.json"
    path.write_text(TEXT, encoding="utf-8")
    trace = Trace(TEXT)
    config = api.TraceProcessorConfig(bin_path=processor())
    with api.TraceProcessor(trace=str(path), config=config) as reader:
        for thread, slices in trace.slices.items():
            rows = reader.query(
                "select ts, dur, slice.name as name from slice join thread_track on "
                "slice.track_id = thread_track.id join thread using (utid) "
                f"where tid = {thread} order by ts, slice.id"
            )
            assert [(row.ts, row.dur, row.name) for row in rows] == [
                (s.start_ns, s.end_ns - s.start_ns, s.name) for s in slices
            ]
        (flows,) = reader.query("select count(*) as n from flow")
        assert flows.n == len(trace.arrows)
