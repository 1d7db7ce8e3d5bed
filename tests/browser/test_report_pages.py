"""Pages of predictions, plans and benches in a headless Chromium: charts, the SM picture, measured beside predicted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.browser.driving import OpenPage, eventually

from makeway.act.measure.experiment import Cell, Experiment, Experiments
from makeway.act.measure.outcome import Bench, VariantResult
from makeway.decide.planning.planner import plan
from makeway.model.presets import load_preset
from makeway.model.residency import blocks_beside, residency
from makeway.model.simulate.predict import simulate
from makeway.show.blocks import Report, Room
from makeway.show.page import page as page_of
from makeway.show.prediction import room_of
from makeway.show.report import report_of
from makeway.values.collective import load_footprint
from makeway.values.control import CommPriority, SmemPad
from makeway.values.device import Device, load_device
from makeway.values.kernel import KernelResources
from makeway.values.receipt import Receipt
from makeway.values.timeline import Rank, Span, Timeline

if TYPE_CHECKING:
    from playwright.sync_api import Page

NASTY = "gemm</script><script>document.title='broken'</script>"
MS = 1_000_000


def plan_of(device: Device) -> Report:
    chosen = plan(load_preset("gemm-ar", device), device, timelines=True)
    return report_of(chosen, arguments="makeway plan")


def measured() -> Bench:
    """Three variants of two operations, with a plan that gains."""
    times = {"sequential": 30.0, "overlap": 24.0, "overlap_torchrun": 22.0, "planned": 17.0}
    spans = []
    for at, name in enumerate(times):
        start = at * 100 * MS
        spans += [
            Span(name=f"{name}: {NASTY}", kind="compute", stream="compute", start_ns=start, end_ns=start + 15 * MS),
            Span(name=f"{name}: a-r", kind="comm", stream="comm", start_ns=start + 5 * MS, end_ns=start + 20 * MS),
        ]
    receipt = Receipt(control=CommPriority(), status="applied", detail="nice 5", carrier="torch on CPU")
    return Bench(
        on="cpu", ranks=2, workload="gemm-ar", origin="measured", compute_ns=(15e6,), comm_ns=(15e6,),
        variants=tuple(
            VariantResult(
                name=name, times_ns=tuple(time * 1e6 + each * 2e5 for each in range(5)), threads=1,
                controls=(CommPriority(),) if name == "planned" else (), overlap_rate=0.5,
                receipts=(receipt,) if name == "planned" else (),
            )
            for name, time in times.items()
        ),
        choice="priority: clearly faster than overlap and overlap_torchrun", link="loopback",
        timeline=Timeline(spans=tuple(spans), origin="measured", ranks=(Rank(rank=0),)), notes=("small",),
    )  # fmt: skip


def experiment() -> Experiment:
    cells = tuple(
        Cell(
            grid=(x, y), t_sequential_ns=1e6, t_overlap_ns=8e5 + 1e4 * x + 5e3 * y, t_priority_ns=7e5, overlap_rate=0.4,
            overlap_rate_priority=0.8,
        )
        for x in (2, 8, 64) for y in (2, 8) if (x, y) != (64, 2)
    )  # fmt: skip
    return Experiment(workload="cb-ar", on="sim:A40", origin="predicted", tile=(64, 64, 32), n=1, cells=cells)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    where = tmp_path_factory.mktemp("pages")
    mi250x = load_device("MI250X")
    padded = simulate(load_preset("cb-ar", mi250x), mi250x, [SmemPad(16 * 1024)])
    reports = {
        "plan": plan_of(load_device("H100-SXM5-80GB")),
        "simulation": report_of(padded, arguments=f"makeway simulate {NASTY}"),
        "bench": report_of(measured(), arguments="makeway bench"),
        "experiment": report_of(Experiments(experiments=(experiment(),)), arguments="makeway bench cb-ar --grid paper"),
    }
    for name, report in reports.items():
        (where / f"{name}.html").write_text(page_of(report), encoding="utf-8")
    return {name: where / f"{name}.html" for name in reports}


@pytest.fixture(scope="module")
def file(pages: dict[str, Path]) -> Path:
    return pages["plan"]


KINDS = ("plan", "simulation", "bench", "experiment")


@pytest.mark.parametrize("kind", KINDS)
def test_every_page_fits_the_screen(open_page: OpenPage, pages: dict[str, Path], kind: str) -> None:
    page = open_page(pages[kind], width=390, dark=True, timeline=kind != "experiment")
    for width, theme in ((390, "dark"), (390, "light"), (1280, "light")):
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": 900})
        eventually(page, f"document.documentElement.scrollWidth <= {width}")
    assert page.locator("h1 .origin").inner_text() == ("measured" if kind == "bench" else "predicted")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_stays_below_six_megabytes_with_its_charts(pages: dict[str, Path], kind: str) -> None:
    size = pages[kind].stat().st_size
    assert size < 100_000 if kind == "experiment" else 4_000_000 < size < 6_000_000  # Plotly is most of it


def drawn_bars(page: Page) -> list[Any]:
    found: list[Any] = page.evaluate("[...document.querySelector('.chart').data[0].x]")
    return found


def test_plotly_draws_the_medians_the_spread_and_the_ideal(open_page: OpenPage, pages: dict[str, Path]) -> None:
    page = open_page(pages["bench"])
    assert drawn_bars(page) == pytest.approx([30.4, 24.4, 22.4, 17.4])
    assert page.evaluate("document.querySelector('.chart').data[0].error_x.array.length") == 4
    assert page.evaluate("document.querySelector('.chart').layout.shapes[0].x0") == 15.0
    assert page.locator(".chart .barlayer path").count() >= 4
    assert page.locator(".plain-chart .bar").count() == 4  # for screen readers, and for pages without Plotly


def test_heat_maps_show_every_cell_and_leave_gaps_where_nothing_ran(
    open_page: OpenPage, pages: dict[str, Path]
) -> None:
    page = open_page(pages["experiment"], timeline=False)
    assert page.locator("table.heat").count() == 4
    cells = page.locator("table.heat").first.locator("tbody td")
    assert cells.all_inner_texts() == ["0.83", "0.89", "–", "0.86", "0.92", "1.48"]
    colours = cells.evaluate_all("(cells) => cells.map((cell) => getComputedStyle(cell).backgroundColor)")
    assert len(set(colours)) == 6


def test_variants_are_compared_from_their_own_start(open_page: OpenPage, pages: dict[str, Path]) -> None:
    page = open_page(pages["bench"])
    assert page.locator("details.rank summary").all_inner_texts() == [
        f"{name} (measured)" for name in ("sequential", "overlap", "overlap_torchrun", "planned")
    ]
    assert page.evaluate("+document.querySelector('[data-timeline]').dataset.time") == pytest.approx(20 * MS * 1.02)


# --- the picture of an SM ------------------------------------------------------------------------


def drawn_room(page: Page) -> tuple[int, int, set[str]]:
    box = page.locator("[data-room]")
    blocks, beside, binds = (box.get_attribute(f"data-{name}") for name in ("blocks", "beside", "binds"))
    assert blocks is not None
    assert beside is not None
    assert binds is not None
    return int(blocks), int(beside), set(binds.split())


def test_the_slider_redraws_residency_at_once(open_page: OpenPage, pages: dict[str, Path]) -> None:
    page = open_page(pages["simulation"])
    room = room_of(load_preset("cb-ar", load_device("MI250X")), load_device("MI250X"), [SmemPad(16 * 1024)])
    assert room is not None
    blocks, beside, binds = drawn_room(page)
    assert (blocks, beside, "smem" in binds) == (2, 0, True)
    page.get_by_role("button", name="no pad").click()
    assert drawn_room(page)[0] == 4
    assert page.locator(".room-bar").first.locator(".compute").count() == 4
    page.locator(".room input").evaluate("(box) => { box.value = box.max; box.dispatchEvent(new Event('input')); }")
    assert drawn_room(page)[0] == 1
    assert "1 compute block (bound by shared memory)" in page.locator(".room output").inner_text()


def test_the_page_and_makeway_residency_agree_on_200_random_kernels(
    open_page: OpenPage, pages: dict[str, Path], draw: random.Random
) -> None:
    page = open_page(pages["simulation"])
    devices = [load_device(name) for name in ("A40", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI250X")]
    for _ in range(200):
        device, asked = random_room(draw, devices)
        padded = asked.compute.padded(asked.pad_bytes)
        alone = residency(device, padded)
        comm = asked.comm
        assert comm is not None
        expected = (alone.blocks, blocks_beside(device, padded, alone.blocks, comm) if alone.blocks else None)
        found = page.evaluate("([data, pad]) => roomAnswer(data, pad)", [room_data(asked), asked.pad_bytes])
        assert (found["blocks"], found["beside"] if alone.blocks else None) == expected, asked
        assert set(found["binds"]) == {resource.value for resource in alone.binds}, asked


def room_data(room: Room) -> Any:
    return msgspec.to_builtins({"sm": room.sm, "compute": room.compute, "comm": room.comm})


def random_room(draw: random.Random, devices: list[Device]) -> tuple[Device, Room]:
    device = draw.choice(devices)
    nvidia = device.vendor == "nvidia"
    footprint = load_footprint("nccl-2.32.3/ring-simple" if nvidia else "rccl-5.4.3/generic", device.arch)
    comm = footprint.block
    assert comm is not None
    compute = KernelResources(
        threads=draw.randint(1, 1024),
        registers_per_thread=draw.randint(8, device.sm.max_registers_per_thread),
        smem_bytes=draw.randint(0, device.sm.smem_block_bytes),
    )
    comm = replace(comm, threads=draw.choice([64, 160, 288, 544]))
    pad = draw.choice([0, draw.randint(0, device.sm.smem_block_bytes - compute.smem_bytes)])
    return device, Room(
        name="r", device=device.name, sm=device.sm, compute_name="k", compute=compute, comm_name="c", comm=comm,
        pad_bytes=pad,
    )  # fmt: skip
