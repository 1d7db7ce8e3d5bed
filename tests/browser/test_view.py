"""The live page in a headless Chromium: a slider, a dropped trace, a plan, a tuned job, hostile names."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser.driving import keep_picture
from tests.browser.test_page_access import spoken
from tests.kineto_files import gpu, kernel
from tests.unit.test_tuning import Job
from tests.viewing import Viewing, environment, viewing

from makeway.act.launch.step_files import Block, StepLogFile, write_settings
from makeway.act.launch.tune_run import tune_settings
from makeway.act.launch.tuning import Tuning
from makeway.cli.main import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
NASTY = "gemm</script><script>document.title='broken'</script><img src=x onerror=document.title='broken'>"
WAIT_MS = 120_000


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewing]:
    with viewing(tmp_path_factory.mktemp("view")) as running:
        yield running


@pytest.fixture
def open_view(browser: Browser, view: Viewing) -> Iterator[Callable[..., Page]]:
    """Opens the page; it must report no error, and ask nobody but its server."""
    problems: list[str] = []
    asked: list[str] = []
    contexts = []

    def opened(running: Viewing = view, *, width: int = 1280, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(running.url)
        settled(page)
        if running is view:
            page.locator("#tab-explore").click()  # other tests have left things open
        return page

    yield opened
    for context in contexts:
        context.close()
    refused = (
        "Failed to load resource: the server responded with a status of 400"  # how Chromium notes a wrong question
    )
    gone = "net::ERR_"  # a page outlives its server by a moment
    assert [problem for problem in problems if refused not in problem and gone not in problem] == []
    assert [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []


def settled(page: Page) -> None:
    """Wait until the form's last state has its whole answer."""
    page.wait_for_selector("#answer[data-stage=whole]:not(.old)", state="attached")


def change(page: Page, act: Callable[[], object]) -> None:
    """Change the form, and wait for the answer to that."""
    before = int(page.get_attribute("#answer", "data-number") or 0)
    act()
    for _ in range(WAIT_MS // 20):
        number, stage = (page.get_attribute("#answer", f"data-{name}") for name in ("number", "stage"))
        if int(number or 0) > before and stage == "whole":
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"no answer to the change: {page.locator('#problem').inner_text()}")


def document(page: Page) -> dict[str, Any]:
    answer: dict[str, Any] = page.evaluate("document.getElementById('again').document")
    return answer


def printed(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


# --- explore -----------------------------------------------------------------------------------------


def test_a_slider_changes_the_answer_and_its_digits_are_those_of_simulate(
    open_view: Callable[..., Page], capsys: pytest.CaptureFixture[str]
) -> None:
    page = open_view()
    first = page.locator("#headline").inner_text()
    assert document(page) == printed(capsys, page.locator("#command").inner_text())
    change(page, lambda: page.locator("#f-priority").check())
    slider = page.get_by_label("comm blocks")
    slider.focus()
    change(page, lambda: page.keyboard.press("PageUp"))
    blocks = int(slider.input_value())
    assert blocks > 1
    command = page.locator("#command").inner_text()
    assert f"--control priority --control comm-blocks={blocks}" in command
    answer = document(page)
    assert answer == printed(capsys, command)
    assert page.locator("#headline").inner_text() != first
    assert page.locator("#stage").inner_text() == f"settled: {answer['engine']} engine"
    shown = page.locator("#sections [data-name=time] .bars").inner_text()
    assert f"{answer['t_ms']:,.3f} ms" in shown
    assert f"{100 * answer['share_of_ideal']:.0f}" in page.locator("#figures").inner_text()
    lines = page.locator("#ledger-table tbody tr").count()
    assert lines == len(answer["ledger"])
    assert sum(line["ms"] for line in answer["ledger"]) == pytest.approx(answer["t_ms"], abs=2e-6)


def test_block_device_spread_and_policy_are_asked_for_as_on_the_command_line(
    open_view: Callable[..., Page], capsys: pytest.CaptureFixture[str]
) -> None:
    page = open_view()
    change(page, lambda: page.locator("#f-device").select_option("A100-SXM4-80GB"))
    page.locator("#f-registers").focus()
    change(page, lambda: page.keyboard.press("ArrowLeft"))
    page.locator("#f-jitter").focus()
    change(page, lambda: page.keyboard.press("ArrowRight"))
    change(page, lambda: page.locator("#f-dispatch").select_option("backfill"))
    command = page.locator("#command").inner_text()
    assert (
        "--device A100-SXM4-80GB --block threads=256,registers=169,smem=65536 --dispatch backfill --jitter 0.07"
        in command
    )
    assert document(page) == printed(capsys, command)
    change(page, lambda: page.locator("#reset").click())
    assert page.locator("#command").inner_text() == "makeway simulate gemm-ar --device A100-SXM4-80GB"


def test_what_cannot_run_is_said_and_the_page_goes_on(open_view: Callable[..., Page]) -> None:
    page = open_view()
    page.locator("#f-tile").fill("64x64")
    page.wait_for_selector("#problem:not([hidden])")
    assert "cannot read tile '64x64'" in page.locator("#problem").inner_text()
    change(page, lambda: page.locator("#f-tile").fill(""))
    assert page.locator("#problem").is_hidden()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_the_screen_and_can_be_heard(open_view: Callable[..., Page], width: int) -> None:
    page = open_view(width=width, dark=width == 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep_picture(page, f"view-{width}")
    named = {"button", "slider", "combobox", "checkbox", "tab", "textbox", "application", "image"}
    nodes = spoken(page)
    assert {"slider", "combobox", "checkbox", "tab"} <= {node["role"] for node in nodes}
    assert [node for node in nodes if node["role"] in named and not node["name"].strip()] == []


# --- open --------------------------------------------------------------------------------------------


def drop(page: Page, name: str, content: str) -> None:
    """Drop a file on the page as a person does."""
    data = page.evaluate_handle(
        """([name, content]) => {
            const data = new DataTransfer();
            data.items.add(new File([content], name));
            return data;
        }""",
        [name, content],
    )
    page.dispatch_event("body", "drop", {"dataTransfer": data})


def test_a_dropped_trace_is_analysed_and_its_names_stay_text(open_view: Callable[..., Page]) -> None:
    page = open_view()
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [kernel(NASTY, 0, 500), kernel(nccl, 100, 900, stream=20), kernel(f"{NASTY}2", 1100, 300)]
    trace = {"schemaVersion": 1, "deviceProperties": [gpu()], "traceEvents": events}
    drop(page, "<img src=x onerror=document.title='broken'>.json", json.dumps(trace))
    frame = page.frame_locator("#opened > div:not([hidden]) iframe")
    frame.locator("h1").wait_for()
    assert "exposed" in frame.locator("h1").inner_text()
    assert NASTY in frame.locator("#ledger-table").inner_text() + (
        frame.locator("#ledger-table td[title]").first.get_attribute("title") or ""
    )
    inner = [one for one in page.frames if one.parent_frame][-1]
    assert inner.evaluate("self.origin") == "null"  # a sandbox: it can reach neither the page nor the server
    assert inner.evaluate("document.title").startswith("makeway: ")
    assert page.title() == "makeway view"
    page.get_by_role("button", name="close ").last.click()
    page.wait_for_selector("#opened > div:not([hidden]) iframe", state="detached")


def test_a_dropped_plan_and_result_set_the_form(
    open_view: Callable[..., Page], capsys: pytest.CaptureFixture[str]
) -> None:
    page = open_view()
    result = printed(capsys, "makeway simulate gemm-ar --device A40 --control priority")
    drop(page, "result.json", json.dumps(result))
    frame = page.frame_locator("#opened > div:not([hidden]) iframe")
    assert result["verdict"] in frame.locator("h1").inner_text().replace("\xa0", " ")
    change(page, lambda: page.get_by_role("button", name="explore this").click())
    assert document(page)["t_ms"] == result["t_ms"]
    drop(page, "plan.toml", 'version = 2\n[[control]]\nkind = "pad"\npad_bytes = 4096\nkernel = "gemm*"\n')
    page.get_by_role("button", name="explore with these controls").click()
    page.wait_for_selector("#others button")
    assert page.locator("#others button").inner_text() == "pad=4KiB:gemm* ×"
    settled(page)


def test_a_file_that_is_nothing_is_one_message(open_view: Callable[..., Page]) -> None:
    page = open_view()
    drop(page, "letter.txt", "Dear reader")
    page.wait_for_selector("#opened .problem")
    assert "letter.txt holds no trace: it starts with 'Dear reader'" in page.locator("#opened .problem").inner_text()


# --- watch -------------------------------------------------------------------------------------------


def test_a_job_that_is_tuned_is_watched_as_it_goes(
    browser: Browser, open_view: Callable[..., Page], tmp_path: Path
) -> None:
    settings = tune_settings(share=0.3, job_steps=600)
    count = len(settings.settings)
    job = Job(Tuning(count, share=0.3, job_steps=600, seed=0))
    job.run(600, lambda step: [1.0, 0.6, *[1.3] * (count - 2)], noise=0.01, seed=1)  # the first candidate is faster
    receipts = tmp_path / "receipts"
    receipts.mkdir()
    write_settings(receipts / "at-steps.json", settings)
    log = StepLogFile(receipts, rank=0, ranks=2)

    def goes_on(blocks: list[Block]) -> None:
        log.log.blocks, log.log.steps = blocks, sum(block.count for block in blocks)
        log.write()

    goes_on([])
    with viewing(tmp_path / "tmp", receipts) as running:
        page = open_view(running)
        page.wait_for_selector(".watched[data-steps]")
        assert "no step is measured yet" in page.locator(".watched h1").inner_text()
        goes_on(job.blocks[:3])
        page.wait_for_selector(f".watched[data-steps='{sum(block.count for block in job.blocks[:3])}']")
        assert "as it is" in page.locator(".watched h1").inner_text()
        goes_on(job.blocks)
        page.wait_for_selector(f".watched[data-steps='{sum(block.count for block in job.blocks)}']")
        assert "copy-engine is in force" in page.locator(".watched h1").inner_text()
        assert "adopted" in page.locator(".watched #decisions").inner_text()
        assert page.locator(".watched .stage").inner_text() == "running"
        keep_picture(page, "view-watch")


def test_what_was_opened_on_the_command_line_is_shown(
    browser: Browser, open_view: Callable[..., Page], tmp_path: Path
) -> None:
    recording = ROOT / "examples" / "recordings" / "tp-llama-70b"
    with viewing(tmp_path / "tmp", recording) as running:
        page = open_view(running)
        frame = page.frame_locator("#opened > div:not([hidden]) iframe")
        frame.locator("h1").wait_for()
        change(page, lambda: page.get_by_role("button", name="explore this").click())
        assert document(page)["workload"].endswith("of tp-llama-70b")
        assert page.locator("#f-device").is_disabled()
        assert os.listdir(running.place)
        keep_picture(page, "view-recording")


PROGRAM = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(700):
    model(torch.randn(16, 512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_real_job_under_run_tune_is_found_and_watched(
    browser: Browser, open_view: Callable[..., Page], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'makeway[torch]'")
    program, place = tmp_path / "train.py", tmp_path / "tmp"
    program.write_text(PROGRAM)
    tune = [sys.executable, "-m", "makeway", "run", "--tune", "--tune-share", "0.5", "--job-steps", "700", "--"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    with viewing(place) as running:
        page = open_view(running)
        with subprocess.Popen([*tune, sys.executable, *launch], env=environment(place)) as job:
            page.get_by_role("button", name="which is being tuned").click()
            page.wait_for_selector(".watched[data-steps]:not([data-steps='0'])")
            assert page.locator(".watched .stage").inner_text() == "running"
            assert page.locator(".watched .bars").count() == 1
            keep_picture(page, "view-tune")
            assert job.wait(300) == 0
