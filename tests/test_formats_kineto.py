"""Profiler traces: the chosen step, kernels by stream, ties, flows by shape, faults."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import kineto, read_step
from slackswap_opt.formats.kineto_rules import function_name, is_view, saved_rule
from slackswap_opt.formats.kineto_units import transient_bytes
from slackswap_opt.formats.options import ReadOptions
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import greedy
from slackswap_opt.step import Phase, TrainingStep, ideal_step_ns, liveness
from slackswap_opt.study import compare, inspect
from tests.fuzzing import batches_of, fuzz
from tests.hand import faults_in, flows

TRACES = Path(os.environ.get("SLACKSWAP_DATA", "")) / "traces"
needs_data = pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)
MAIN, ENGINE, STREAM, BESIDE = "1", "2", 7, 20
Shape = list[int]


class Recorder:
    """Writes the events of a profiler, one call after another."""

    def __init__(self, *, new: bool = True) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 1000
        self.gpu = 5000.0
        self.correlation = 0
        self.new = new

    def call(
        self, name: str, shapes: list[Shape] | None = None, sequence: int | None = None,
        kernels: tuple[float, ...] = (), thread: str = MAIN, inside: Any = None,
        dtype: str = "float", stream: int = STREAM,
    ) -> None:  # fmt: skip
        """A call that launches kernels of these microseconds, then what `inside` records."""
        event: dict[str, Any] = {
            "ph": "X", "cat": "cpu_op" if self.new else "Operator", "name": name, "pid": 9,
            "tid": thread, "ts": self.now, "args": {},
        }  # fmt: skip
        if shapes is not None:
            event["args"] |= {"Input Dims": shapes, "Input type": [dtype] * len(shapes)}
        if sequence is not None:
            event["args"]["Sequence number"] = sequence
        self.events.append(event)
        self.now += 1
        for microseconds in kernels:
            self.kernel(microseconds, thread, stream)
        if inside:
            inside()
        self.now += 2
        event["dur"] = self.now - event["ts"] - 1

    def kernel(self, microseconds: float, thread: str, stream: int, name: str = "k") -> None:
        self.correlation += 1
        self.events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": thread,
             "ts": self.now, "dur": 0.5, "args": {"correlation": self.correlation}},
            {"ph": "X", "cat": "gpu_memcpy" if "Memcpy" in name else "kernel", "name": name,
             "pid": 0, "tid": stream, "ts": self.gpu, "dur": microseconds,
             "args": {"correlation": self.correlation, "device": 0, "stream": stream}},
        ]  # fmt: skip
        self.gpu += microseconds
        self.now += 1

    def memory(self, size: int, thread: str = MAIN) -> None:
        self.events.append(
            {"ph": "i", "name": "[memory]", "pid": 9, "tid": thread, "ts": self.now,
             "args": {"Device Type": 1, "Bytes": size}}
        )  # fmt: skip

    def backward(
        self, function: str, gradient: list[Shape], sequence: int, kernels: tuple[float, ...] = (),
        arguments: list[Shape] | None = None, summed: Shape | None = None,
    ) -> None:  # fmt: skip
        def body() -> None:
            self.call(f"aten::{function.lower()}_backward", arguments or gradient, None, kernels,
                      ENGINE)  # fmt: skip

        def engine() -> None:
            self.call(f"{function}Backward0", gradient, sequence, (), ENGINE, body)
            if summed:
                self.call("aten::add_", [summed, summed], None, (1.0,), ENGINE)

        if self.new:
            self.call(f"autograd::engine::evaluate_function: {function}Backward0", None, sequence,
                      (), ENGINE, engine)  # fmt: skip
            return
        self.call(f"{function}Backward0", gradient, sequence, (), ENGINE, body)
        if summed:
            self.call("aten::add_", [summed, summed], None, (1.0,), ENGINE)

    def accumulate(self, shape: Shape) -> None:
        self.call("torch::autograd::AccumulateGrad", [shape], None, (0.5,), ENGINE)

    def step(self, number: int, body: Any) -> None:
        start = self.now
        self.now += 1
        body()
        self.now += 5
        self.events.append(
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 9,
             "tid": MAIN, "ts": start, "dur": self.now - start, "args": {}}
        )  # fmt: skip

    def content(self) -> bytes:
        return json.dumps({"schemaVersion": 1, "traceEvents": self.events}).encode()


X, W = [8, 16], [16, 16]


def block(record: Recorder, first: int = 10) -> None:
    """x -> linear -> relu (in place) -> linear -> add of the relu's output -> loss; and back."""

    def linear(sequence: int) -> None:
        def inside() -> None:
            record.call("aten::t", [W], sequence)
            record.call("aten::mm", [X, W], sequence + 1, (20.0,))

        record.call("aten::linear", [X, W], sequence, (), inside=inside)

    linear(first)
    record.call("aten::relu_", [X], first + 2, (5.0,))
    linear(first + 3)
    record.call("aten::add", [X, X], first + 5, (6.0,))
    record.call("aten::sum", [X], first + 6, (3.0,))
    record.backward("Sum", [[]], first + 6)
    record.backward("Add", [X], first + 5)
    record.backward("Mm", [X], first + 4, (40.0,), summed=X)
    record.backward("T", [W], first + 3)
    record.accumulate(W)
    record.backward("Relu", [X], first + 2, (7.0,), [X, X])
    record.backward("Mm", [X], first + 1, (30.0,))
    record.backward("T", [W], first)
    record.accumulate(W)
    record.call("aten::_foreach_add_", None, None, (4.0,))


def trace(*, new: bool = True, body: Any = block) -> Recorder:
    record = Recorder(new=new)
    record.step(3, lambda: body(record))
    return record


def read(record: Recorder | bytes, **options: Any) -> TrainingStep:
    content = record.content() if isinstance(record, Recorder) else record
    return kineto.read(content, "trace", ReadOptions(**options))


def faults(record: Recorder | bytes, **options: Any) -> tuple[str, ...]:
    return faults_in(read, record, **options)


def program(step: TrainingStep) -> list[str]:
    """Each operation with its microseconds as `name us: reads -> writes`, without statics."""
    return [f"{op.name} {op.duration_ns / 1000:g}: {flow}" for op, flow in flows(step)]


@pytest.mark.parametrize("new", [True, False], ids=["new profiler", "old profiler"])
def test_a_residual_block_with_its_flows_times_and_phases(new: bool) -> None:
    step = read(trace(new=new))
    assert program(step) == [
        "mm 20: -> mm.out",
        "relu_ 5: mm.out -> mm.out@1",
        "mm.2 20: mm.out@1 -> mm.2.out",
        # the sum of gradients after mm.2 says that its input has another reader: this one
        "add 6: mm.out@1 mm.2.out -> add.out",
        "sum 3: add.out -> sum.out",
        "loss 0: sum.out -> sum.out.grad",
        "mm.2.backward 41.5: sum.out.grad mm.out@1 -> mm.out@1.grad",
        "mm.out@1.grad.2.sum 0: sum.out.grad mm.out@1.grad -> mm.out@1.grad.2",
        "relu_.backward 7: mm.out@1.grad.2 mm.out@1 -> mm.out.grad",
        "mm.backward 30.5: mm.out.grad ->",
        "optimizer 4: ->",
    ]
    statics = {t.name: t.size_bytes for t in step.tensors if t.static}
    assert statics == {"t.weight": 1024, "t.2.weight": 1024, "mm.input": 512}
    assert [op.phase for op in step.operations].count(Phase.OPTIMIZER) == 1
    assert any("(7 inputs), else the latest of its shape (0)" in note for note in step.notes)


def test_what_newer_profilers_add_changes_nothing() -> None:
    record = trace()
    expected = program(read(trace()))
    for event in record.events:
        event["ts"] += 4_611_686.125
        if event["cat"] == "cpu_op":
            event["args"] |= {"Concrete Inputs": [""], "Ev Idx": 3, "Record function id": 0}
        elif event["cat"] == "cuda_runtime":
            event |= {"cat": "cuda_driver", "name": "cuLaunchKernelEx"}
        else:
            event["args"] |= {"External id": 3, "queued": 0, "block": [1, 1, 1]}
    record.events += [
        {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 0, "args": {"name": "x"}},
        {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 9, "tid": MAIN,
         "ts": 4_612_690, "dur": 3, "args": {"Python id": 1}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": 0, "tid": 7,
         "ts": 1, "dur": 5},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 3},
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 9, "tid": MAIN, "ts": 1001},
    ]  # fmt: skip
    assert program(read(record)) == expected


def test_all_kernel_time_of_the_stream_is_in_the_step() -> None:
    record = trace()
    kernels = sum(e["dur"] for e in record.events if e.get("cat") == "kernel")
    assert ideal_step_ns(read(record)) == round(kernels * 1000)


def test_one_profiler_step_is_read_the_median_or_the_one_wanted(tmp_path: Path) -> None:
    record = Recorder()
    for number, extra in ((4, 100.0), (5, 0.0), (6, 50.0)):

        def body(number: int = number, extra: float = extra) -> None:
            block(record, 100 * number)
            record.call("aten::zero_", None, None, (1.0 + extra,))
            record.now += int(extra)

        record.step(number, body)
    path = tmp_path / "worker.pt.trace.json.gz"
    path.write_bytes(gzip.compress(record.content()))
    assert "ProfilerStep#6 of the trace (it has 4, 5, 6;" in read_step(path).notes[0]
    assert read_step(path).operations[-1].duration_ns == 55_000
    assert read_step(path, profiler_step=4).operations[-1].duration_ns == 105_000
    with pytest.raises(InputError, match="no ProfilerStep#7 in the trace; it has: 4, 5, 6"):
        read_step(path, profiler_step=7)
    with pytest.raises(InputError, match="--batch: a file holds one fixed step if"):
        read_step(path, batch=3)


def test_a_trace_without_profiler_steps_is_one_step() -> None:
    record = Recorder()
    block(record)
    assert "the whole trace" in read(record).notes[0]


def test_kernels_follow_the_stream_and_other_streams_and_copies_are_left_out() -> None:
    def body(record: Recorder) -> None:
        record.call("aten::to", [X], None, (), inside=lambda: record.kernel(
            9.0, MAIN, STREAM, "Memcpy HtoD (Pinned -> Device)"))  # fmt: skip
        record.call("nccl:all_reduce", None, None, (30.0,), stream=BESIDE)
        block(record)

    record = Recorder()
    record.step(1, lambda: body(record))
    step = read(record)
    assert program(step)[0] == "mm 20: -> mm.out"
    assert any("Copies between host and device (0.01 ms)" in note for note in step.notes)
    assert any("Kernels on other streams (0.03 ms)" in note for note in step.notes)


def test_kernel_time_far_below_wall_time_is_warned_of() -> None:
    slow, fast = Recorder(), Recorder()
    slow.step(1, lambda: (block(slow), setattr(slow, "now", slow.now + 900)))
    fast.step(1, lambda: block(fast))
    assert any(note.startswith("Warning: kernels take 0.1 ms of 1.0 ms") for note in
               read(slow).notes)  # fmt: skip
    assert not any("Warning" in note for note in read(fast).notes)


def test_arrows_tie_where_sequence_numbers_are_missing() -> None:
    record = trace()
    by_number: dict[int, list[dict[str, Any]]] = {}
    for event in record.events:
        number = event.get("args", {}).pop("Sequence number", None)
        if number is not None:
            by_number.setdefault(number, []).append(event)
    for number, calls in by_number.items():
        forward = [c for c in calls if "Backward" not in c["name"]][-1]
        backward = next(c for c in calls if "Backward" in c["name"])
        for phase, call in (("s", forward), ("f", backward)):
            record.events.append(
                {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": number, "bp": "e",
                 "pid": 9, "tid": call["tid"], "ts": call["ts"]}
            )  # fmt: skip
    assert program(read(record)) == program(read(trace()))


def test_what_a_dropout_and_a_norm_save_beside_their_tensors_has_its_size() -> None:
    def body(record: Recorder) -> None:
        record.call("aten::linear", [X, W], 1, (9.0,))
        record.call("aten::native_layer_norm", [X, [16], [16]], 2, (4.0,))
        record.call("aten::native_dropout", [X], 3, (4.0,))
        record.call("aten::sum", [X], 4, (3.0,))
        record.backward("Sum", [[]], 4)
        record.backward("NativeDropout", [X], 3, (2.0,))
        record.backward("NativeLayerNorm", [X], 2, (3.0,), [X, X, [8, 1], [8, 1], [16], [16]])
        record.accumulate([16])
        record.accumulate([16])
        record.backward("Addmm", [X], 1, (20.0,))
        record.accumulate(W)

    record = Recorder()
    record.step(1, lambda: body(record))
    for event in record.events:
        if event["name"] == "aten::nativedropout_backward":
            event["args"] = {"Input Dims": [X, X], "Input type": ["float", "bool"]}
    step = read(record)
    live = liveness(step)
    kept = {t.name: t.size_bytes for t, s in zip(step.tensors, live.saved, strict=True) if s}
    assert kept == {
        "linear.out": 512, "native_layer_norm.saved": 32, "native_layer_norm.saved.2": 32,
        "native_dropout.saved": 128, "sum.out": 4,
    }  # fmt: skip
    assert next(op for op in step.operations if op.name == "native_dropout").random


def test_in_place_is_not_believed_where_the_old_version_is_needed() -> None:
    def body(record: Recorder) -> None:
        record.call("aten::linear", [X, W], 1, (9.0,))
        record.call("aten::tanh", [X], 2, (4.0,))
        record.call("aten::relu_", [X], 3, (4.0,))  # would destroy what tanh saves
        record.call("aten::sum", [X], 4, (3.0,))
        for function, number in (("Sum", 4), ("Relu", 3), ("Tanh", 2), ("Addmm", 1)):
            record.backward(function, [X] if number < 4 else [[]], number, (2.0,))

    record = Recorder()
    record.step(1, lambda: body(record))
    step = read(record)
    assert any("memory of their own: relu_" in note for note in step.notes)
    assert "relu_ 4: tanh.out -> relu_.out" in program(step)


def test_workspace_is_what_was_allocated_and_freed_again() -> None:
    assert transient_bytes([100, 50, -50, 30, -30]) == 50
    assert transient_bytes([100, 50, 30, -50, -30, -100]) == 180
    assert transient_bytes([100, -7, 50]) == 0

    def body(record: Recorder) -> None:
        def inside() -> None:
            for size in (512, 4096, -4096):
                record.memory(size)

        record.call("aten::linear", [X, W], 1, (9.0,), inside=inside)
        record.call("aten::sum", [X], 2, (3.0,))
        record.backward("Sum", [[]], 2)
        record.backward("Addmm", [X], 1, (20.0,))

    record = Recorder()
    record.step(1, lambda: body(record))
    step = read(record)
    assert step.operations[0].workspace_bytes == 4096
    assert any("events of the forward operations leave 0.0 MiB" in note for note in step.notes)


def test_names_of_functions_and_what_they_save() -> None:
    assert function_name("autograd::engine::evaluate_function: AddmmBackward0") == "Addmm"
    assert function_name("CudnnConvolutionBackward") == "CudnnConvolution"
    assert function_name("torch::autograd::AccumulateGrad") is None
    assert function_name("aten::threshold_backward") is None
    assert saved_rule("CudnnConvolution").inputs
    assert saved_rule("ThnnFusedThing").known is False
    assert saved_rule("LogSoftmax").outputs
    assert not saved_rule("LogSoftmax").inputs
    assert saved_rule("MaxPool2DWithIndices").extras
    assert is_view("aten::transpose")
    assert not is_view("aten::clone")


def broken(change: Any) -> bytes:
    record = trace()
    change(record.events)
    return record.content()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"traceEvents": 5}', "traceEvents is 5, expected a list of events"),
        (b'{"traceEvents": []}', "no calls of operators"),
        (b'{"traceEvents": [1, "a"]}', "traceEvents[0] is 1, expected an object"),
        (b'{"traceEvents": [{"ph": "X"}', "not valid JSON"),
        (b'{"traceEvents": ' + b"[" * 100_000, "nested too deeply"),
        (broken(lambda events: events[0].update(dur=-1)), "dur is -1, expected microseconds"),
        (broken(lambda events: events[0].update(ts="soon")), 'ts is "soon"'),
        (broken(lambda events: events[0].update(dur=float("nan"))), "dur is NaN"),
        (broken(lambda events: events[0].update(name=None)), "name is null, expected text"),
        (broken(lambda events: events[0]["args"].update({"Input Dims": [[2**62, 8]]})),
         "at most"),
        (broken(lambda events: events[0]["args"].update({"Input Dims": [[-1]]})), "0 or more"),
        (broken(lambda events: events[0]["args"].update({"Input Dims": "big"})), "expected a list"),
        (broken(lambda events: [e.pop("args") for e in events if e["cat"] == "kernel"]),
         "the trace has no GPU kernels"),
        (broken(lambda events: [e["args"].pop("Input Dims", None) for e in events]),
         "record it with record_shapes=True"),
        (broken(lambda events: [e["args"].pop("Sequence number", None) for e in events]),
         "has no backward operations"),
        (broken(lambda events: [e.update(name="ProfilerStep#8") for e in events
                                if e["name"].startswith("ProfilerStep")]
                + [e.update(ts=1) for e in events if e["cat"] == "cuda_runtime"]),
         "no kernel was launched in ProfilerStep#8"),
    ],
)  # fmt: skip
def test_faults_say_what_is_wrong_and_what_to_do(content: bytes, expected: str) -> None:
    assert any(expected in fault for fault in faults(content))


def test_faults_of_a_file_are_reported_together_up_to_a_number() -> None:
    record = trace()
    count = 0
    for event in record.events:
        if event["cat"] == "kernel":
            event["dur"] = -1
            count += 1
    found = faults(record)
    assert len(found) == min(count, 20) + (count > 20)
    assert all("dur is -1" in fault for fault in found[:5])


def test_recognized_by_content() -> None:
    assert kineto.recognizes(b'{"schemaVersion": 1, "deviceProperties": [')
    assert kineto.recognizes(b'\n{ "traceEvents": [')
    assert kineto.recognizes(b'[{"name": "a", "ph": "X", "ts": 1}]')
    assert not kineto.recognizes(b'{"schema": "slackswap.step/1"}')
    assert not kineto.recognizes(b"digraph {")


@needs_data
@pytest.mark.slow
def test_the_resnet50_trace_agrees_with_its_allocator_and_is_planned_at_half() -> None:
    step = read_step(TRACES / "01_kineto_resnet50_v100_train.pt.trace.json.gz")
    notes = " ".join(step.notes)
    assert "else the latest of its shape (0)" in notes
    assert "leave 2795.9 MiB; the tensors listed here hold 2787.4 MiB" in notes
    live = liveness(step)
    saved = int(step.index.size_bytes[live.saved].sum())
    assert saved == pytest.approx(2603.5 * 2**20, rel=1e-3)
    convolutions = [op for op in step.operations if op.name.startswith("conv2d")]
    assert len([op for op in convolutions if op.phase is Phase.FORWARD]) == 53
    whole = Problem(step, load_machine("v100-pcie3"), 1)
    half = whole.with_budget(whole.liveness.ideal_peak_bytes // 2)
    (row,) = compare([half], {"greedy": greedy})
    assert row.certified_gap is not None
    assert 0 <= row.certified_gap < 0.06
    assert row.peak_bytes is not None
    assert row.peak_bytes <= half.budget_bytes


@needs_data
@pytest.mark.slow
def test_the_recommender_trace_is_inspected() -> None:
    step = read_step(TRACES / "04_hta_rec_a100_shapes_h2d.json.gz", profiler_step=1012)
    whole = Problem(step, load_machine("a100-40gb-pcie4"), 1)
    facts = inspect(whole.with_budget(whole.liveness.ideal_peak_bytes))
    assert facts.operations > 500
    assert facts.saved_bytes > 2**30
    assert any("All2All_Pooled_Req" in note for note in facts.notes)
    assert sum("Warning" in note for note in facts.notes) == 1


VALUES: list[Any] = [None, -1, 0, 1, 2.5, 2**70, "x", "1", [], [[8, 16]], [[[8], [2]]], {}, True]


def damaged_trace(seed: int) -> bytes:
    """A sound trace, changed here and there."""
    rng = random.Random(seed)
    events = json.loads(SOUND if rng.random() < 0.2 else SMALL)
    for _ in range(rng.randint(1, 6)):
        event = rng.choice(events)
        target = (
            event["args"] if rng.random() < 0.5 and isinstance(event.get("args"), dict) else (event)
        )
        what = rng.random()
        if what < 0.3 and target:
            target.pop(rng.choice(list(target)))
        elif what < 0.6 and target:
            target[rng.choice(list(target))] = rng.choice(VALUES)
        elif what < 0.7:
            events.remove(event)
        elif what < 0.8:
            events.append(dict(event))
        elif "name" in event:
            event["name"] = rng.choice(NAMES)
        if not events:
            break
    content = json.dumps({"traceEvents": events}).encode()
    if rng.random() < 0.1:
        content = content[: rng.randrange(len(content))]
    return content


def small_block(record: Recorder) -> None:
    """x -> mm -> relu (in place) -> loss; and back."""
    record.call("aten::mm", [X, W], 1, (20.0,))
    record.call("aten::relu_", [X], 2, (5.0,))
    record.backward("Relu", [X], 2, (7.0,), [X, X])
    record.backward("Mm", [X], 1, (30.0,))
    record.accumulate(W)


SOUND = json.dumps(trace().events)
SMALL = json.dumps(trace(body=small_block).events)
NAMES = [*dict.fromkeys(e["name"] for e in trace().events), "aten::cat", "aten::view", "aten::rand"]


@batches_of(200)
def test_any_trace_is_read_or_refused(seed: int) -> None:
    fuzz(damaged_trace, read, seed)


@pytest.mark.slow
@batches_of(10_000)
def test_ten_thousand_traces_are_read_or_refused(seed: int) -> None:
    fuzz(damaged_trace, read, seed)
