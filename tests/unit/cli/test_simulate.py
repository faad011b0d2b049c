"""`simulate` on small files of the shapes of the public ones, through the real command line."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataloader_svc.cli.main import main
from dataloader_svc.cli.simulate_trace import BACKWARD, FORWARD


def cli(capsys, *arguments):
    """(exit code, stdout, stderr) of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.fixture
def lengths(tmp_path):
    rng = np.random.default_rng(0)
    count = 300
    tiles = rng.integers(0, 6, count)
    table = pa.table(
        {
            "dataset": pa.array(np.where(tiles > 3, "pages", "charts")).dictionary_encode(),
            "image_tiles": pa.array(tiles, pa.int16()),
            "tokens": pa.array(100 + 250 * tiles, pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "lengths.parquet")
    return tmp_path / "lengths.parquet"


def trace_rows(forward, *, beside=1.0):
    """Operations of a job: `forward` (steps, dp, microbatches, stages) seconds, backward twice as long, and
    an optimizer that begins when the pipeline is done (if it has one stage) and takes `beside`.
    """
    rows = []
    for (step, rank, microbatch, stage), seconds in np.ndenumerate(forward):
        start = 3.0 * forward[step, rank, :microbatch, stage].sum()
        row = {"step": 10 + step, "dp_rank": rank, "stage": stage, "seq_id": microbatch}
        rows.append({**row, "optype": FORWARD, "start_ts": start, "duration": seconds})
        rows.append({**row, "optype": BACKWARD, "start_ts": start + seconds, "duration": 2 * seconds})
    for step, took in enumerate(3.0 * forward.sum(axis=2).max(axis=(1, 2))):
        rows.append(
            {"step": 10 + step, "dp_rank": 0, "stage": 0, "seq_id": -1, "optype": "optimizer"}
            | {"start_ts": took, "duration": beside}
        )
    return rows


def write_trace(path, rows, **changes):
    table = pa.Table.from_pylist(rows)
    for name, column in changes.items():
        if column is None:
            table = table.drop_columns([name])
        else:
            table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, path)
    return path


FORWARDS = np.array([[[4.0, 4.0], [2.0, 2.0]], [[1.0, 5.0], [3.0, 3.0]]])[..., None]  # one stage


def test_lengths_give_each_strategy_its_four_figures(capsys, lengths):
    code, out, err = cli(
        capsys, "--lengths", lengths, "--dp", 8, "--samples-per-rank", 4, "--steps", 5, "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["steps"] == 5
    assert found["items_per_step"] == 32
    for row in found["strategies"].values():
        assert row["llm"] >= 1.0
        assert row["encoder"] >= 1.0
        assert row["gap_to_floor"] >= -1e-12
        assert row["seconds"] > 0
    whole = {name: row["llm"] for name, row in found["strategies"].items() if name not in ("cut", "hybrid")}
    assert min(whole.values()) >= found["floor"]["llm"] * (1 - 1e-12)
    assert whole["lpt"] < whole["arrival"]


def test_text_can_be_mixed_in_and_its_long_tail_is_cut(capsys, lengths):
    mix = ("--mix", "charts=0.5,text=0.5")
    code, out, _ = cli(capsys, "--lengths", lengths, "--dp", 16, "--samples-per-rank", 8, *mix, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["input"]["mixture"] == {"charts": 0.5, "text": 0.5}
    assert found["floor"]["llm"] > 1.5
    assert found["binding"]["item"] >= 25
    assert found["strategies"]["cut"]["llm"] < 1.15
    assert found["remedies"]["cut"]["steps"] >= 25


def test_options_that_are_repeated_are_all_combined(capsys, lengths):
    sweep = ("--dp", 2, "--dp", 4, "--pp", 1, "--pp", 2, "--group-size", 2, "--sequence-length", 512)
    code, out, _ = cli(capsys, "--lengths", lengths, *sweep, "--steps", 2, "--json")
    assert code == 0
    cases = json.loads(out)["cases"]
    assert [(case["layout"]["dp"], case["layout"]["pp"]) for case in cases] == [
        (2, 1),
        (2, 2),
        (4, 1),
        (4, 2),
    ]
    assert {case["sequence_length"] for case in cases} == {512}
    assert cases[0]["strategies"]["lpt"]["bubble"] == pytest.approx(0.0)
    assert cases[1]["strategies"]["lpt"]["bubble"] > 0


def test_a_table_for_people(capsys, lengths):
    code, out, _ = cli(capsys, "--lengths", lengths, "--dp", 4, "--steps", 2)
    assert code == 0
    assert "lengths.parquet on dp=4,cp=1,pp=1" in out
    for word in ("arrival", "tokens", "two_placements", "floor", "2 steps of 128 items"):
        assert word in out


def test_a_trace_is_replayed_against_equal_work(capsys, tmp_path):
    """One stage: a step takes its slowest rank, 18 seconds if all were of 6, and 1 more.

    Step 0 took 24 + 1, step 1 took 18 + 1. Whole microbatches can be exchanged: 4 + 2 on both ranks.
    """
    path = write_trace(tmp_path / "trace.parquet", trace_rows(FORWARDS))
    code, out, err = cli(capsys, "--trace", path, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["job"] == {"steps": 2, "dp": 2, "microbatches": 2, "pp": 1}
    assert found["slowdown"] == found["strategies"]["arrival"]["slowdown"]
    assert found["slowdown"] == pytest.approx((25 / 19 + 19 / 19) / 2)
    assert found["strategies"]["arrival"]["llm"] == pytest.approx((24 / 18 + 1) / 2)
    assert found["strategies"]["lpt"]["slowdown"] == pytest.approx(1.0)
    assert found["strategies"]["lpt"]["llm"] == pytest.approx(1.0)
    assert found["equal_microbatches"]["slowdown"] == pytest.approx(1.0)


def test_stages_that_are_unequal_are_no_fault_of_a_placement(capsys, tmp_path):
    forward = np.concatenate([FORWARDS, 3 * FORWARDS], axis=-1)
    path = write_trace(tmp_path / "trace.parquet", trace_rows(forward))
    found = json.loads(cli(capsys, "--trace", path, "--json")[1])
    rows = found["strategies"]
    assert found["equal_microbatches"]["slowdown"] > 1.0
    assert 1.0 < rows["lpt"]["slowdown"] < rows["arrival"]["slowdown"]
    assert rows["lpt"]["stages"] == found["floor"]["stages"] == pytest.approx([1.0, 1.0])
    out = cli(capsys, "--trace", path)[1]
    assert "stage 1" in out
    assert f"the job ran {found['slowdown']:.3f} times slower" in out


@pytest.mark.parametrize("suffix", ["html", "png"])
def test_a_picture_for_a_report(capsys, lengths, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"report.{suffix}"
    code, _, _ = cli(capsys, "--lengths", lengths, "--dp", 2, "--dp", 4, "--steps", 2, "--out", path)
    assert code == 0
    held = path.read_bytes()
    if suffix == "png":
        assert held.startswith(b"\x89PNG")
    else:
        page = held.decode()
        assert page.count("<h2>") == 4  # strategies and packers, on each mesh
        assert "two_placements" in page
        assert "data:image/png;base64,iVBOR" in page
        assert "<script" not in page
    assert [found.name for found in tmp_path.iterdir() if "report" in found.name] == [path.name]


def test_a_report_that_cannot_be_written_is_named(capsys, lengths, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, err = cli(
        capsys, "--lengths", lengths, "--dp", 2, "--steps", 1, "--out", tmp_path / "no" / "r.png"
    )
    assert code == 2
    assert "r.png: No such file or directory" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one of CONFIG, --lengths and --trace"),
        (("--lengths", "{l}", "--trace", "{l}"), "give one of"),
        (("--lengths", "{l}", "--dp", "0"), "0 is not in the range"),
        (("--lengths", "{l}", "--dp", "6", "--group-size", "4"), "--group-size 4 does not divide --dp 6"),
        (("--lengths", "{l}", "--mix", "pages=x"), "'pages=x': expected DATASET=WEIGHT"),
        (("--lengths", "{l}", "--mix", "pages=-1"), "finite and not negative"),
        (("--lengths", "{l}", "--mix", "page=1"), "no dataset 'page'; the file has charts, pages, text"),
        (("--lengths", "{l}", "--out", "report.pdf"), "ends in .html or .png"),
        (("--lengths", "nowhere.parquet"), "nowhere.parquet"),
        (("--trace", "{l}", "--dp", "4"), "--dp has no meaning with --trace"),
        (("nowhere.yaml", "--samples-per-rank", "4"), "--samples-per-rank belongs to --lengths"),
    ],
)
def test_wrong_usage_is_named(capsys, lengths, arguments, said):
    code, out, err = cli(capsys, *(each.format(l=lengths) for each in arguments))
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"length": [1]}, "no column 'dataset', 'tokens', 'image_tiles'; it has length. Needed are dataset"),
        ({"dataset": ["a"], "tokens": [1]}, "no column 'image_tiles'; it has dataset, tokens"),
        (
            {"dataset": ["a"] * 2, "tokens": [5, 0], "image_tiles": [0, 0]},
            "row 1: tokens is 0; allowed are 1",
        ),
        (
            {"dataset": ["a"] * 2, "tokens": [5, 2**50], "image_tiles": [0, 0]},
            "row 1: tokens is 1125899906842624",
        ),
        ({"dataset": ["a"] * 2, "tokens": [5, None], "image_tiles": [0, 0]}, "row 1: tokens is null"),
        ({"dataset": ["a"], "tokens": [5.5], "image_tiles": [0]}, "tokens is double; whole numbers"),
        ({"dataset": ["a"], "tokens": [5], "image_tiles": [-1]}, "row 0: image_tiles is -1"),
        ({"dataset": [[1]], "tokens": [5], "image_tiles": [1]}, "column dataset is list"),
        ({"dataset": [], "tokens": [], "image_tiles": []}, "holds no rows"),
    ],
)
def test_a_file_of_lengths_that_is_none_is_named_with_its_row_and_column(capsys, tmp_path, columns, said):
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table(columns), path)
    code, _, err = cli(capsys, "--lengths", path)
    assert code == 3
    assert said in err
    assert str(path) in err


def test_a_file_that_is_no_parquet_is_named(capsys, tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"not a table")
    for option in ("--lengths", "--trace"):
        code, _, err = cli(capsys, option, path)
        assert code == 3
        assert f"{path}: can't be read as parquet" in err


def replaced(name, row, value):
    rows = trace_rows(FORWARDS)
    rows[row][name] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            trace_rows(FORWARDS)[2:],
            "step 10, dp_rank 0, stage 0: no forward-compute of microbatch 0; ranks have 2",
        ),
        ([*trace_rows(FORWARDS), trace_rows(FORWARDS)[1]], "more than one backward-compute of microbatch 0"),
        (replaced("duration", 4, float("nan")), "row 4: duration is nan"),
        (replaced("duration", 4, -1.0), "row 4: duration is -1.0"),
        (replaced("dp_rank", 4, 10**9), "row 4: dp_rank is 1000000000; allowed are 0 to 65536"),
        (replaced("dp_rank", 4, -1), "row 4: dp_rank is -1"),
        (replaced("seq_id", 2, -1), "row 2: forward-compute with seq_id -1"),
        (replaced("stage", 5, None), "row 5: stage is null"),
        (
            [row for row in trace_rows(FORWARDS) if row["optype"] != BACKWARD],
            "no operation 'backward-compute'",
        ),
        ([{"name": "x", "ts": 1.0}], "no column 'step', 'dp_rank', 'stage', 'seq_id', 'optype'"),
    ],
)
def test_a_trace_that_is_none_is_named(capsys, tmp_path, rows, said):
    path = write_trace(tmp_path / "trace.parquet", rows)
    code, _, err = cli(capsys, "--trace", path)
    assert code == 3
    assert said in err
    assert str(path) in err


def test_packers_stand_side_by_side(capsys, lengths):
    code, out, _ = cli(capsys, "--lengths", lengths, "--dp", 2, "--steps", 3, "--json")
    assert code == 0
    found = json.loads(out)
    rows = found["packers"]
    assert list(rows)[-1] == "concatenate"
    assert {"best_fit", "balanced", "variable"} < set(rows)
    assert all(row["spread"] >= row["spread_floor"] - 1e-9 for row in rows.values())
    assert all(0 < row["fill"] <= 1 for row in rows.values())
    assert rows["balanced"]["spread"] <= rows["best_fit"]["spread"] + 1e-9
    row = found["strategies"]["waiting"]
    assert row["delay"] <= row["oldest"]


STEPS = """
strategy:
  steps:
    - cost: {llm: {linear: 24576, quadratic: 1}, encoder: 9170.7}
    - distribute: dp
    - balance: {method: both, alternatives: false}
"""


def test_a_strategy_of_your_own_is_a_row(capsys, lengths, tmp_path, monkeypatch):
    """The primitives that say what `place` does give what it gives; a function may say them as well."""
    path = tmp_path / "mine.yaml"
    path.write_text(STEPS)
    common = ("--lengths", lengths, "--dp", 3, "--steps", 3, "--equal-counts", "--json")
    code, out, _ = cli(capsys, *common, "--strategy", path)
    assert code == 0
    rows = json.loads(out)["strategies"]
    assert rows["declared"]["llm"] == pytest.approx(rows["place"]["llm"], abs=0.02)
    (tmp_path / "simulated_mine.py").write_text(
        "from dataloader_balancers.strategy import Strategy\n"
        "def packs():\n"
        "    return Strategy().cost(llm='7b').pack('best_fit').distribute('dp').balance('lpt')\n"
        "def nothing():\n    return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = cli(capsys, *common, "--strategy", "simulated_mine:packs")
    assert code == 0
    assert json.loads(out)["strategies"]["declared"]["llm"] >= 1.0
    code, _, err = cli(capsys, *common, "--strategy", "simulated_mine:nothing")
    assert code == 2
    assert "returned int; expected a dataloader_balancers.strategy.Strategy" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strategy: {pack: balanced}\n", "it has no list of primitives"),
        ("steps: [distribute, {balance: lptt}]\n", "steps.1: balance: unknown balancer 'lptt'"),
        ("steps: [distribute, balance]\nmode: loose\n", "mode is 'loose'; known: strict, relaxed"),
        ("steps: [{distribute: world}, balance]\n", "--strategy"),
        ("steps: [\n", "can't be read as YAML"),
    ],
)
def test_a_strategy_that_can_not_be_is_named(capsys, lengths, tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    code, _, err = cli(capsys, "--lengths", lengths, "--dp", 2, "--cp", 2, "--steps", 1, "--strategy", path)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
