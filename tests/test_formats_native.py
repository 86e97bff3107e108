"""The native format: nothing is lost, and every fault is named with its place and remedy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt.errors import InputError
from slackswap_opt.formats import json_places, native, read_step, write_step
from slackswap_opt.formats.native_schema import json_schema
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.hand import faults_in
from tests.strategies import training_steps

ROOT = Path(__file__).parent.parent
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GRAPHS = sorted((ROOT / "models" / "graphs").glob("*.json"))


def document(**changes: Any) -> dict[str, Any]:
    """A small sound step, with top-level fields replaced."""
    return {
        "schema": "slackswap.step/1",
        "name": "small",
        "tensors": {"x": 4096, "y": {"size_bytes": 10, "static": True}},
        "operations": [operation()],
    } | changes


def operation(**changes: Any) -> dict[str, Any]:
    fields = {
        "name": "a", "phase": "forward", "duration_us": 10, "reads": ["y"], "writes": ["x"],
    }  # fmt: skip
    return {k: v for k, v in (fields | changes).items() if v is not ...}


def faults(text: str | dict[str, Any]) -> tuple[str, ...]:
    return faults_in(native.loads, text if isinstance(text, str) else json.dumps(text))


def test_reads_every_field_and_fills_in_defaults() -> None:
    step = native.loads(
        json.dumps(
            document(
                notes=["made up"],
                tensors={
                    "x": 4096,
                    "y": {"size_bytes": 10, "static": True, "aliases": ["batch"]},
                    "v": {"size_bytes": 100, "transfer_bytes": 0},
                },
                operations=[
                    operation(
                        reads=["batch"], writes=["x", "v"], workspace_bytes=7, layer="one",
                        recomputable=False, random=True,
                    ),
                    operation(name="b", phase="backward", reads=["x"], writes=["x@1"]),
                    {"name": "c", "phase": "optimizer", "duration_s": 2},
                ],
            )
        )
    )  # fmt: skip
    assert step == TrainingStep(
        "small",
        (
            Operation(
                "a", Phase.FORWARD, 10_000, (Value("y"),), (Value("x"), Value("v")), 7, "one",
                False, True,
            ),
            Operation("b", Phase.BACKWARD, 10_000, (Value("x"),), (Value("x", 1),)),
            Operation("c", Phase.OPTIMIZER, 2_000_000_000),
        ),
        (Tensor.of("x", 4096), Tensor("v", 100, 0), Tensor("y", 10, 10, True, ("batch",))),
        ("made up",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given_as", "ns"),
    [
        ({"duration_ns": 7}, 7),
        ({"duration_us": 10}, 10_000),
        ({"duration_ms": 18.962}, 18_962_000),
        ({"duration_ms": 0.0000005}, 0),
        ({"duration_ms": 0.0000015}, 2),
        ({"duration_us": 1.0005}, 1_000),
        ({"duration_us": 2.675}, 2_675),
        ({"duration_s": 1e-9}, 1),
        ({"duration_s": 9007199.25474099}, 9_007_199_254_740_990),
        ({"duration_ns": 2**53}, 2**53),
    ],
)
def test_durations_are_rounded_once_to_the_nearest(given_as: dict[str, Any], ns: int) -> None:
    step = native.loads(
        json.dumps(document(operations=[operation(**({"duration_us": ...} | given_as))]))
    )
    assert step.operations[0].duration_ns == ns


def test_tensors_may_be_a_list() -> None:
    listed = [{"name": "x", "size_bytes": 4096}, {"name": "y", "size_bytes": 10, "static": True}]
    assert native.loads(json.dumps(document(tensors=listed))) == native.loads(
        json.dumps(document())
    )


def test_names_with_versions_resolve_exact_matches_first() -> None:
    step = native.loads(
        json.dumps(
            document(
                tensors={"x": 1, "x@1": 2, "z": 3},
                operations=[
                    operation(reads=[], writes=["x", "x@1", "z"]),
                    operation(name="b", reads=["x"], writes=[{"tensor": "x", "version": 1}]),
                    operation(name="c", reads=["x@1", "z"], writes=["z@1", "x@1@1"]),
                ],
            )
        )
    )
    assert step.operations[1].writes == (Value("x", 1),)
    assert step.operations[2].reads == (Value("x@1"), Value("z"))
    assert step.operations[2].writes == (Value("z", 1), Value("x@1", 1))
    assert native.loads(native.dumps(step)) == step


def test_all_faults_of_a_file_are_reported_together() -> None:
    found = faults(
        document(
            tensors={"x": 4096.0, "y": {"size_bytes": 10, "statik": True}, "z": -1},
            operations=[
                operation(phase="forwrd", reads=["q"]),
                operation(name=..., duration_us=...),
            ],
            note="singular",
        )
    )
    assert found == tuple(
        f"line 1: {fault}"
        for fault in (
            'tensor "x" is 4096.0, expected a whole number written as an integer; write 4096',
            'tensor "y": there is no field "statik"; did you mean "static"?',
            'tensor "z" is -1, expected at least 0',
            "operation \"a\": phase is \"forwrd\", expected 'forward', 'backward' or 'optimizer'; "
            'did you mean "forward"?',
            "operations[1]: name: the field is missing; add it",
            'there is no field "note"; did you mean "notes"?',
            "operations[1]: the duration is missing; "
            "add one of duration_ns, duration_us, duration_ms, duration_s",
            'operation "a": reads: "q" is not in tensors; add it there, with "static": true if it '
            "is a parameter or the batch",
        )
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tensors": {"x": True, "y": 1}}, 'tensor "x" is true, expected a number of bytes or'),
        ({"tensors": {"x": "4 KB", "y": 1}}, 'tensor "x" is "4 KB", expected a number of bytes'),
        ({"tensors": {"x": None, "y": 1}}, 'tensor "x" is null, expected a number of bytes'),
        ({"tensors": {"x": 2**50 + 1, "y": 1}}, "expected at most 1125899906842624"),
        ({"tensors": {"x": 1, "y": 1, "": 1}}, "expected a name that is not empty"),
        ({"tensors": {"x": {"static": True}, "y": 1}}, "size_bytes: the field is missing"),
        ({"tensors": {"x": {"size_bytes": 1, "static": 1}, "y": 1}}, "static is 1, expected true"),
        ({"tensors": {"x": {"size_bytes": 1, "aliases": "z"}, "y": 1}}, "expected a list"),
        ({"tensors": {"x": {"size_bytes": 1, "aliases": ["y"]}, "y": 1}}, '"y" is defined 2 times'),
        ({"tensors": [{"name": "x", "size_bytes": 1, "syze": 2}]}, 'no field "syze"'),
        ({"tensors": [{"size_bytes": 1}]}, "tensors[0]: name: the field is missing"),
        ({"tensors": [7]}, "tensors[0] is 7, expected a number of bytes or an object"),
        ({"tensors": 7}, "tensors is 7, expected an object {...} or a list"),
        ({"operations": {}}, "operations is an object, expected a list"),
        ({"operations": [7]}, "operations[0] is 7, expected an object"),
        ({"operations": []}, "the step has no operations"),
        ({"operations": [operation(), operation()]}, 'operation "a" is defined 2 times'),
        ({"operations": [operation(name="")]}, "expected a name that is not empty"),
        ({"operations": [operation(name=5)]}, "name is 5, expected text in quotes"),
        ({"operations": [operation(reads="y")]}, 'reads is "y", expected a list'),
        ({"operations": [operation(reads=[5])]}, "reads[0] is 5, expected text in quotes"),
        ({"operations": [operation(reads=["yy"])]}, 'did you mean "y"?'),
        ({"operations": [operation(reads=["yy@1"])]}, '"yy@1" is not in tensors; did you mean'),
        ({"operations": [operation(reads=[{"tensor": "yy"}])]}, '"yy" is not in tensors'),
        ({"operations": [operation(reads=[{"tensr": "y"}])]}, 'did you mean "tensor"?'),
        ({"operations": [operation(layer=None)]}, "layer is null, expected text in quotes"),
        ({"operations": [operation(random="no")]}, 'random is "no", expected true or false'),
        ({"operations": [operation(duration_us="3")]}, 'duration_us is "3", expected a number'),
        ({"operations": [operation(duration_us=True)]}, "duration_us is true, expected a number"),
        ({"operations": [operation(duration_us=-0.1)]}, "duration_us is -0.1, expected at least 0"),
        ({"operations": [operation(duration_us=1e30)]}, "expected at most 9007199254740.992"),
        ({"operations": [operation(duration_us=10**390)]}, "far too large"),
        ({"operations": [operation(duration_ms=1)]}, "has duration_us and duration_ms; keep one"),
        ({"operations": [operation(duration_us=..., duration_ns=1.0)]}, "duration_ns is 1.0"),
        ({"operations": [operation(workspace_bytes=-1)]}, "workspace_bytes is -1"),
        ({"operations": [operation(writes=["y"])]}, "writes the static tensor 'y'"),
        ({"operations": [operation(writes=["x@1"])]}, "overwrites 'x' in place; it must read x"),
        ({"schema": "slackswap.step/2"}, "newer than"),
        ({"schema": "slackswap.step/10"}, "upgrade slackswap-opt"),
        ({"schema": "slackswap.plan/1"}, "this is not a training step"),
        ({"schema": "other"}, 'schema is "other", expected \'slackswap.step/1\''),
        ({"schema": 1}, "schema is 1, expected 'slackswap.step/1'"),
        ({"notes": "one"}, 'notes is "one", expected a list'),
        ({"name": None}, "name is null, expected text in quotes"),
    ],
)  # fmt: skip
def test_each_fault_names_place_and_remedy(changes: dict[str, Any], expected: str) -> None:
    assert any(expected in fault for fault in faults(document(**changes)))


def test_a_cycle_is_printed() -> None:
    operations = [
        operation(name="a", reads=["z"], writes=["x"]),
        operation(name="b", reads=["x"], writes=["z"]),
    ]
    (fault,) = faults(document(tensors={"x": 1, "z": 1}, operations=operations))
    assert "a -> b -> a" in fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"schema": "slackswap.step/1",}',
            "line 1, column 30: not valid JSON: a comma before }; remove it",
        ),
        ('{"notes": ["a",\n]}', "line 1, column 15: not valid JSON: a comma before ]; remove it"),
        ('{"name": "a" # mine\n}', "line 1, column 14: not valid JSON: it has no comments"),
        ("{'name': 1}", "line 1, column 2: not valid JSON: texts are in double quotes"),
        ('{"a": 1} x', "not valid JSON: Extra data"),
        ("[]", "the document is a list, expected an object"),
        ("null", "the document is null, expected an object"),
        ("{}", 'add "schema": "slackswap.step/1"'),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ("9" * 5_000, "has 5000 digits"),
        ('{"name": NaN}', "NaN is not valid JSON; write a finite number"),
        ('{"name": -Infinity}', "-Infinity is not valid JSON"),
        ('{"name": "n", "name": "m"}', 'the key "name" appears more than once'),
        ('{"tensors": {"x": 1, "x": 2}}', 'the key "x" appears more than once'),
        ('{"operations": [{"name": "a", "phase": 1, "phase": 2}]}', 'in the object named "a"'),
        ('{"name": "\\ud800"}', "half of a character"),
        ('{"notes": ["\\uDC00"]}', "half of a character"),
        ('{"tensors": {"\\ud800": 1}}', "half of a character"),
    ],
)
def test_text_that_is_no_step(text: str, expected: str) -> None:
    assert any(expected in fault for fault in faults(text))


def test_a_name_of_ten_million_characters_makes_a_short_message() -> None:
    found = faults(
        document(operations=[operation(name="n" * 10_000_000, reads=["r" * 10_000_000])])
    )
    assert all(len(fault) < 500 for fault in found)


def test_infinite_durations_are_refused() -> None:
    text = json.dumps(document()).replace('"duration_us": 10', '"duration_us": 1e999')
    assert faults(text) == (
        'line 1: operation "a": duration_us is Infinity, expected a finite number',
    )


@settings(max_examples=100, deadline=None)
@given(step=training_steps())
def test_round_trip_is_exact(step: TrainingStep) -> None:
    text = native.dumps(step)
    assert native.loads(text) == step
    VALIDATOR.validate(json.loads(text))


@settings(deadline=None)
@given(
    names=st.lists(st.text(min_size=1), min_size=2, max_size=5, unique=True),
    numbers=st.lists(st.integers(0, 2**50), min_size=4, max_size=4),
    flags=st.lists(st.booleans(), min_size=2, max_size=2),
    notes=st.lists(st.text(), max_size=2),
    title=st.text(),
)
def test_round_trip_keeps_any_name_number_and_note(
    names: list[str], numbers: list[int], flags: list[bool], notes: list[str], title: str
) -> None:
    first, *rest = names
    storages = [
        Tensor(first, numbers[0], numbers[1]),
        Tensor(first + "@1", numbers[1], numbers[1], aliases=(first + "@2", first + "@7")),
        Tensor(first + "@w", numbers[0], 0, static=True),
    ]
    values = [Value(t.name) for t in storages[:2]]
    step = TrainingStep.build(
        title,
        [
            Operation(
                first, Phase.FORWARD, numbers[2], (Value(first + "@w"),), tuple(values),
                numbers[3], title, *flags,
            ),
            Operation(first + "'", Phase.BACKWARD, 0, (values[0],), (Value(first, 1),)),
            Operation(first + '"', Phase.OPTIMIZER, 1, (Value(first, 1), values[1])),
        ],
        storages,
        notes + rest,
    )  # fmt: skip
    assert native.loads(native.dumps(step)) == step


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["x", "x@1", "forward", "slackswap.step/1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["schema", "name", "tensors", "operations", "size_bytes", "phase", "reads",
                 "writes", "duration_ms", "duration_ns", "aliases", "version", "tensor", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(["tensors", "operations", "name", "schema"]), JSON))
def test_no_document_raises_anything_but_input_errors(fields: dict[str, Any]) -> None:
    with contextlib.suppress(InputError):
        native.loads(json.dumps(document() | fields))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_damaged_text_raises_anything_but_input_errors(data: st.DataObject) -> None:
    text = json.dumps(document())
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 12))
    with contextlib.suppress(InputError):
        native.loads(text[:at] + data.draw(st.text(max_size=3)) + text[at + cut :])


def test_published_schema_is_up_to_date() -> None:
    published = json.loads((ROOT / "docs" / "step.schema.json").read_text())
    assert published == json_schema(), (
        "write json.dumps(json_schema(), indent=2) to docs/step.schema.json"
    )
    VALIDATOR.check_schema(published)


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.name)
def test_shipped_graphs_read_and_satisfy_the_schema(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_text()))
    assert read_step(path).name == path.stem


@pytest.mark.parametrize(
    "changes",
    [
        {"operations": [operation(duration_us=...)]},
        {"operations": [operation(duration_ms=1)]},
        {"tensors": {"x": 1.5}},
        {"tensors": {"x": {}}},
        {"more": 1},
        {"schema": "slackswap.step/2"},
    ],
)
def test_schema_refuses_what_the_reader_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document(**changes))


def test_the_example_of_the_documentation_reads() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    example = page.split("```json\n")[1].split("```")[0]
    step = native.loads(example)
    assert len(step.operations) >= 4


def test_files_are_written_readable_and_guarded(tmp_path: Path) -> None:
    step = native.loads(json.dumps(document()))
    path = tmp_path / "step.json"
    write_step(step, path)
    assert read_step(path) == step
    with pytest.raises(InputError, match="--force"):
        write_step(step, path)
    write_step(step, path, force=True)


def test_whole_characters_outside_of_the_basic_plane_are_kept() -> None:
    text = json.dumps(document(name="\N{SNOWBOARDER}"))
    assert "\\ud83c" in text
    assert native.loads(text).name == "\N{SNOWBOARDER}"


SPREAD = """{
  "schema": "slackswap.step/1",
  "name": "n",
  "tensors": {
    "x": 4096,
    "y": {
      "size_bytes": -1
    },
    "braces } ] , : \\" in a name": 1
  },
  "operations": [
    {"name": "a", "phase": "forward", "duration_us": 10, "writes": ["x"]},
    {
      "name": "b",
      "phase": "forwrd",
      "duration_us": NaN,
      "duration_us": 3,
      "reads": [
        "x",
        "q"
      ],
      "writes": ["y"]
    },
    {"name": "a", "phase": "backward", "reads": ["y"]}
  ]
}
"""


def test_faults_name_the_line_of_the_value_that_is_wrong() -> None:
    assert sorted(faults(SPREAD), key=lambda fault: int(fault.split()[1].rstrip(":"))) == [
        'line 7: tensor "y": size_bytes is -1, expected at least 0',
        "line 15: operation \"b\": phase is \"forwrd\", expected 'forward', 'backward' or "
        "'optimizer'; did you mean \"forward\"?",
        "line 16: NaN is not valid JSON; write a finite number",
        'line 17: the key "duration_us" appears more than once in the object named "b"; keep one',
        'line 20: operation "b": reads: "q" is not in tensors; add it there, with "static": true '
        "if it is a parameter or the batch",
        'line 24: operation "a" is defined 2 times; names must be unique',
        'line 24: operation "a": the duration is missing; '
        "add one of duration_ns, duration_us, duration_ms, duration_s",
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    ),
    st.sampled_from([None, 0, 2]),
)
def test_places_are_those_of_every_value(document: Any, indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    places = list(json_places.values(text))

    def walk(value: Any, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], Any]]:
        yield path, value
        inner = enumerate(value) if isinstance(value, list) else ()
        for key, item in value.items() if isinstance(value, dict) else inner:
            yield from walk(item, (*path, key))

    expected = list(walk(document, ()))
    assert [found.path for found in places] == [path for path, _ in expected]
    for found, (_, value) in zip(places, expected, strict=True):
        assert found.token[0] == json.dumps(value)[0]
        assert found.token[0] in text.split("\n")[found.line - 1]
        assert not found.repeated


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tensors": {"x": "64MiB", "y": 1}}, "or an object {...}; write 67108864"),
        ({"tensors": {"x": {"size_bytes": "1.5 kB"}, "y": 1}}, "a whole number; write 1500"),
        ({"tensors": {"x": {"size": 1}, "y": 1}}, 'no field "size"; did you mean "size_bytes"?'),
        ({"operations": [operation(reads="y")]}, 'expected a list [...]; write ["y"]'),
        ({"operations": [operation(duration_us="500us")]}, "the unit is in the name of the field"),
        (
            {"operations": [operation(duration_us=..., duration=5)]},
            'no field "duration"; did you mean "duration_us", or the same in _ns, _ms or _s?',
        ),
        ({"operations": [operation(inputs=["x"])]}, 'no field "inputs"; did you mean "reads"?'),
        (
            {"operations": [operation(reads=["the batch"])]},
            'add it there, with "static": true if it is a parameter or the batch',
        ),
    ],
)
def test_what_beginners_write_is_answered_with_what_to_write(
    changes: dict[str, Any], expected: str
) -> None:
    assert any(expected in fault for fault in faults(document(**changes)))


def test_steps_built_without_a_type_checker_are_told_what_to_write() -> None:
    operations: list[Any] = [
        Operation("a", "forward", 5, (Value("x"),)),  # type: ignore[arg-type]
        Operation("b", Phase.FORWARD, 5, ("x",)),  # type: ignore[arg-type]
        "c",
    ]
    with pytest.raises(InputError) as error:
        TrainingStep.build("x", operations, [("x", 5)])  # type: ignore[list-item]
    assert error.value.faults == (
        "('x', 5) is no Tensor; write Tensor.of(name, bytes)",
        "operation 'a': phase is 'forward', expected a Phase",
        "operation 'b': 'x' is no Value; write Value(tensor)",
        "'c' is no Operation; write Operation(name, phase, ns, ...)",
    )
