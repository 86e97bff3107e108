"""The command line: every command, every exit code, and output that others can rely on."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from slackswap_opt.cli.app import app
from slackswap_opt.cli.guard import guarded
from slackswap_opt.formats import write_step
from slackswap_opt.formulation import _highs, _pulp
from slackswap_opt.formulation.bound import Bound
from slackswap_opt.machine.catalogue import machines_dir
from slackswap_opt.planners import HEURISTICS, PLANNERS
from slackswap_opt.resources import models_dir
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.processes import children

GRAPHS = models_dir() / "graphs"
QUICK = ("--gap", "5%", "--time-limit", "3")
TINY, UNET = str(GRAPHS / "tiny-mlp.json"), str(GRAPHS / "unet.json")
ROOT = Path(__file__).parents[1]

NUMBER, WHOLE, TEXT = {"type": "number"}, {"type": "integer"}, {"type": "string"}


def or_null(schema):
    return {"anyOf": [schema, {"type": "null"}]}


COMPARE_ROW = {
    "workload": TEXT,
    "machine": TEXT,
    "planner": TEXT,
    "status": {"enum": ["optimal-within-gap", "feasible", "fallback", "infeasible"]},
    "budget_bytes": WHOLE,
    "budget_fraction": NUMBER,
    "peak_bytes": or_null(WHOLE),
    "ideal_peak_bytes": WHOLE,
    "ideal_step_s": NUMBER,
    "step_s": or_null(NUMBER),
    "throughput_retained": or_null(NUMBER),
    "bound_step_s": NUMBER,
    "certified_gap": or_null({"type": "number", "minimum": 0}),
    "stall_s": or_null(NUMBER),
    "recompute_s": or_null(NUMBER),
    "kept_bytes": or_null(WHOLE),
    "swapped_bytes": or_null(WHOLE),
    "recomputed_bytes": or_null(WHOLE),
    "planning_s": NUMBER,
    "solver": or_null(TEXT),
    "reason": TEXT,
    "bound_cut": or_null(TEXT),
    "time_limited": {"type": "boolean"},
    "swaps": {"type": "boolean"},
}
COMPARE_SCHEMA = {
    "type": "object",
    "properties": {
        "schema": {"const": "slackswap.compare/1"},
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": COMPARE_ROW,
                "required": list(COMPARE_ROW),
                "additionalProperties": False,
            },
        },
    },
    "required": ["schema", "rows"],
    "additionalProperties": False,
}


def slackswap(*arguments: str, expected: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == expected, result.output[-2000:]
    return result


def process(*arguments: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "slackswap_opt", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# compare and sweep


def test_compare_prints_the_documented_json():
    done = slackswap("compare", TINY, UNET, "-b", "95%", "-b", "100%", "--json", *QUICK)
    document = json.loads(done.stdout)
    jsonschema.validate(document, COMPARE_SCHEMA)
    rows = document["rows"]
    assert [r["planner"] for r in rows] == list(PLANNERS) * 4
    assert [r["workload"] for r in rows[:: len(PLANNERS)]] == [
        "tiny-mlp",
        "tiny-mlp",
        "unet",
        "unet",
    ]
    filled = ("step_s", "peak_bytes", "throughput_retained", "certified_gap", "stall_s",
              "recompute_s", "kept_bytes", "swapped_bytes", "recomputed_bytes")  # fmt: skip
    for row in rows:
        assert {row[key] is None for key in filled} == {row["status"] == "infeasible"}
        if row["step_s"] is not None:
            gap = (row["step_s"] - row["bound_step_s"]) / row["step_s"]
            assert row["certified_gap"] == pytest.approx(gap, abs=1e-9)
            retained = row["ideal_step_s"] / row["step_s"]
            assert row["throughput_retained"] == pytest.approx(retained)


def test_compare_prints_a_table_with_the_bound_on_top():
    done = slackswap("compare", UNET, "--budget", "95%", "--planners", "selective,greedy")
    lines = [line.split("  ")[0].strip() for line in done.stdout.splitlines()]
    assert lines.index("best possible") < lines.index("selective") < lines.index("greedy")
    assert "status" in done.stdout
    assert done.stderr == ""


def test_full_budget_costs_nothing():
    done = slackswap("compare", UNET, "--budget", "100%", "-p", "ilp", "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["throughput_retained"] == 1.0
    assert row["status"] == "optimal-within-gap"


def test_compare_takes_workloads_with_another_shape():
    done = slackswap(
        "compare", "bert-large", "--layers", "2", "--batch", "4", "--sequence", "128",
        "-b", "100%", "-p", "greedy", "--json", "-m", str(machines_dir() / "plain-a100.toml"),
    )  # fmt: skip
    (row,) = json.loads(done.stdout)["rows"]
    assert row["workload"] == "bert-large"
    assert row["machine"].endswith("plain-a100.toml") or row["machine"] == "plain-a100"


def test_narrow_and_wide_terminals(monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    narrow = slackswap("compare", UNET, "-b", "100%", "-p", "greedy,keep-all").stdout
    assert max(len(line) for line in narrow.splitlines()[1:]) <= 72
    assert "swapped" not in narrow
    assert "retained" in narrow
    monkeypatch.setenv("COLUMNS", "200")
    assert "swapped" in slackswap("compare", UNET, "-b", "100%", "-p", "greedy").stdout


def test_sweep():
    text = slackswap("sweep", TINY, "-p", "greedy,ilp", *QUICK).stdout
    assert "100.00 %" in text
    assert "no plan fits" in text or "<=" in text
    budgets = ("-b", "100%", "-b", "95%", "--json")
    rows = json.loads(slackswap("sweep", TINY, "-p", "ilp", *budgets).stdout)["rows"]
    assert rows[0]["step_s"] <= rows[1]["step_s"]


# plan and simulate


@pytest.fixture
def plan_path(tmp_path):
    path = tmp_path / "plan.json"
    slackswap("plan", UNET, "--budget", "75%", "--planner", "swap-all", "-o", path)
    return path


def test_plan_says_what_it_does_and_writes_a_file(tmp_path):
    path = tmp_path / "plan.json"
    done = slackswap("plan", UNET, "--budget", "75%", "-o", path, *QUICK)
    for word in ("certified gap", "kept", "swapped", "recomputed", "enc*", str(path)):
        assert word in done.stdout
    again = slackswap("plan", UNET, "--budget", "75%", "-o", path, expected=2)
    assert "--force" in again.stderr
    assert again.stdout == ""
    slackswap("plan", UNET, "--budget", "75%", "-o", path, "--force", *QUICK)
    played = json.loads(slackswap("simulate", path, "--json").stdout)
    assert played["agrees_with_file"]
    assert played["recorded_gap"] >= 0


def test_plan_json_and_plan_to_stdout(tmp_path):
    summary = json.loads(slackswap("plan", UNET, "-b", "75%", "-p", "greedy", "--json").stdout)
    assert summary["schema"] == "slackswap.plan-summary/1"
    assert summary["planner"] == "greedy"
    path = tmp_path / "plan.json"
    path.write_text(slackswap("plan", UNET, "-b", "75%", "-p", "greedy", "-o", "-").stdout)
    slackswap("simulate", path)


def test_plan_refuses_a_missing_folder_before_it_plans(tmp_path):
    done = slackswap("plan", UNET, "-o", tmp_path / "none" / "plan.json", expected=2)
    assert "does not exist" in done.stderr
    assert "folder" in slackswap("plan", UNET, "-o", tmp_path, expected=2).stderr


def test_plans_are_the_same_each_time(tmp_path):
    texts = []
    for name in ("a", "b"):
        slackswap("plan", TINY, "-b", "95%", "-o", tmp_path / name)
        texts.append((tmp_path / name).read_text(encoding="utf-8"))
    assert texts[0] == texts[1]


def test_an_infeasible_budget_is_proven_and_the_smallest_one_said():
    done = slackswap("plan", UNET, "--budget", "30%", expected=3)
    assert done.stdout == ""
    assert "this is proven" in done.stderr
    assert "dec1.conv1.backward" in done.stderr
    smallest = int(re.search(r"found feasible: (\d+) bytes", done.stderr)[1])
    slackswap("plan", UNET, "--budget", f"{smallest}B", "--planner", "swap-all")
    document = json.loads(slackswap("plan", UNET, "-b", "30%", "--json", expected=3).stdout)
    assert document["smallest"]["budget_bytes"] == smallest
    assert document["smallest"]["limit_bytes"] <= smallest
    assert document["step_s"] is None
    assert "proven" in slackswap("compare", UNET, "-b", "30%", expected=3).stdout
    assert "proven" in slackswap("bound", UNET, "-b", "30%", expected=3).stderr


def stuck_step() -> TrainingStep:
    """Two gradients that nothing here evicts; a schedule that swaps one might exist."""
    size = 2**20
    tensors = [Tensor.of(name, size) for name in ("h", "a", "b")]
    h, a, b = (Value(t.name) for t in tensors)
    return TrainingStep.build(
        "stuck",
        [
            Operation("f", Phase.FORWARD, 1000, writes=(h,)),
            Operation("ga", Phase.BACKWARD, 1000, reads=(h,), writes=(a,)),
            Operation("gb", Phase.BACKWARD, 1000, reads=(h,), writes=(b,)),
            Operation("ra", Phase.BACKWARD, 1000, reads=(a,)),
            Operation("rb", Phase.BACKWARD, 1000, reads=(b,)),
        ],
        tensors,
    )


def test_none_found_is_not_called_infeasible(tmp_path):
    path = tmp_path / "stuck.json"
    write_step(stuck_step(), path)
    done = slackswap("plan", path, "--budget", "2MiB", "--planner", "greedy", expected=4)
    assert "does not prove" in done.stderr
    assert "found feasible: 3145728 bytes" in done.stderr
    assert "'ga' needs" in done.stderr or "'ga'" in done.stderr
    slackswap("compare", path, "-b", "2MiB", "-p", "keep-all,greedy", expected=4)


def test_simulate_shows_waits_and_utilization(plan_path):
    text = slackswap("simulate", plan_path).stdout
    for word in ("utilization", "d2h", "swap-in", "waits for"):
        assert word in text
    document = json.loads(slackswap("simulate", plan_path, "--json").stdout)
    assert document["stall_s"] == pytest.approx(sum(s["seconds"] for s in document["stalls"]))
    assert all(0 <= used <= 1 for used in document["utilization"].values())
    wide = json.loads(slackswap("simulate", plan_path, "-c", "100%", "--json").stdout)
    assert wide["recorded_gap"] is None


def test_simulate_reads_gzip(plan_path, tmp_path):
    packed = tmp_path / "plan.json.gz"
    packed.write_bytes(gzip.compress(plan_path.read_bytes()))
    slackswap("simulate", packed)


def test_a_tampered_plan_fails(plan_path):
    document = json.loads(plan_path.read_text(encoding="utf-8"))
    document["simulated"]["step_ns"] -= 1
    plan_path.write_text(json.dumps(document), encoding="utf-8")
    done = slackswap("simulate", plan_path, expected=5)
    assert "simulated.step_ns" in done.stderr
    assert str(plan_path) in done.stderr
    assert done.stdout == ""


def test_a_plan_that_does_not_fit_another_capacity(plan_path):
    done = slackswap("simulate", plan_path, "--capacity", "20%", expected=5)
    assert "out of memory" in done.stderr


def test_simulate_wants_a_plan_file():
    assert "not a plan file" in slackswap("simulate", UNET, expected=2).stderr
    assert "no such file" in slackswap("simulate", "none.json", expected=2).stderr


# bound, inspect, models


def test_bound():
    document = json.loads(slackswap("bound", UNET, "-b", "60%", "--json").stdout)
    assert document["bound_step_s"] >= document["ideal_step_s"]
    assert document["solver"].startswith("CBC")
    text = slackswap("bound", UNET, "-b", "60%").stdout
    assert "best possible" in text
    assert "none needed" in slackswap("bound", UNET, "-b", "100%").stdout


def test_bound_with_highs():
    pytest.importorskip("highspy")
    done = slackswap("bound", UNET, "-b", "60%", "--json", "--solver", "highs")
    assert json.loads(done.stdout)["solver"].startswith("HiGHS")


def test_inspect():
    document = json.loads(slackswap("inspect", UNET, "--json").stdout)
    assert document["operations"] == 44
    text = slackswap("inspect", "gpt2-xl", "--layers", "2").stdout
    for word in ("layer.*", "ideal peak", "slack", "worth it", "Largest tensors", "Notes"):
        assert word in text


def test_models():
    document = json.loads(slackswap("models", "--json").stdout)
    names = {workload["name"] for workload in document["workloads"]}
    assert {"bert-large", "gpt2-xl", "llama-7b"} <= names
    sizes = {w["name"]: w["parameters_per_device"] for w in document["workloads"]}
    assert sizes["gpt2-xl"] == pytest.approx(1.558e9, rel=0.01)
    assert [m["name"] for m in document["machines"] if m["default"]] == ["a100-80gb-pcie4"]
    assert "llama-7b" in slackswap("models").stdout


# errors


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["compare", "lama-7b"], "did you mean 'llama-7b'"),
        (["compare", UNET, "-p", "gredy"], "did you mean 'greedy'"),
        (["compare", UNET, "-p", ","], "names no planner"),
        (["plan", UNET, "-p", "greedy,ilp"], "give one"),
        (["compare", UNET, "-m", "a100-80gb"], "did you mean 'a100-80gb-pcie4'"),
        (["compare", UNET, "-m", "none.toml"], "no such machine file"),
        (["compare", UNET, "--solver", "high"], "did you mean 'highs'"),
        (["compare", UNET, "-b", "half"], "budget 'half' is not understood"),
        (["compare", UNET, "-b", "0%"], "comes to no bytes"),
        (["compare", UNET, "--gap", "100%"], "--gap '100%'"),
        (["compare", UNET, "--gap", "nan"], "--gap 'nan'"),
        (["compare", UNET, "--time-limit", "0"], "--time-limit is 0"),
        (["compare", UNET, "--time-limit", "nan"], "--time-limit is nan"),
        (["compare", UNET, "--batch", "2"], "--batch: a file holds one fixed step"),
        (["compare", "gpt2-xl", "--layers", "0"], "layers"),
        (["inspect", "none.json"], "none.json: there is no such file"),
        (["inspect", "models"], "models: this is a folder"),
        (["inspect", "none.toml"], "no such workload file"),
        (["comapre"], "compare"),
        (["compare", "--bugdet", "1"], "--budget"),
        (["plan"], "WORKLOAD|FILE"),
    ],
)
def test_bad_input_is_one_message(arguments, expected, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = slackswap(*arguments, expected=2)
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_faulty_file_names_operation_and_field(tmp_path):
    document = json.loads(Path(TINY).read_text(encoding="utf-8"))
    document["operations"][0]["reads"] = ["btach"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    done = slackswap("compare", path, expected=2)
    for word in (str(path), '"fc1"', "reads", "btach", 'did you mean "batch"'):
        assert word in done.stderr


def test_names_cannot_drive_the_terminal(tmp_path):
    text = Path(TINY).read_text(encoding="utf-8")
    path = tmp_path / "mine.json"
    path.write_text(text.replace('"tiny-mlp"', r'"[red]\u001b[31mtiny"'), encoding="utf-8")
    shown = slackswap("inspect", path).stdout
    assert "\x1b" not in shown
    assert "[red]" in shown


def test_no_solver(monkeypatch):
    monkeypatch.setattr(_pulp, "_cbc_path", lambda: None)
    monkeypatch.setattr(_highs, "installed", lambda: False)
    done = slackswap("compare", UNET, "-b", "60%", expected=6)
    assert "pip install" in done.stderr
    assert "without: ilp; the bound is the ideal step" in done.stderr
    for planner in HEURISTICS:
        assert planner in done.stdout
    document = json.loads(slackswap("compare", UNET, "-b", "60%", "--json", expected=6).stdout)
    jsonschema.validate(document, COMPARE_SCHEMA)
    assert {row["planner"] for row in document["rows"]} == set(HEURISTICS)
    assert slackswap("compare", UNET, "-b", "60%", "-p", "ilp", expected=6).stdout == ""
    slackswap("bound", UNET, "-b", "60%", expected=6)
    slackswap("plan", UNET, "-b", "60%", expected=6)


def test_heuristics_need_no_solver(monkeypatch, tmp_path):
    monkeypatch.setattr(_pulp, "_cbc_path", lambda: None)
    monkeypatch.setattr(_highs, "installed", lambda: False)
    slackswap("compare", UNET, "-b", "80%", "-p", "greedy,recompute-all")
    slackswap("plan", UNET, "-b", "80%", "-p", "greedy", "-o", tmp_path / "plan.json")
    slackswap("simulate", tmp_path / "plan.json")


def test_a_negative_gap_prints_no_table(monkeypatch):
    module = importlib.import_module("slackswap_opt.study.sweep")
    monkeypatch.setattr(module, "bound", lambda *_, **__: Bound(10**15, 0, "wrong", 0.0))
    done = slackswap("compare", UNET, "-b", "80%", expected=5)
    assert done.stdout == ""
    assert "certificate failed" in done.stderr
    assert slackswap("compare", UNET, "-b", "80%", "--json", expected=5).stdout == ""


def test_a_lie_of_a_planner_prints_no_table(monkeypatch):
    lie = PLANNERS["keep-all"]

    def liar(problem):
        return lie(problem.with_budget(10**12))

    inputs = importlib.import_module("slackswap_opt.cli.inputs")
    monkeypatch.setattr(inputs, "PLANNERS", {"keep-all": liar})
    done = slackswap("compare", UNET, "-b", "70%", "-p", "keep-all", expected=5)
    assert done.stdout == ""


def test_the_unforeseen_says_how_to_report_it(capsys):
    def broken(verbose: bool = False) -> None:
        raise ZeroDivisionError("oh")

    for verbose in (False, True):
        with pytest.raises(BaseException) as stop:  # noqa: PT011 - typer's Exit
            guarded(broken)(verbose=verbose)
        assert stop.value.exit_code == 1
        assert ("Traceback" in capsys.readouterr().err) is verbose


# the process as a whole


def test_version_and_help_are_quick_and_light():
    code = (
        "import sys; sys.argv = ['slackswap', 'compare', '--help']\n"
        "from slackswap_opt.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "heavy = {'numpy', 'pulp', 'matplotlib', 'networkx'} & set(sys.modules)\n"
        "assert not heavy and not code, (heavy, code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert b"--budget" in done.stdout
    assert "slackswap-opt" in slackswap("--version").stdout


def test_the_reader_may_go_early():
    with process("models", "--json") as running:
        running.stdout.close()
        assert running.stderr.read() == ""
        assert running.wait() == 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_interrupting_is_quiet():
    with process("compare", "gpt2-xl", "-b", "30%", "--json") as running:
        deadline = time.monotonic() + 120
        while not children(running.pid):  # a solver: planning has begun
            assert running.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
        assert (running.returncode, out, err) == (130, "", "")


def test_plain_output_has_no_colours():
    with process(
        "compare", TINY, "-b", "100%", "-p", "keep-all", env={**os.environ, "NO_COLOR": "1"}
    ) as running:
        out, err = running.communicate()
        assert running.returncode == 0
        assert "\x1b" not in out + err


def test_the_package_hands_names_on():
    import slackswap_opt

    for name in slackswap_opt.__all__:
        assert getattr(slackswap_opt, name) is not None
    assert set(slackswap_opt.__all__) <= set(dir(slackswap_opt))
    with pytest.raises(AttributeError, match="nothing"):
        slackswap_opt.nothing  # noqa: B018
