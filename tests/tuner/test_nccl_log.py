"""NCCL's own log lines as evidence: read leniently, and never more than they say."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.act.launch.outcome import outcomes
from makeway.act.launch.receipt_file import ProcessReceipts
from makeway.act.launch.run import run
from makeway.act.tuner.nccl_log import FILE, LEVEL, SUBSYSTEMS, NcclLog, log_receipts, log_variables, read_nccl_logs
from makeway.values.control import CommBlocks, CommThreads, Control, CopyEngine
from makeway.values.plan import Plan
from makeway.values.receipt import Receipt

SIXTEEN = CommBlocks(16)
BLOCKS = {"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "16"}
HEAD = "node-1:4711:4715 [0] NCCL INFO "
# As NCCL 2.18, 2.27 and 2.32 print them (src/misc/param.cc, src/init.cc, src/graph/paths.cc, src/plugin/tuner.cc).
OLD = (
    "NCCL_MIN_CTAS set by environment to 16.",
    "NCCL_MAX_CTAS set by environment to 16.",
    "16 coll channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
)
MIDDLE = (
    "NCCL_MAX_CTAS set by environment to 16.",
    "NCCL_MIN_CTAS set by environment to 16.",
    "TUNER/Plugin: Using makeway (v4)",
    "16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer",
)
NEW = (
    "Comm config minCTAs reset to NCCL_MIN_CTAS=16",
    "Comm config maxCTAs reset to NCCL_MAX_CTAS=16",
    "TUNER/Plugin: Using makeway (v6)",
    "16 coll channels, 16 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer",
)


def written(directory: Path, *messages: str, pid: int = 4711, head: str = HEAD) -> NcclLog:
    (directory / f"nccl-node-1-{pid}").write_text("".join(f"{head}{message}\n" for message in messages))
    (log,) = read_nccl_logs(directory)
    return log


def verdict(control: Control, variables: dict[str, str], log: NcclLog) -> Receipt:
    (receipt,) = log_receipts({control: variables}, [log])
    return receipt


@pytest.mark.parametrize("lines", [OLD, MIDDLE, NEW], ids=["2.18", "2.27", "2.32"])
@pytest.mark.parametrize("head", [HEAD, f"[2026-11-17 21:40:26] {HEAD}"], ids=["plain", "dated"])
def test_what_nccl_read_and_made_is_evidence(tmp_path: Path, lines: tuple[str, ...], head: str) -> None:
    log = written(tmp_path, *lines, head=head)
    assert (log.pid, log.tuner) == (4711, None if lines is OLD else "makeway")
    receipt = verdict(SIXTEEN, BLOCKS, log)
    assert receipt.status == "applied"
    assert receipt.detail == "NCCL read NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=16; it made a communicator of 16 channels"
    assert dict(receipt.evidence) == {
        "NCCL_MIN_CTAS read": 16,
        "NCCL_MAX_CTAS read": 16,
        "communicators": 1,
        "channels": 16,
    }


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        (NEW[:1] + NEW[3:], "not seen", "does not confirm NCCL_MAX_CTAS"),
        (NEW[:2], "not seen", "names no communicator"),
        ((*NEW[:2], "32 coll channels, 0 nvls channels"), "no effect", "32 channels"),
        ((*NEW[:2], "2 coll channels, 0 nvls channels"), "not seen", "2 channels"),
        ((*NEW, "maxCTAs 16 is larger than #channels upper limit 8, cap it to 8"), "no effect", "NCCL says: maxCTAs"),
        ((*NEW, "NCCL_MIN_CTAS 16 is too low, leaving it set at 4"), "no effect", "NCCL says: NCCL_MIN_CTAS"),
        (("NCCL_MAX_CTAS set by environment to 8.", NEW[3]), "not seen", "NCCL read NCCL_MAX_CTAS=8"),
        ((*NEW, "AllReduce: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}"), "applied", "collective used 4"),
    ],
)
def test_a_log_says_no_more_than_it_shows(tmp_path: Path, lines: tuple[str, ...], status: str, said: str) -> None:
    receipt = verdict(SIXTEEN, BLOCKS, written(tmp_path, *lines))
    assert receipt.status == status
    assert said in receipt.detail


def test_a_log_that_names_none_of_the_variables_is_no_receipt(tmp_path: Path) -> None:
    assert not log_receipts({SIXTEEN: BLOCKS}, [written(tmp_path, NEW[3])])


def test_copies_are_seen_only_where_the_log_names_them(tmp_path: Path) -> None:
    lines = (
        "Parsed environment variable NCCL_CTA_POLICY=ZERO to 2",
        "Comm config CTAPolicy reset to NCCL_CTA_POLICY=2",
    )
    for policy in ("ZERO", "2"):  # as the plan writes it for one version and for another
        log = written(tmp_path, *lines)
        assert verdict(CopyEngine(), {"NCCL_CTA_POLICY": policy}, log).status == "not seen"
        log = written(tmp_path, *lines, "AllGather [Copy Engine]: 1048576 Bytes -> cudaMemcpyBatch")
        receipt = verdict(CopyEngine(), {"NCCL_CTA_POLICY": policy}, log)
        assert (receipt.status, dict(receipt.evidence)["copied by engines"]) == ("applied", 1)


def test_threads_that_nccl_read_are_applied(tmp_path: Path) -> None:
    log = written(tmp_path, "NCCL_NTHREADS set by environment to 256.")
    assert verdict(CommThreads(288), {"NCCL_NTHREADS": "256"}, log).status == "applied"


# --- hostile logs -------------------------------------------------------------------------------


@given(st.binary(max_size=4_000))
def test_any_bytes_are_read_without_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("logs")
    (directory / "nccl-host-1").write_bytes(b"x NCCL INFO " + content)
    for log in read_nccl_logs(directory):
        assert all(value.isprintable() for values in log.variables.values() for value in values)


def test_lines_cannot_move_the_cursor_or_grow_without_end(tmp_path: Path) -> None:
    lines = [f"minCTAs {number} is ignored because value out of bound \x1b[2J" for number in range(100)]
    lines += [f"NCCL_MIN_CTAS set by environment to {number}" for number in range(100)]
    log = written(tmp_path, *lines, "NCCL_MAX_CTAS set by environment to \x1b]0;x\x07", "9" * 100_000)
    assert len(log.complaints) == 8
    assert len(log.variables["NCCL_MIN_CTAS"]) == 4
    assert "\x1b" not in str(log.complaints) + str(log.variables)


def test_files_that_are_no_logs_are_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nccl-host-1")
    (tmp_path / "nccl-host-2").symlink_to("/proc/self/environ")
    (tmp_path / "nccl-host-3").mkdir()
    (tmp_path / "nccl-host-4").write_text("no line of NCCL\n")
    (tmp_path / "nccl-host").write_text(f"{HEAD}{NEW[0]}\n")
    assert read_nccl_logs(tmp_path) == ()


# --- asking for a log ---------------------------------------------------------------------------


def test_a_log_of_the_user_stays(tmp_path: Path) -> None:
    def asked(program: str = "torchrun", *, temporary: bool = True, **environ: str) -> dict[str, str]:
        return log_variables(tmp_path, {"HOME": str(tmp_path), **environ}, program, temporary=temporary)

    assert asked() == {LEVEL: "INFO", FILE: f"{tmp_path}/nccl-%h-%p", SUBSYSTEMS: "INIT,ENV"}
    assert asked(NCCL_DEBUG="WARN") == asked(NCCL_DEBUG_FILE="mine") == {}
    assert SUBSYSTEMS not in asked(NCCL_DEBUG_SUBSYS="INIT,ENV,TUNING")
    assert asked("/usr/bin/srun") == {}  # on other hosts NCCL would find no such directory, and print
    assert asked("/usr/bin/srun", temporary=False)
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=WARN\n")
    assert asked() == {}


def test_a_percent_sign_of_the_directory_stays_one(tmp_path: Path) -> None:
    assert log_variables(tmp_path / "a%p", {}, "true", temporary=True)[FILE].endswith("/a%%p/nccl-%h-%p")


def test_a_run_reads_the_log_that_it_asked_for(tmp_path: Path) -> None:
    """The program writes what NCCL 2.32 would, where NCCL would."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "assert os.environ['NCCL_DEBUG'] == 'INFO'\n"
        "name = os.environ['NCCL_DEBUG_FILE'].replace('%h', 'host').replace('%p', str(os.getpid()))\n"
        f"open(name, 'w').write(''.join({HEAD!r} + line + chr(10) for line in {NEW!r}))\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "MAKEWAY", "RANK"))}
    environ = {**clean, "NCCL_TUNER_PLUGIN": "mine", "HOME": str(tmp_path)}
    ran = run([sys.executable, str(program)], Plan(controls=(SIXTEEN,)), environ=environ, platform="cuda")
    (receipt,) = ran.controls[0].receipts
    assert (ran.exit_code, receipt.status, receipt.carrier) == (0, "applied", "NCCL environment")
    assert "16 channels" in receipt.detail


def test_a_run_without_gpus_asks_for_no_log(tmp_path: Path) -> None:
    check = "import os, sys; sys.exit('NCCL_DEBUG' in os.environ)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NCCL")}
    assert run([sys.executable, "-c", check], Plan(controls=(SIXTEEN,)), environ=clean).exit_code == 0


# --- beside other receipts ----------------------------------------------------------------------


def _outcome(log: NcclLog, status: str, carrier: str) -> Receipt:
    start = Receipt(control=SIXTEEN, status="not seen", detail="set")
    own = Receipt(control=SIXTEEN, status=status, detail="own", carrier=carrier, rank=3)  # type: ignore[arg-type]
    process = ProcessReceipts(pid=log.pid, rank=3, receipts=(own,))
    plan = Plan(controls=(SIXTEEN,))
    (outcome,) = outcomes(plan, [start], [], [process], logs=[log], wanted={SIXTEEN: BLOCKS})
    (receipt,) = outcome.receipts
    return receipt


def test_a_log_adds_to_what_a_process_read_back(tmp_path: Path) -> None:
    log = written(tmp_path, *NEW)
    receipt = _outcome(log, "applied", "torch on CUDA")
    assert (receipt.status, receipt.rank, receipt.detail[:4]) == ("applied", 3, "own;")
    assert dict(receipt.evidence)["channels"] == 16


def test_a_complaint_outweighs_options_that_were_read_back(tmp_path: Path) -> None:
    log = replace(written(tmp_path, *NEW), complaints=["maxCTAs 16 ..., cap it to 8"])
    assert _outcome(log, "applied", "torch on CUDA").status == "no effect"


def test_the_real_library_prints_these_lines(libnccl: Path) -> None:
    """NCCL 2.32.3 is read, not loaded."""
    content = libnccl.read_bytes()
    for form in (
        b"%s set by environment to %",
        b"Comm config maxCTAs reset to NCCL_MAX_CTAS=%d",
        b"Comm config CTAPolicy reset to NCCL_CTA_POLICY=%d",
        b"Parsed environment variable NCCL_CTA_POLICY=%s to %d",
        b"%d coll channels, ",
        b"TUNER/Plugin: Using %s (v6)",
        b"channel{Lo..Hi}={%d..%d}",
        b"%s [Copy Engine]: %ld Bytes",
        b"[%d] NCCL INFO %s",
        b"maxCTAs %d is larger than #channels upper limit %d, cap it to %d",
        b"NCCL_MIN_CTAS %d is too low, leaving it set at %d",
        b"NCCL_CGA_CLUSTER_SIZE value %d is too big. Limiting",
        b"is ignored because value out of bound",
    ):
        assert form in content, form
