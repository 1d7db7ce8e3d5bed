"""`makeway run` with comm blocks on a machine with GPUs: our driver of the tuner interface is the program."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tuner.programs import ALL_REDUCE, MIB, Bench

from makeway.act.doctor.gpus import gpu_platform
from makeway.act.launch.environment import needs_of
from makeway.act.launch.outcome import outcomes
from makeway.act.launch.partition import partition_refusal
from makeway.act.launch.receipt_file import ProcessReceipts
from makeway.act.launch.run import Run, run
from makeway.act.preload.receipts import KernelCounts, LaunchReceipts
from makeway.act.tuner.carry import tuner_refusal, write_rules
from makeway.act.tuner.tally import CallCounts, Tally, tuner_receipts
from makeway.values.control import CommBlocks, SmPartition
from makeway.values.plan import MadeFor, Plan
from makeway.values.receipt import Receipt

EIGHT = CommBlocks(8)
PLAN = Plan(controls=(EIGHT,))
CALLS = ("comm", "8", *("call", str(ALL_REDUCE), str(MIB)) * 3, "call", str(ALL_REDUCE), "8")


def running(bench: Bench, *steps: str, plan: Plan = PLAN, force: bool = False, **environ: str) -> tuple[Run, list[str]]:
    said: list[str] = []
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL", "MAKEWAY", "RANK"))}
    quiet = os.open(os.devnull, os.O_WRONLY)
    try:
        ran = run(
            [str(bench.driver), "6", *steps],
            plan,
            environ={**clean, "XDG_CACHE_HOME": str(bench.home / "cache"), **environ},
            platform="cuda",
            stdout=quiet,
            force=force,
            warn=said.append,
        )
    finally:
        os.close(quiet)
    return ran, said


def test_counted_calls_are_applied(bench: Bench) -> None:
    ran, said = running(bench, *CALLS, RANK="2")
    (outcome,) = ran.controls
    (receipt,) = outcome.receipts
    assert (ran.exit_code, receipt.status, receipt.carrier, receipt.rank) == (0, "applied", "tuner plugin", 2)
    assert dict(receipt.evidence) == {"calls asked": 4, "calls given channels": 3}
    assert receipt.detail == "3 of 4 calls were given 8 channels"
    assert {variable.name: variable.wanted for variable in ran.variables} == {
        "NCCL_MIN_CTAS": "8",
        "NCCL_MAX_CTAS": "8",
    }
    assert not said


def test_small_calls_alone_are_not_seen(bench: Bench) -> None:
    ran, _ = running(bench, "comm", "8", "call", "4", "8")
    assert ran.controls[0].status == "not seen"
    assert "all too small for 8 channels" in ran.controls[0].receipts[0].detail


def test_a_program_without_collectives_is_not_seen(bench: Bench) -> None:
    ran, _ = running(bench, "comm", "8")
    assert "asked it about no collective" in ran.controls[0].receipts[0].detail


def test_a_program_that_never_loads_the_plugin_is_not_seen(bench: Bench) -> None:
    ran = run(["true"], PLAN, platform="cuda", environ={**os.environ, "XDG_CACHE_HOME": str(bench.home)})
    assert ran.controls[0].status == "not seen"
    assert "no NCCL or RCCL loaded the tuner plugin" in ran.controls[0].receipts[0].detail


def test_a_tuner_of_the_user_stays_and_that_is_said(bench: Bench) -> None:
    ran, said = running(bench, *CALLS, NCCL_TUNER_PLUGIN=str(bench.plugin))
    assert said == [f"without the tuner plugin: NCCL_TUNER_PLUGIN={bench.plugin} was set by you (--force replaces it)"]
    assert ran.controls[0].status == "not seen"
    assert running(bench, *CALLS, force=True, NCCL_TUNER_PLUGIN="none")[0].controls[0].status == "applied"


def test_a_run_within_a_run_uses_its_own_rules(bench: Bench) -> None:
    ran, said = running(bench, *CALLS, NCCL_TUNER_PLUGIN=str(bench.plugin), MAKEWAY_TUNER_RULES="/of/the/outer/run")
    assert (ran.controls[0].status, said) == ("applied", [])


def test_other_tuners_that_nccl_would_find_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "libnccl-net.so").touch()
    found = {"LD_LIBRARY_PATH": f"/nowhere::{tmp_path}"}
    assert str(tmp_path / "libnccl-net.so") in str(tuner_refusal(PLAN, found))
    assert "NCCL_NET_PLUGIN=ofi" in str(tuner_refusal(PLAN, {"NCCL_NET_PLUGIN": "ofi"}))
    assert tuner_refusal(PLAN, found, force=True) is None
    (tmp_path / ".nccl.conf").write_text("NCCL_DEBUG=WARN\nNCCL_TUNER_PLUGIN=mine\n")
    assert str(tmp_path / ".nccl.conf") in str(tuner_refusal(PLAN, {"HOME": str(tmp_path)}))
    assert "at most 64" in str(tuner_refusal(Plan(controls=(CommBlocks(100),)), {}))
    assert "efficiency policy" in str(tuner_refusal(PLAN, {"NCCL_CTA_POLICY": "efficiency"}))
    assert tuner_refusal(PLAN, {"NCCL_CTA_POLICY": "ZERO"}) is None
    assert tuner_refusal(PLAN, {}, version=(2, 19)) == "needs NCCL 2.20 or later"


def test_the_plugin_is_for_machines_with_gpus_and_variables_that_are_set(tmp_path: Path) -> None:
    assert needs_of(PLAN, {}).tuner_plugin == ()
    assert needs_of(PLAN, {}, platform="rocm").tuner_plugin == (EIGHT,)
    assert needs_of(PLAN, {"NCCL_MAX_CTAS": "4"}, platform="cuda").tuner_plugin == ()
    old = replace(PLAN, made_for=MadeFor(library="nccl-2.18.3"))
    assert needs_of(old, {}, platform="cuda").tuner_plugin == ()
    assert gpu_platform(tmp_path) is None
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    assert gpu_platform(tmp_path) == "cuda"


def test_the_rules_are_for_this_user_alone(tmp_path: Path) -> None:
    (tmp_path / "channels").write_text("of an earlier run")
    (tmp_path / "channels").chmod(0o666)
    assert write_rules([PLAN.controls], tmp_path).stat().st_mode & 0o777 == 0o600


def test_without_a_compiler_the_program_runs_with_the_variables(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    ran, said = running(bench, "comm", "8", NCCL_TUNER_PLUGIN="")
    assert said[0].startswith("without the tuner plugin: CC names 'no-such-compiler'")
    assert ran.controls[0].status == "not seen"


# --- receipts -----------------------------------------------------------------------------------


def tally(changed: int, rank: int | None = 0) -> Tally:
    row = CallCounts(
        collective="all-reduce",
        min_bytes=MIB,
        max_bytes=2 * MIB - 1,
        own=(("ring-simple", 10),),
        channels_set=changed,
        steered=0,
        unavailable=0,
        left_to_ll=0,
        last_channels=8 if changed else None,
    )
    return Tally(
        pid=7,
        rank=rank,
        interface=6,
        communicators=1,
        ranks=8,
        calls=10,
        generations=1,
        late=0,
        notes=(),
        counts=(row,),
        given=((8, changed),) if changed else (),
    )


def launched(name: str, blocks: int) -> LaunchReceipts:
    kernel = KernelCounts(
        kernel=name,
        comm=True,
        seen=10,
        padded=0,
        refused=0,
        skipped=0,
        prioritised=10,
        asked_bytes=0,
        given_bytes=0,
        reason="",
        most_blocks=blocks,
    )
    return LaunchReceipts(pid=7, rank=0, notes=(), kernels=(kernel,))


@pytest.mark.parametrize(
    ("blocks", "status"), [(0, "applied"), (8, "applied"), (16, "no effect"), (4, "not seen"), (1, "not seen")]
)
def test_grids_that_the_shim_saw_must_agree(blocks: int, status: str) -> None:
    (receipt,) = tuner_receipts(
        PLAN.controls, (tally(10),), (launched("ncclDevKernel_AllReduce_Sum_f32_RING_LL", blocks),)
    )
    assert receipt.status == status
    assert dict(receipt.evidence).get("largest grid", 0) == blocks


def test_send_and_receive_have_grids_of_their_own() -> None:
    assert tuner_receipts(PLAN.controls, (tally(10),), (launched("ncclDevKernel_SendRecv", 32),))[0].status == "applied"


def by_options(status: str = "applied") -> ProcessReceipts:
    receipt = Receipt(control=EIGHT, status=status, detail="max_ctas=8", carrier="torch on CUDA", rank=0)  # type: ignore[arg-type]
    return ProcessReceipts(pid=7, rank=0, receipts=(receipt,))


def test_options_of_a_group_are_no_evidence_where_the_plugin_should_have_counted() -> None:
    start = (Receipt(control=EIGHT, status="not seen", detail="set"),)
    (alone,) = outcomes(PLAN, start, (), (by_options(),))
    (unconfirmed,) = outcomes(PLAN, start, (), (by_options(),), tuned=(EIGHT,))
    (counted,) = outcomes(PLAN, start, (), (by_options(),), (tally(10, rank=None),), tuned=(EIGHT,))
    (small,) = outcomes(PLAN, start, (), (by_options(),), (tally(0),), tuned=(EIGHT,))
    assert [each.status for each in (alone, unconfirmed, counted, small)] == [
        "applied",
        "not seen",
        "applied",
        "not seen",
    ]
    assert counted.receipts[0].carrier == "tuner plugin"


# --- a partition --------------------------------------------------------------------------------


def test_a_partition_is_refused_with_what_works_instead(tmp_path: Path) -> None:
    ran = run(["true"], Plan(controls=(SmPartition(16), EIGHT)), platform="rocm", environ=os.environ)
    assert ran.controls[0].status == "refused"
    assert "HSA_CU_MASK" in ran.controls[0].receipts[0].detail
    assert "MPS" not in partition_refusal("cuda", {}, tmp_path)
    (tmp_path / "control").touch()
    serving = partition_refusal("cuda", {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert f"The MPS daemon at {tmp_path / 'control'} takes CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in serving
    assert needs_of(Plan(controls=(SmPartition(16),)), {}).refused == ()
