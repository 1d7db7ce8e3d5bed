"""`makeway analyze`: the contract for scripts, what it says of real traces, and wrong input."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.recordings import RECORDINGS, needs_recordings

import makeway
from makeway.cli.main import main
from makeway.show.blocks import Bars, Table
from makeway.show.json import json as to_json

pytestmark = needs_recordings
TRACES = RECORDINGS
A100_W8 = TRACES / "hta" / "a100_w8_rank3.json.gz"
MEGATRON = TRACES / "astra-megatron-tp8"
STRAGGLER = TRACES / "torchrec" / "straggler_sleep_w4"
RANK_KEYS = (
    "rank", "device", "kernels", "comm_kernels", "compute_ms", "comm_ms", "overlap_ms", "exposed_ms", "idle_ms",
    "span_ms", "overlap_percent",
)  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main(["analyze", *map(str, arguments), "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["analyze", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert captured.err.startswith("makeway analyze: ")
    return captured.err


def test_the_document_keeps_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, A100_W8)
    assert all(key in document["ranks"][0] for key in RANK_KEYS)
    assert document["schema"] == "makeway/analysis/1"
    assert set(document) == {
        "schema", "makeway", "verdict", "ranks", "ledger", "communication", "collectives", "spans", "occupancy",
        "causes", "longest_causes", "slowdown", "slowdown_refused", "slowdown_coverage", "advice", "what_if", "notes",
    }  # fmt: skip
    assert set(document["collectives"]) >= {"matched", "transfer_ms", "waiting_ms", "straggler_rank"}
    assert document["collectives"]["transfer_ms"] is None  # one rank alone cannot tell


def test_a_delay_beside_a_kernel_of_64_blocks_is_a_dependency_and_not_a_lack_of_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = answer(capsys, A100_W8)
    late = {cause["kind"]: cause for cause in document["causes"] if cause["of"] == "late"}
    assert late["dependency"]["delay_ms"] > 19.7
    assert late["dependency"]["time_ms"] == 0  # queued behind its data: nothing is lost
    assert "64 blocks on 108 SMs" in late["dependency"]["evidence"]
    assert sum(cause["time_ms"] for kind, cause in late.items() if kind == "no-room") < 0.1


def test_megatron_waits_far_longer_than_it_transfers(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, MEGATRON)
    collectives = document["collectives"]
    assert collectives["matched"] == 84
    assert collectives["transfer_ms"] == pytest.approx(50.1, abs=0.05)
    comm = [rank["comm_ms"] for rank in document["ranks"]]
    assert 241 < min(comm) < max(comm) < 496
    named = [item["text"] for item in document["advice"] if item["text"].startswith("find out")]
    assert named[:2] == ["find out why rank 0 arrives late", "find out why rank 6 arrives late"]
    assert "mostly waiting for ranks 0 and 6" in document["verdict"]
    assert abs(document["what_if"]["replay_error"]) < 0.05


def test_a_sleeping_rank_is_named_though_it_recorded_one_collective_less(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys, STRAGGLER)
    assert document["collectives"]["straggler_rank"] == 2
    assert document["collectives"]["matched"] == 12
    assert document["causes"][0]["kind"] == "straggler"


def test_causes_of_exposed_time_add_up_on_every_bundled_run(capsys: pytest.CaptureFixture[str]) -> None:
    for path in (A100_W8, STRAGGLER, TRACES / "param-dlrm8", TRACES / "torchrec" / "a2a_opt5_w4"):
        document = answer(capsys, path, "--no-what-if")
        exposed = sum(rank["exposed_ms"] for rank in document["ranks"])
        causes = sum(cause["time_ms"] for cause in document["causes"] if cause["of"] != "slowed")
        assert causes == pytest.approx(exposed, abs=1e-3)


def test_the_recorded_steps_are_replayed_within_a_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    for path in (A100_W8, TRACES / "torchrec" / "a2a_opt5_w4", TRACES / "tracelens" / "b200_w8_rank0_vllm.json.gz"):
        replay = answer(capsys, path)["what_if"]
        assert replay["available"]
        assert abs(replay["replay_error"]) < 0.10


def test_one_step_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    path = TRACES / "torchrec" / "a2a_opt5_w4" / "rank0.json.gz"
    whole = answer(capsys, path)["ranks"][0]
    assert len(whole["steps"]) == 3
    number = whole["steps"][1]["step"]
    one = answer(capsys, path, "--step", number)["ranks"][0]
    assert one["compute_ms"] == pytest.approx(whole["steps"][1]["compute_ms"])
    assert one["kernels"] < whole["kernels"]
    assert "has no step 99" in refused(capsys, path, "--step", "99")
    assert "--step takes" in refused(capsys, path, "--step", "first")


def test_text_begins_with_the_one_number_that_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(A100_W8)]) == 0
    captured = capsys.readouterr()
    text = captured.out.replace("\N{NO-BREAK SPACE}", " ")
    assert text.startswith("87.9 ms of communication is exposed: 19 % of the recorded 465 ms (imported).\n")
    assert max(map(len, text.splitlines())) <= 80
    assert "give the traces of all ranks" in captured.err


def test_text_shows_slow_downs_and_verbose_text_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    path = TRACES / "torchrec" / "a2a_opt5_w4"
    whole = answer(capsys, path, "--no-what-if")
    worst = whole["slowdown"][0]
    assert main(["analyze", str(path), "--no-what-if"]) == 0
    brief = capsys.readouterr().out
    assert f"{worst['ratio']:.2f}" in brief
    assert f"{worst['cost_ms']:.3f}" in brief
    assert main(["analyze", str(path), "--no-what-if", "--verbose"]) == 0
    verbose = capsys.readouterr().out
    for rank in whole["ranks"]:
        for step in rank["steps"]:
            assert f"{step['exposed_ms']:,.3f}" in verbose
    assert f"{whole['longest_causes'][-1]['time_ms']:,.3f}" in verbose


def test_a_threshold_makes_it_a_gate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(A100_W8), "--fail-if", "exposed>20%", "--no-what-if"]) == 0
    capsys.readouterr()
    assert main(["analyze", str(A100_W8), "--fail-if", "exposed>18%", "--no-what-if"]) == 1
    assert "makeway analyze: rank 3 has exposed 18.92%: exposed>18%" in capsys.readouterr().err
    document = answer(capsys, A100_W8, "--fail-if", "overlap<50%", "--no-what-if", code=1)
    assert document["threshold"]["missed"][0]["rank"] == 3
    assert "cannot read threshold 'exposed'" in refused(capsys, A100_W8, "--fail-if", "exposed")
    assert "did you mean 'exposed'?" in refused(capsys, A100_W8, "--fail-if", "exposd>1%")


def test_a_trace_without_device_properties_asks_for_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    path = TRACES / "hta" / "w128_sampled_rank0.json.gz"
    document = answer(capsys, path)
    assert document["ranks"][0]["device"] is None
    assert document["ranks"][0]["exposed_ms"] == pytest.approx(336.983, abs=0.01)
    assert any("pass --device" in note for note in document["notes"])
    assert not document["what_if"]["available"]
    assert answer(capsys, path, "--device", "A100-SXM4-80GB")["ranks"][0]["occupancy"] is not None
    assert "did you mean" in refused(capsys, path, "--device", "A100-SXM4-80G")


def test_an_unknown_gpu_keeps_its_figures_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = gzip.decompress((STRAGGLER / "rank0.json.gz").read_bytes()).decode()
    (tmp_path / "rank0.json").write_text(text.replace("Tesla V100-SXM2-16GB", "Z9000").replace('"computeMajor"', '"x"'))
    document = answer(capsys, tmp_path)
    assert any("no limits known for GPU 'Z9000'" in note for note in document["notes"])
    assert document["ranks"][0]["exposed_ms"] > 3000


def test_an_unknown_gpu_whose_limits_the_trace_carries_is_built_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = gzip.decompress((STRAGGLER / "rank0.json.gz").read_bytes()).decode()
    (tmp_path / "rank0.json").write_text(text.replace("Tesla V100-SXM2-16GB", "Z9000"))
    document, known = answer(capsys, tmp_path), answer(capsys, STRAGGLER / "rank0.json.gz")
    assert any("Built from the trace, which carries the limits of 'Z9000'" in note for note in document["notes"])
    assert document["ranks"][0]["occupancy"] == known["ranks"][0]["occupancy"]


def test_two_files_of_one_rank_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        (tmp_path / name).write_bytes((STRAGGLER / "rank0.json.gz").read_bytes())
    assert "both say they are rank 0" in refused(capsys, tmp_path)


def test_a_stray_file_in_a_directory_is_passed_over_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0.json.gz").write_bytes((STRAGGLER / "rank0.json.gz").read_bytes())
    (tmp_path / "notes.txt").write_text("remember the milk")
    document = answer(capsys, tmp_path)
    assert [rank["rank"] for rank in document["ranks"]] == [0]
    assert any("notes.txt" in note for note in document["notes"])


def test_a_trace_cut_short_is_analysed_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (STRAGGLER / "rank0.json.gz").read_bytes()
    (tmp_path / "rank0.json.gz").write_bytes(whole[: len(whole) * 3 // 4])
    document = answer(capsys, tmp_path)
    assert 0 < document["ranks"][0]["kernels"] <= 205
    assert any("cut short" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"{}", "holds no trace"),
        (b'{"answer": 42}', "holds no trace"),
        (b'{"traceEvents": []}', "no GPU activity"),
        (b"\x7fELF", "holds no trace"),
        (b"SQLite format 3\0 but not really", "database"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_message(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert words in refused(capsys, path)


def test_missing_paths_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere" in refused(capsys, tmp_path / "nowhere")
    assert str(tmp_path) in refused(capsys, tmp_path)


def test_hta_compatible_gives_htas_figures(capsys: pytest.CaptureFixture[str]) -> None:
    path = TRACES / "hta" / "a100_w2_rank0_collective_args.json.gz"
    assert answer(capsys, path)["ranks"][0]["overlap_percent"] == pytest.approx(15.61, abs=0.01)
    assert answer(capsys, path, "--hta-compatible")["ranks"][0]["overlap_percent"] == pytest.approx(15.14, abs=0.01)


def test_pages_and_traces_are_written_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "why.html", tmp_path / "why.json"
    assert main(["analyze", str(STRAGGLER), "--html", str(page), "--perfetto", str(trace)]) == 0
    assert "<html" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["why.html", "why.json"]
    capsys.readouterr()
    assert "nowhere" in _error(capsys, STRAGGLER, "--perfetto", tmp_path / "nowhere" / "x.json")


def _error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["analyze", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_several_ranks_are_read_by_several_processes_with_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, MEGATRON, "--jobs", "1") == answer(capsys, MEGATRON, "--jobs", "2")


def test_analysis_does_not_load_what_it_does_not_need() -> None:
    heavy = "{'numpy', 'torch', 'plotly'}"
    code = f"import sys, makeway.cli.analyze; print(sorted({{m.split('.')[0] for m in sys.modules}} & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_library_answers_like_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    analysis = makeway.analyze([STRAGGLER], what_if=False, keep_spans=True)
    document = answer(capsys, STRAGGLER, "--no-what-if")
    assert json.loads(to_json(makeway.report_of(analysis))) == document
    again = makeway.analysis_of(analysis.timelines, what_if=False)
    assert json.loads(to_json(makeway.report_of(again)))["ranks"] == document["ranks"]
    assert makeway.analyze([STRAGGLER], what_if=False).timelines == ()


def test_the_step_with_most_exposed_communication_can_be_planned_for() -> None:
    analysis = makeway.analyze([A100_W8], what_if=False)
    assert analysis.step is not None
    assert analysis.step.device.name == analysis.devices[0]
    assert analysis.no_what_if == "not requested"
    without_limits = makeway.analyze([TRACES / "hta" / "w128_sampled_rank0.json.gz"])
    assert (without_limits.step, without_limits.devices) == (None, ())
    assert without_limits.no_what_if == without_limits.no_step == "the limits of its GPU are not known"


@pytest.mark.parametrize("path", [A100_W8, MEGATRON, TRACES / "torchrec" / "a2a_opt5_w4"], ids=lambda path: path.name)
def test_every_number_of_a_block_is_in_the_data_with_the_same_digits(path: Path) -> None:
    report = makeway.report_of(makeway.analyze([path], keep_spans=True))
    known = set(_numbers(report.data)) | {100 * number for number in _numbers(report.data)}
    blocks = [block for section in report.sections for block in section.blocks]
    cells = [cell for block in blocks if isinstance(block, Table) for row in block.rows for cell in row]
    shown = [cell.text.partition(" ")[0].replace(",", "") for cell in cells if cell.value is not None]
    bars = [
        part.amount / 1e6 for block in blocks if isinstance(block, Bars) for bar in block.bars for part in bar.parts
    ]
    assert len(shown) > 100
    for digits in range(4):
        written = {f"{number:.{digits}f}" for number in known}
        assert not {text for text in shown if len(text.partition(".")[2]) == digits} - written
    assert {f"{time:.6f}" for time in bars} <= {f"{number:.6f}" for number in known}


def _numbers(value: Any) -> Iterator[float]:
    match value:
        case dict():
            yield from (number for item in value.values() for number in _numbers(item))
        case list():
            yield from (number for item in value for number in _numbers(item))
        case bool():
            pass
        case int() | float():
            yield value


def test_progress_is_the_share_of_all_bytes_and_ends_at_one() -> None:
    shares: list[float] = []
    makeway.analyze([STRAGGLER], what_if=False, jobs=1, progress=lambda share, _: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
