"""Communication by evidence: which rule calls a kernel communication, which names none claims, and what to type."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.kineto_files import DATE_US, collective_call, gpu, kernel, write_kineto
from tests.recordings import RECORDINGS, needs_recordings

from makeway.cli.main import main
from makeway.decide.analysis.analyze import Analysis, analyze
from makeway.decide.analysis.many.analyze_job import analyze_job
from makeway.decide.analysis.many.map_rank import MapOptions
from makeway.read.traces.classify import CommNames, load_comm_names
from makeway.read.traces.kineto import read_kineto
from makeway.read.traces.nsys import read_nsys
from makeway.show.analysis import report
from makeway.show.report import report_of
from makeway.values.timeline import CommRule, Evidence

GEMM = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_128x128>(int)"
DISPATCH = "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)"
COMBINE = "void dpsk::ep::internode::combine<false, 4, __nv_bfloat16>(int4*)"


def analysed(path: Path, **options: object) -> Analysis:
    return analyze([path], what_if=False, jobs=1, **options)  # type: ignore[arg-type]


def notes(analysis: Analysis) -> str:
    return "\n".join(analysis.notes)


def rules(analysis: Analysis) -> dict[str | None, int]:
    return {item.rule.by if item.rule else None: item.kernels for item in analysis.communication.matched}


def test_expert_parallel_kernels_of_another_library_are_communication(tmp_path: Path) -> None:
    """A step of DualPipe on H800: dispatch hides behind a GEMM, combine is exposed for 3 ms."""
    events = [
        kernel(GEMM, DATE_US, 8_000, stream=7),
        kernel(DISPATCH, DATE_US + 1_000, 4_000, stream=27),
        kernel(COMBINE, DATE_US + 8_000, 3_000, stream=27),
    ]
    analysis = analysed(write_kineto(tmp_path / "t.json", events, world=64, gpus=[gpu("NVIDIA H800")]))
    (rank,) = analysis.ranks
    assert (rank.figures.comm_kernels, rank.figures.comm_ns, rank.figures.exposed_ns) == (2, 7_000_000, 3_000_000)
    (matched,) = analysis.communication.matched
    assert matched.rule == CommRule(by="name", library="deepep")
    assert matched.names == ("dpsk::ep::internode::dispatch", "dpsk::ep::internode::combine")
    assert "known to communicate" not in notes(analysis)


def test_a_job_of_many_ranks_without_known_communication_names_the_likeliest_and_the_option(tmp_path: Path) -> None:
    events = [
        kernel(GEMM, DATE_US, 8_000),
        kernel("void mine::tokens_a2a_push<8>(void*)", DATE_US + 8_000, 900, stream=9),
        kernel("router_dispatch_tokens", DATE_US + 9_000, 2_000, stream=9),
    ]
    file = write_kineto(tmp_path / "t.json", events, world=64)
    analysis = analysed(file)
    assert [(item.name, item.likely) for item in analysis.communication.unclaimed] == [
        ("mine::tokens_a2a_push", True),
        ("router_dispatch_tokens", False),
    ]
    option = "--comm-names 'mine::tokens_a2a_push|router_dispatch_tokens'"
    assert "the job has 64 ranks, but no kernel here is known to communicate; likeliest: mine::" in notes(analysis)
    assert option in notes(analysis)
    assert "though the job has 64 ranks" in report(analysis).headline.sentence
    own = analysed(file, comm_names="mine::tokens_a2a_push|router_dispatch_tokens")
    assert rules(own) == {"own-pattern": 2}
    assert own.ranks[0].figures.exposed_ns == 2_900_000


def test_the_verdict_says_first_that_communication_is_not_recognised_even_where_the_gpu_is_mostly_idle(
    tmp_path: Path,
) -> None:
    events = [kernel("gemm", 0, 10), kernel("mine::tokens_a2a_push", 900, 10)]
    path = write_kineto(tmp_path / "rank0.json", events, world=64)
    sentence = "No communication recognised in the recorded 910\N{NO-BREAK SPACE}us, though the job has 64 ranks"
    assert report_of(analysed(path)).headline.sentence == sentence
    job = analyze_job([path], options=MapOptions(cached=False), jobs=1)
    assert job is not None
    assert report_of(job).headline.sentence == sentence
    assert job.notes[0] == analysed(path).notes[0]


def test_a_single_rank_without_communication_is_no_cause_for_alarm(tmp_path: Path) -> None:
    analysis = analysed(write_kineto(tmp_path / "t.json", [kernel("combine_kernel", DATE_US, 10)], world=1))
    assert not analysis.communication.missing
    assert report(analysis).headline.sentence.startswith("No communication in")


def test_collective_arguments_recorded_with_a_kernel_are_evidence(tmp_path: Path) -> None:
    args: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "dtype": "Float",
        "Process Group Name": "0",
    }
    events = [kernel(GEMM, DATE_US, 10), kernel("vendor_reduction_17", DATE_US + 10, 5, **args)]
    timeline = read_kineto(write_kineto(tmp_path / "t.json", events), comm=CommNames(patterns=()))
    (span,) = timeline.of("comm")
    assert (span.name, span.rule) == ("vendor_reduction_17", CommRule(by="metadata"))
    assert span.exchange is not None
    assert (span.exchange.kind, span.exchange.in_bytes) == ("all-reduce", 4096)


def test_a_kernel_that_a_collective_call_launched_is_communication(tmp_path: Path) -> None:
    """Before PyTorch 2.2 only the host's record has the arguments; the operator's number joins the two."""
    events = [
        kernel(GEMM, DATE_US, 10, **{"External id": 41}),
        collective_call(42, DATE_US + 1, "reduce_scatter_tensor_coalesced"),
        kernel("vendor_scatter", DATE_US + 10, 5, stream=20, **{"External id": 42}),
        kernel("void c10d::checkForNaN<float>(float*, unsigned long)", DATE_US + 9, 1, **{"External id": 42}),
    ]
    analysis = analysed(write_kineto(tmp_path / "t.json", events))
    assert rules(analysis) == {"record_param_comms": 1}
    assert analysis.communication.matched[0].names == ("vendor_scatter",)
    assert analysis.ranks[0].figures.comm_ns == 5_000


def test_what_the_user_says_wins_over_all_evidence(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[[compute]]\nmatch = '^vendor_'\n")
    metadata: dict[str, Any] = {"Collective name": "allreduce"}
    events = [
        collective_call(42, DATE_US),
        kernel("vendor_a", DATE_US, 5, **{"External id": 42}),
        kernel("vendor_b", DATE_US + 10, 5, **metadata),
    ]
    file = write_kineto(tmp_path / "t.json", events)
    assert rules(analysed(file)) == {"record_param_comms": 1, "metadata": 1}
    assert rules(analysed(file, comm_names=own)) == {}


def test_the_json_document_lists_rules_and_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [kernel(DISPATCH, DATE_US, 1_000), kernel("my_all_gather<8>", DATE_US + 2_000, 500)]
    file = write_kineto(tmp_path / "t.json", events, world=8)
    assert main(["analyze", str(file), "--json", "--no-what-if"]) == 0
    found = json.loads(capsys.readouterr().out)["communication"]
    names = ["dpsk::ep::internode::dispatch"]
    assert found["matched"] == [{"rule": "name", "library": "deepep", "names": names, "kernels": 1, "ms": 1.0}]
    assert found["unclaimed"] == [{"name": "my_all_gather", "kernels": 1, "ms": 0.5, "likely": True}]
    assert found["suggestion"] == "--comm-names 'my_all_gather'"


def test_a_hostile_name_never_reaches_the_suggested_command(tmp_path: Path) -> None:
    evil = "a2a'; rm -rf ~; '"
    analysis = analysed(write_kineto(tmp_path / "t.json", [kernel(evil, DATE_US, 5)], world=2))
    assert [item.name for item in analysis.communication.unclaimed] == [evil]
    assert analysis.communication.suggestion is None
    assert "rm -rf" not in notes(analysis)


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(float*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, dispatch_and_combine>>(int)",
        "flash_fwd_splitkv_combine_kernel",
        "cunn_SoftMaxForwardAllReduce",
        "void cub::DeviceReduceSingleTileKernel<dispatch>(int)",
        GEMM,
    ],
)
def test_kernels_of_one_gpu_are_no_candidates(tmp_path: Path, name: str) -> None:
    analysis = analysed(write_kineto(tmp_path / "t.json", [kernel(name, DATE_US, 5)]))
    assert analysis.communication.unclaimed == ()


def test_the_page_on_what_counts_names_every_rule_and_library() -> None:
    page = (Path(__file__).parents[2] / "docs" / "communication.md").read_text()
    libraries = {pattern.means.family for pattern in load_comm_names().patterns if pattern.means}
    assert [name for name in (*get_args(Evidence), *libraries) if f"`{name}`" not in page] == []


# --- Nsight: ranges that NCCL marks --------------------------------------------------------------


def test_a_kernel_launched_inside_an_nccl_call_is_communication(tmp_path: Path) -> None:
    file = tmp_path / "t.sqlite"
    thread = (7 << 24) | 1
    with sqlite3.connect(file) as db:
        db.executescript(
            """
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'vendor_kernel'), (3, 'ncclAllReduce'), (4, 'ncclCommCount');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
                streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, correlationId INTEGER,
                globalTid INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER,
                globalTid INTEGER);
            """
        )
        kernels = [(100, 200, 1, 1), (210, 300, 2, 2), (310, 400, 3, 2)]
        for start, end, correlation, name in kernels:
            row = (start, end, 0, 1, 7, correlation, thread, name)
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            db.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)",
                (start - 90, start - 80, correlation, thread),
            )
        for start, end, text in [
            (119, 125, 3),
            (218, 230, 4),
        ]:  # around the second launch; the third is in no collective
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, ?, ?)", (start, end, text, thread))
    db.close()
    spans = read_nsys(file, comm=CommNames(patterns=())).spans
    assert [(span.kind, span.rule) for span in spans] == [
        ("compute", None),
        ("comm", CommRule(by="nvtx-range", library="nccl")),
        ("compute", None),
    ]
    assert spans[1].exchange is not None
    assert spans[1].exchange.kind == "all-reduce"


# --- real recordings, with the patterns switched off -----------------------------------------------


@needs_recordings
def test_ranges_that_nccl_marks_find_its_kernels_without_their_names() -> None:
    spans = read_nsys(RECORDINGS / "nsys-ai/mfu_2gpu_before.sqlite", comm=CommNames(patterns=())).spans
    matched = Counter(span.name.partition("(")[0] for span in spans if span.kind == "comm")
    assert matched == {"ncclDevKernel_SendRecv": 64}  # of 66: two were launched before the recording began


@needs_recordings
@pytest.mark.parametrize(
    ("file", "kernels"),
    [
        ("hta/a100_w2_rank0_collective_args.json.gz", 21),  # of 21
        ("tracelens/mi300x_w8_rank0_rccl.json.gz", 12),  # of 17: five carry no arguments
        ("tracelens/b200_w8_rank0_vllm.json.gz", 1),  # of 74: symmetric memory has no collective call
    ],
)
def test_recorded_arguments_find_nccl_kernels_and_no_others(file: str, kernels: int) -> None:
    spans = read_kineto(RECORDINGS / file, comm=CommNames(patterns=())).spans
    matched = Counter(span.name.startswith("nccl") for span in spans if span.kind == "comm")
    assert matched == {True: kernels}


@needs_recordings
@pytest.mark.parametrize(
    "file",
    ["hta/a100_w8_rank3.json.gz", "tracelens/b200_w8_rank0_vllm.json.gz", "hta/v100_w1_ns_resolution_no_nccl.json.gz"],
)
def test_no_compute_kernel_of_these_recordings_is_a_candidate(file: str) -> None:
    """Recommender, inference and vision kernels, tensor library and compiler output: thousands of real names."""
    assert analysed(RECORDINGS / file).communication.unclaimed == ()
