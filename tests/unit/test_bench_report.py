"""Reports of benches and of the demo, and the blocks they are made of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from makeway import load_device, load_preset, plan
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.cli.main import main
from makeway.show.bench import bench_headline
from makeway.show.blocks import Bar, Bars, Cell, Column, Headline, HeatMap, Paragraph, Part, Report, Section, Table
from makeway.show.data import plain
from makeway.show.page import page
from makeway.show.report import report_of
from makeway.show.text import text
from makeway.values.control import CommPriority
from makeway.values.errors import InputError


def bench(**times_ms: float) -> Bench:
    return Bench(
        on="cpu", ranks=2, workload="gemm-ar", origin="measured", compute_ns=(10e6,), comm_ns=(8e6,),
        variants=tuple(
            VariantResult(name=name, times_ns=(time * 1e6,), controls=(CommPriority(),) if name == "planned" else ())
            for name, time in times_ms.items()
        ),
    )  # fmt: skip


def report(*sections: Section) -> Report:
    headline = Headline(sentence="all is well", origin="measured")
    return Report(result="bench", over="", headline=headline, sections=sections, arguments="makeway")


def test_names_in_a_report_differ_so_that_links_find_one_place() -> None:
    table = Table(name="t", caption="", columns=(Column("a"),), rows=((Cell("1"),),))
    with pytest.raises(InputError, match="must differ"):
        report(Section(name="s", title="S", blocks=(table,)), Section(name="t", title="T", blocks=()))


def test_rows_and_columns_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match="2 cells"):
        Table(name="t", caption="", columns=(Column("a"), Column("b")), rows=((Cell("1"),),))
    with pytest.raises(InputError, match="1 rows of 2 values"):
        HeatMap(name="h", caption="", columns=("1", "2"), rows=("1",), values=((1.0,),))


def test_a_bench_headline_compares_the_plan_with_the_better_default() -> None:
    sentence = bench_headline(bench(sequential=20, overlap=18, overlap_torchrun=16, planned=12)).sentence
    assert "12.0\N{NO-BREAK SPACE}ms as planned against 16.0\N{NO-BREAK SPACE}ms by torchrun's default" in sentence
    assert "(-25.0\N{NO-BREAK SPACE}%, n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}1)" in sentence


def test_a_bench_without_any_control_still_has_a_headline() -> None:
    assert "16.0" in bench_headline(bench(sequential=20, overlap=16)).sentence
    assert page(report_of(bench(sequential=20)))


def test_wrong_results_are_called_wrong_in_the_report() -> None:
    right = bench(sequential=20, overlap=16)
    wrong = VariantResult(name="chunks=2", times_ns=(1e6,), wrong="sums differ on rank 1")
    shown = report_of(
        Bench(
            on="cpu", ranks=2, workload="w", origin="measured", compute_ns=(1e6,), comm_ns=(1e6,),
            variants=(*right.variants, wrong),
        )
    )  # fmt: skip
    for rendered in (page(shown), text(shown, width=120)):
        assert "WRONG: sums differ on rank 1" in rendered
    assert "results differ" in page(shown)
    assert "RESULTS DIFFER" in text(shown)
    assert "(overlap)" in shown.headline.sentence  # not the wrong one, though it is faster


def test_plain_bars_carry_spread_and_samples_for_readers_without_a_script() -> None:
    bar = Bar(label="x", parts=(Part("time", 2e6, "compute"),), spread_ns=1e5, samples=7, note="85 % of ideal")
    shown = report(Section(name="s", title="S", blocks=(Bars(name="b", caption="c", bars=(bar,)),)))
    assert "2.000 ms, IQR 0.100 ms, n = 7; 85 % of ideal" in page(shown)


def test_a_page_without_charts_carries_no_plotting_library() -> None:
    assert len(page(report(Section(name="s", title="S", blocks=(Paragraph(text="hello"),))))) < 60_000


# --- the demo ------------------------------------------------------------------------------------


def test_the_quick_demo_needs_no_torch_and_no_place_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "makeway", "demo", "--quick", "--json", "--out", str(tmp_path / "demo.html")],
        capture_output=True, text=True, check=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["job"]["why_not"], found["job"]["comparison"]) == ("left out by --quick", None)
    assert [each["device"] for each in found["maps"]] == ["A40", "A100", "MI250X"]
    assert len(found["ladder"]) == 5
    device = load_device("H100-SXM5-80GB")
    planned = plan(load_preset("gemm-ar", device), device)
    assert found["gpu"]["plan"] == plain(planned.controls)
    assert [point["gpus"] for point in found["cluster"]["points"]] == [16, 512, 16384]
    assert [line for line in done.stderr.splitlines() if " left: " in line]
    made = (tmp_path / "demo.html").read_text()
    assert "makeway makes room for communication on a busy GPU" in made
    assert len(made.encode()) < 6_000_000


@pytest.mark.parametrize(
    "arguments",
    [["demo", "--out"], ["bench", "--html"], ["bench", "--out"], ["simulate", "x", "--device", "A40", "--html"]],
)
def test_a_file_that_cannot_be_written_is_said_before_the_work(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*arguments, str(tmp_path / "none" / "page.html")]) == 2
    place = f"cannot write {tmp_path}/none/page.html: there is no directory {tmp_path}/none; create it, or name another"
    assert capsys.readouterr().err == f"makeway {arguments[0]}: {place}\n"
