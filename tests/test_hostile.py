"""Files that mean harm are refused clearly, in bounded memory and time.

The slow tests read every case in a process with limits on memory and, for each case, on processor
time: what is tested is not only the message, but that it comes before either runs out.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import read_step

MEMORY_MIB = 1200
SECONDS = 20
"""Of processor time for one case; each takes a fraction of it."""

HEAD = '{"schema": "slackswap.step/1", "name": "n", "tensors": {"x": 1}, '
OPERATION = '{"name": "a", "phase": "forward", "duration_ns": 1, "writes": ["x"]}'
GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
Y = "y" * 90
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))


class Evil:
    """Writes a file if it is unpickled by a careless reader."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch owned",))


def xml(doctype: str, body: str = "&l9;") -> bytes:
    return (
        f'<?xml version="1.0"?>\n<!DOCTYPE graphml [{doctype}]>\n{GRAPHML}'
        f'<graph edgedefault="directed"><node id="a"><data key="d">{body}</data></node>'
        "</graph></graphml>"
    ).encode()


def content_of(case: str) -> bytes:
    """The file of a case."""
    content = CASES[case][0]()
    return content.encode() if isinstance(content, str) else content


def bomb(content: bytes, times: int) -> bytes:
    """Compressed repetitions, made without holding them."""
    block = gzip.compress(content * 1024, mtime=0)
    return block * (times // 1024)


CASES: dict[str, tuple[Callable[[], str | bytes], str]] = {
    "billion laughs": (lambda: xml(f'<!ENTITY l0 "lol">{LAUGHS}'), "a document type"),
    "quadratic blowup": (
        lambda: xml(f'<!ENTITY a "{"A" * 100_000}">', "&a;" * 10_000),
        "a document type",
    ),
    "external entity": (
        lambda: xml('<!ENTITY e SYSTEM "file:///etc/passwd">', "&e;"),
        "a document type",
    ),
    "external entity over the network": (
        lambda: xml('<!ENTITY e SYSTEM "http://127.0.0.1:9/">', "&e;"),
        "a document type",
    ),
    "parameter entity": (
        lambda: xml('<!ENTITY % p SYSTEM "file:///dev/zero"> %p;'),
        "a document type",
    ),
    "external document type": (
        lambda: '<!DOCTYPE graphml SYSTEM "file:///dev/zero">\n' + GRAPHML + "</graphml>",
        "a document type",
    ),
    "undefined entity": (lambda: f"{GRAPHML}&x;</graphml>", "undefined entity"),
    "deep XML": (lambda: f"{GRAPHML}{'<a>' * 1_000_000}", "nested too deeply"),
    "long XML name": (
        lambda: f"{GRAPHML}<graph><node id='{'n' * 10_000_000}'/>",
        "not well-formed",
    ),
    "many XML nodes without attributes": (
        lambda: GRAPHML + "<graph>" + "<node id='a'/>" * 200_000 + "</graph></graphml>",
        "nodes have the id",
    ),
    "gzip bomb": (lambda: bomb(b"\0" * 1024, 2 * 2**20), "the most that is read"),
    "gzip in gzip": (lambda: gzip.compress(gzip.compress(b"x" * 10_000)), "not recognized"),
    "deep JSON": (lambda: HEAD + '"operations": ' + "[" * 5_000_000, "nested too deeply"),
    "deep JSON objects": (lambda: HEAD + '"notes": ' + '{"a":' * 2_000_000, "nested too deeply"),
    "wide JSON": (
        lambda: HEAD + '"operations": [' + "{}," * 300_000 + "{}]}",
        "and at least",
    ),
    "long integer": (lambda: HEAD + '"operations": [' + "9" * 5_000_000 + "]}", "digits; too many"),
    "long float": (
        lambda: HEAD + f'"operations": [{OPERATION[:-1]}, "duration_us": 1.{"1" * 5_000_000}}}]}}',
        "has duration_ns and duration_us",
    ),
    "long name": (
        lambda: HEAD + f'"operations": [{{"name": "{"n" * 10_000_000}"}}]}}',
        "the duration is missing",
    ),
    "many unknown names": (
        lambda: (
            HEAD
            + '"operations": ['
            + ",".join(
                f'{{"name": "o{n}", "phase": "forward", "duration_ns": 1, "reads": ["{Y}{n}"]}}'
                for n in range(50_000)
            )
            + "]}"
        ),
        "is not in tensors",
    ),
    "deep node-link": (
        lambda: b'{"nodes": [], "edges": [], "graph": ' + b"[" * 3_000_000,
        "nested too deeply",
    ),
    "long node-link id": (
        lambda: json.dumps({"directed": True, "nodes": [{"id": "n" * 10_000_000}], "edges": []}),
        "no attributes",
    ),
    "dangling edges": (
        lambda: json.dumps(
            {
                "nodes": [{"id": f"n{i}", "duration_ns": 1} for i in range(2_000)],
                "edges": [{"source": f"m{i}", "target": f"k{i}"} for i in range(50_000)],
            }
        ),
        "there is no node",
    ),
    "deep YAML": (lambda: b"schema: slackswap.step/1\nname: " + b"[" * 1_000_000, "nest"),
    "YAML aliases": (
        lambda: (
            "schema: slackswap.step/1\na: &a [x, x]\n"
            + "".join(
                f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n"
                for n in range(20)
            )
        ),
        "the anchor &a is not read",
    ),
    "YAML that makes objects": (
        lambda: (
            b"schema: slackswap.step/1\nname: !!python/object/apply:os.system ['touch owned']\n"
        ),
        "the tag",
    ),
    "long YAML name": (
        lambda: (
            b"schema: slackswap.step/1\ntensors: {}\noperations: []\nname: " + b"n" * 10_000_000
        ),
        "has no operations",
    ),
    "long YAML": (lambda: b"schema: slackswap.step/1\n" + b"# x\n" * 9_000_000, "write it as JSON"),
    "pickle": (lambda: pickle.dumps(Evil()), ""),
    "pickle in gzip": (lambda: gzip.compress(pickle.dumps(Evil())), ""),
    "old pickle": (lambda: pickle.dumps(Evil(), protocol=0), ""),
    "long PipeDream line": (lambda: b"a -- " + b"b" * 10_000_000 + b" -- c", "is missing"),
    "long DOT": (lambda: b"digraph {" + b"a -> b;" * 2_000_000 + b"}", "DOT graph"),
    "dnn-partitioning numbers": (
        lambda: b'{"nodes": [{"id": 1, "fpgaLatency": 1e400, "size": 1e308}], "edges": []}',
        "expected 0 to",
    ),
    "nothing but zeros": (lambda: b"\0" * 20_000_000, "not recognized"),
    "a random beginning": (lambda: random.Random(1).randbytes(16) * 500_000, "not recognized"),
}

RUN = """
import json, resource, sys, tempfile
limit = {memory} * 2**20
from tests.test_hostile import CASES, content_of
from slackswap_opt.errors import InputError
from slackswap_opt.formats import read_step
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
def seconds():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime
for case in CASES:
    with open("hostile", "wb") as file:
        file.write(content_of(case))
    begin, told = seconds(), "it was read"
    resource.setrlimit(resource.RLIMIT_CPU, (int(begin) + {seconds}, -1))
    try:
        read_step("hostile")
    except InputError as error:
        told = str(error)
    except Exception as error:
        told = "unforeseen: " + repr(error)[:1000]
    print(json.dumps([case, told, seconds() - begin]), flush=True)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[str, float]]]:
    """What a process with limits says of each file, and its processor time; and where it ran."""
    folder = tmp_path_factory.mktemp("hostile")
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(memory=MEMORY_MIB, seconds=SECONDS)],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return folder, {case: (text, seconds) for case, text, seconds in rows}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits on processes are those of Unix")
@pytest.mark.parametrize("case", CASES)
def test_hostile_files_are_refused_within_limits(
    case: str, told: tuple[Path, dict[str, tuple[str, float]]]
) -> None:
    if "YAML" in case:
        pytest.importorskip("yaml")
    folder, cases = told
    assert case in cases, f"the process ended at or before this case; the last was {[*cases][-1:]}"
    text, _ = cases[case]
    lines = text.splitlines()
    assert CASES[case][1] in text, lines[:10]
    assert all(line.startswith("hostile: ") for line in lines)
    assert max(map(len, lines)) < 600
    assert len(lines) <= 101
    assert [p.name for p in folder.iterdir()] == ["hostile"]  # nothing ran


QUICK = ("billion laughs", "external entity", "YAML that makes objects", "YAML aliases", "pickle",
         "old pickle", "undefined entity", "dnn-partitioning numbers", "gzip in gzip")  # fmt: skip


@pytest.mark.parametrize("case", QUICK)
def test_small_hostile_files_are_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without limits, where none is needed: fast enough for every run."""
    if "YAML" in case:
        pytest.importorskip("yaml")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile").write_bytes(content_of(case))
    with pytest.raises(InputError) as error:
        read_step("hostile")
    assert CASES[case][1] in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["hostile"]
