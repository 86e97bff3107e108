"""Rows of a sweep and the files they are kept in: CSV, JSON, Parquet.

A row is flat: one planner's answer to one point of the grid under one budget. The three formats
hold the same columns in the same order; an empty CSV field, null in JSON and in Parquet are None.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files

SCHEMA = "slackswap.sweep/1"
FAILED = "failed"
"""The status of a row whose planner raised, or whose problem could not be built."""
ENDINGS = (".csv", ".json", ".parquet")


@dataclass(frozen=True)
class SweepRow:
    """One planner's answer to one point of a grid under one budget.

    Times are in seconds, sizes in bytes. What cannot be known is None: what a simulation would give
    where there is no schedule, and all that depends on the step where the step could not be built.

    Attributes:
        workload: as the specification names it.
        machine: as the specification names it.
        batch: sequences per device and step; None for a step from a file, as the next two.
        sequence: tokens per sequence.
        layers: number of layers.
        link_gb_per_s: device to host, alone, in 10^9 bytes per second.
        attained_flops: fraction of the arithmetic peak that large kernels reach.
        budget: as the specification writes it.
        planner: its name.
        status: "optimal-within-gap", "feasible", "fallback", "infeasible" or "failed".
        reason: how the result came about, or why there is none.
        budget_bytes: device memory for everything that is not static.
        budget_fraction: the same as a fraction of the ideal peak.
        device_memory_bytes: what the budget was derived from; None where it was given as such.
        static_bytes: static memory that was taken from that.
        peak_bytes: largest memory in use.
        ideal_peak_bytes: peak of the step without a limit.
        ideal_step_s: time of the step without a limit.
        step_s: simulated step time.
        throughput_retained: ideal step / simulated step.
        bound_step_s: no schedule is faster.
        certified_gap: (step - bound) / step.
        stall_s: time the compute stream waited.
        recompute_s: time of re-executions.
        kept_bytes: saved activations that stay on the device.
        swapped_bytes: saved activations that come back by a copy.
        recomputed_bytes: saved activations that are rebuilt.
        bound_cut: operation at whose start the bound was found; None where it is the ideal step.
        solver: name and version of the solver, if one was used.
        time_limited: whether a wall-clock limit ended the search, so that another run may differ.
        planning_s: wall time of the planner; differs from run to run.
        swaps: whether tensors might be copied to the host (files from before this column: yes).
    """

    workload: str
    machine: str
    batch: int | None
    sequence: int | None
    layers: int | None
    link_gb_per_s: float
    attained_flops: float
    budget: str
    planner: str
    status: str
    reason: str = ""
    budget_bytes: int | None = None
    budget_fraction: float | None = None
    device_memory_bytes: int | None = None
    static_bytes: int | None = None
    peak_bytes: int | None = None
    ideal_peak_bytes: int | None = None
    ideal_step_s: float | None = None
    step_s: float | None = None
    throughput_retained: float | None = None
    bound_step_s: float | None = None
    certified_gap: float | None = None
    stall_s: float | None = None
    recompute_s: float | None = None
    kept_bytes: int | None = None
    swapped_bytes: int | None = None
    recomputed_bytes: int | None = None
    bound_cut: str | None = None
    solver: str | None = None
    time_limited: bool | None = None
    planning_s: float | None = None
    swaps: bool = True


COLUMNS: Mapping[str, type] = {
    name: next((t for t in get_args(hint) if t is not NoneType), hint)
    for name, hint in get_type_hints(SweepRow).items()
}
"""Column to the type of its values."""
LATER = ("swaps",)
"""Columns that older files lack."""
_OPTIONAL = {name for name, hint in get_type_hints(SweepRow).items() if NoneType in get_args(hint)}


def kind_of(path: str | Path) -> str:
    """The format that a path's suffix means: one of `ENDINGS`.

    Raises:
        InputError: for any other suffix, and for Parquet if pyarrow is not installed.
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise InputError(
            f"the ending {ending!r} is none of {', '.join(ENDINGS)}; choose one of them",
            where=str(path),
        )
    if ending == ".parquet":
        _pyarrow()
    return ending


def write_rows(path: str | Path, rows: Sequence[SweepRow], *, force: bool = False) -> None:
    """Write rows in the format of the path's suffix, whole or not at all.

    Args:
        path: ends in .csv, .json or .parquet.
        rows: in the order in which they are written.
        force: whether an existing file may be replaced.

    Raises:
        InputError: for another suffix, a missing extra, or a file that cannot be written.
    """
    ending = kind_of(path)
    if ending == ".parquet":
        files.write_bytes(path, _parquet(rows), force=force)
    elif ending == ".json":
        files.write_text(path, json.dumps(document(rows), indent=1) + "\n", force=force)
    else:
        files.write_text(path, _csv(rows), force=force)


def read_rows(path: str | Path) -> tuple[SweepRow, ...]:
    """Rows of a file that `write_rows` wrote.

    Raises:
        InputError: if it cannot be read or is none; the message begins with the path.
    """
    try:
        ending = kind_of(path)
        if ending == ".parquet":
            return _of_parquet(files.read_bytes(path))
        text = files.decode(files.read_bytes(path))
        return _of_json(text) if ending == ".json" else _of_csv(text)
    except InputError as error:
        raise (error if error.where else error.at(str(path))) from None


def document(rows: Iterable[SweepRow]) -> dict[str, object]:
    """The JSON document `slackswap.sweep/1`."""
    return {"schema": SCHEMA, "rows": [asdict(row) for row in rows]}


def row_of(values: Mapping[str, Any], place: str) -> SweepRow:
    """A row from its columns.

    Raises:
        InputError: naming the place and every column that is missing, unknown or of another type.
    """
    faults = _header_faults(values, place)
    checked: dict[str, Any] = {}
    for name, wanted in COLUMNS.items():
        value = values.get(name)
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted and not (value is None and name in _OPTIONAL):
            if name in values:
                faults.append(f"{place}: {name} is {value!r}, expected {wanted.__name__}")
            continue
        checked[name] = value
    if faults:
        raise InputError(*faults)
    return SweepRow(**checked)


def _header_faults(names: Collection[str], place: str) -> list[str]:
    needed = (name for name in COLUMNS if name not in names and name not in LATER)
    missing = [f"{place}: column {name!r} is missing" for name in needed]
    return missing + [
        f"{place}: column {name!r} is not known" for name in names if name not in COLUMNS
    ]


# CSV


def _csv(rows: Iterable[SweepRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(_cell(getattr(row, field.name)) for field in fields(row))
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_csv(text: str) -> tuple[SweepRow, ...]:
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, [])
    rows = []
    for line in reader:
        place = f"line {reader.line_num}"
        if len(line) != len(header):
            raise InputError(f"{place} has {len(line)} fields, the header {len(header)}")
        cells = zip(header, line, strict=True)
        rows.append(row_of({name: _value(name, cell, place) for name, cell in cells}, place))
    if faults := _header_faults(header, "line 1"):
        raise InputError(*faults)
    return tuple(rows)


def _value(name: str, cell: str, place: str) -> object:
    wanted = COLUMNS.get(name, str)
    if cell == "" and name in _OPTIONAL:
        return None
    if wanted is bool:
        return {"true": True, "false": False}.get(cell, cell)
    try:
        return wanted(cell)
    except ValueError:
        raise InputError(f"{place}: {name} is {cell!r}, expected {wanted.__name__}") from None


# JSON


def _of_json(text: str) -> tuple[SweepRow, ...]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"is not valid JSON: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise InputError(f"is not the result of a sweep: schema is not {SCHEMA!r}")
    rows = found.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError("rows: expected a list of objects")
    return tuple(row_of(row, f"row {number}") for number, row in enumerate(rows))


# Parquet


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow; pip install 'slackswap-opt[parquet]', or write .csv or .json"
        ) from None
    return pa


def _parquet(rows: Sequence[SweepRow]) -> bytes:
    pa = _pyarrow()
    types = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema(
        [pa.field(name, types[t], nullable=name in _OPTIONAL) for name, t in COLUMNS.items()],
        metadata={"schema": SCHEMA},
    )
    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    sink = io.BytesIO()
    pa.parquet.write_table(pa.table(columns, schema=schema), sink)
    return sink.getvalue()


def _of_parquet(content: bytes) -> tuple[SweepRow, ...]:
    pa = _pyarrow()
    try:
        table = pa.parquet.read_table(pa.BufferReader(content))
    except pa.ArrowException as error:
        raise InputError(f"is not a Parquet file: {error}") from None
    return tuple(row_of(row, f"row {number}") for number, row in enumerate(table.to_pylist()))
