"""YAML means what it says: no silent change of meaning, no alias, no tag, faults by line."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt import Problem, ilp, load_machine
from slackswap_opt.formats import native, native_yaml
from slackswap_opt.formats.registry import read_content
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value, liveness
from tests.hand import faults_in, named
from tests.strategies import training_steps

yaml = pytest.importorskip("yaml")

SOUND = """\
# a step
schema: slackswap.step/1
name: two layers
tensors:
  batch: {size_bytes: 64, static: true}
  h: 4096          # bytes
  y: {size_bytes: 1024}
operations:
  - name: fc1
    phase: forward
    duration_us: 1e3
    reads: [batch]
    writes: [h]
  - {name: fc2, phase: forward, duration_us: .5, reads: [h], writes: [y]}
  - name: "fc2.backward"
    phase: backward
    duration_us: 7
    reads:
      - y
      - h
"""


def read(text: str) -> TrainingStep:
    return read_content(text.encode(), "file")


def faults(text: str) -> tuple[str, ...]:
    return faults_in(read, text)


def test_reads_block_and_flow_style() -> None:
    step = read(SOUND)
    assert step.name == "two layers"
    assert [op.duration_ns for op in step.operations] == [1_000_000, 500, 7_000]
    assert step.operations[2].reads == (Value("y"), Value("h"))
    assert step.tensors[2] == Tensor.of("batch", 64, static=True)


@pytest.mark.parametrize("start", ["", "---\n", "%YAML 1.2\n---\n", "\ufeff", "# c\n\n"])
def test_is_recognized_by_content(start: str) -> None:
    assert read(start + SOUND) == read(SOUND)
    assert native_yaml.recognizes(SOUND.replace("schema: slackswap.step/1\n", "").encode())
    assert not native_yaml.recognizes(b"a: b\nc: d\n")


@pytest.mark.parametrize(
    ("line", "number", "expected"),
    [
        # what YAML 1.1 would silently take for something else
        ("  h: 010", 6, "010 begins with 0, which YAML 1.1 takes for an octal number"),
        ("  h: 1_000", 6, 'tensor "h" is "1_000", expected a number of bytes'),
        ("  h: 0x10", 6, 'tensor "h" is "0x10", expected a number of bytes'),
        ("  h: 1:30", 6, 'tensor "h" is "1:30", expected a number of bytes'),
        ("  h: 1e3", 6, 'tensor "h" is 1000.0, expected a whole number written as an'),
        ("  h: 4096.0", 6, "write 4096"),
        ("  h: yes", 6, 'tensor "h" is "yes", expected a number of bytes'),
        ("  h: {size_bytes: 4, static: no}", 6, 'static is "no", expected true or false'),
        ("  h: .nan", 6, 'tensor "h" is NaN'),
        ("  h: -.inf", 6, 'tensor "h" is -Infinity'),
        ("  h: -1", 6, 'tensor "h" is -1, expected at least 0'),
        ("  h:", 6, 'tensor "h" is null, expected a number of bytes'),
        ("  h: ~", 6, 'tensor "h" is null, expected a number of bytes'),
        ("  h: 4096\n  h: 5", 7, 'the key "h" appears more than once; keep one'),
        ("  h: 4096\n  3: 5", 7, "the key 3 is not text; put it in quotes"),
        ("  h: 4096\n  null: 5", 7, "the key null is not text; put it in quotes"),
        ("  h: 4096\n  true: 5", 7, "the key true is not text; put it in quotes"),
        ("  h: &x 4096", 6, "the anchor &x is not read"),
        ("  h: *x", 6, "the alias *x is not read"),
        ("  h: !!int 4096", 6, "the tag"),
        ("  h: !!python/object/apply:os.system [true]", 6, "the tag"),
        ("  h: !thing 5", 6, "the tag"),
        ("  ? [h]\n  : 5", 6, "a key is a list, expected text"),
        ("  h: 4096\n  <<: {z: 1}", 7, 'tensor "<<": there is no field "z"'),
        ("\th: 4096", 6, "not valid YAML"),
        ("  h: 4096\n h: 5", 7, "not valid YAML"),
        ("  h: 4096\x07", 6, "the character '\\x07' is not allowed in YAML; remove it"),
        ("  h: " + "9" * 500, 6, "has 500 digits; too many"),
    ],
)  # fmt: skip
def test_pitfalls_are_named_by_line(line: str, number: int, expected: str) -> None:
    found = faults(SOUND.replace("  h: 4096          # bytes", line))
    where = [fault for fault in found if expected in fault]
    assert where, found
    assert where[0].startswith(f"line {number}")


def test_words_that_other_readers_take_for_truth_stay_names() -> None:
    text = SOUND.replace("fc1\n", "no\n").replace("  h: 4", "  on: 4")
    text = text.replace("[h]", "[on]").replace("- h", "- on")
    step = read(text)
    assert step.operations[0].name == "no"
    assert step.tensors[0].name == "on"


def test_all_faults_are_reported_together_by_line_and_field() -> None:
    text = SOUND.replace("phase: forward\n    d", "phase: forwrd\n    d").replace("- h", "- hh")
    text = text.replace("duration_us: .5", "duration_us: -1").replace("name: two layers\n", "")
    assert faults(text) == (
        "line 2: name: the field is missing; add it",
        "line 9: operation \"fc1\": phase is \"forwrd\", expected 'forward', 'backward' or "
        "'optimizer'; did you mean \"forward\"?",
        'line 13: operation "fc2": duration_us is -1, expected at least 0',
        'line 19: operation "fc2.backward": reads: "hh" is not in tensors; did you mean "h"?',
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SOUND + "---\n" + SOUND, "a second document begins; give one"),
        (SOUND + "more: " + "[" * 200, "nested too deeply"),
        (SOUND + "".join("\n" + " " * n + "- " for n in range(0, 200, 2)), "valid YAML"),
        ("schema: slackswap.plan/1\n", "this is not a training step"),
        ("schema: slackswap.step/2\n", "newer than"),
        ("tensors:\noperations:\n", "expected"),
        (SOUND + "x: '", "not valid YAML"),
    ],
)
def test_text_that_is_no_step(text: str, expected: str) -> None:
    assert any(expected in fault for fault in faults(text)), faults(text)


@settings(max_examples=60, deadline=None)
@given(step=training_steps())
def test_round_trip_is_exact(step: TrainingStep) -> None:
    text = native_yaml.dumps(step)
    assert read(text) == step
    assert native.loads(native.dumps(read(text))) == step


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(st.text(min_size=1), min_size=3, max_size=4, unique=True),
    notes=st.lists(st.text(), max_size=2),
)
def test_round_trip_keeps_any_name_and_note(names: list[str], notes: list[str]) -> None:
    step = named(names, notes)
    assert native_yaml.loads(native_yaml.dumps(step)) == step


def test_long_names_are_kept() -> None:
    name = "n" * 2000
    step = TrainingStep.build(
        "x", [Operation("a", Phase.FORWARD, 1, (), (Value(name),))], [Tensor.of(name, 1)]
    )
    assert native_yaml.loads(native_yaml.dumps(step)) == step


def test_without_pyyaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert "pip install 'slackswap-opt[yaml]'" in faults(SOUND)[0]


def test_a_text_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    long = SOUND + "#" * (32 * 2**20)
    assert "write it as JSON" in faults(long)[0]


def test_the_example_of_the_documentation_is_planned() -> None:
    page = (Path(__file__).parents[1] / "docs" / "formats.md").read_text(encoding="utf-8")
    step = read(page.split("```yaml\n")[1].split("```")[0])
    problem = Problem(step, load_machine(), liveness(step).ideal_peak_bytes * 7 // 10)
    assert ilp(problem).schedule is not None
