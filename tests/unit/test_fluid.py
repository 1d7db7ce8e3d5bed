"""The fluid engine: its laws, its cache, and how far it is from the full engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.test_simulate_laws import hbm_rules, policies, programs

from makeway.model.presets import PresetOptions, load_preset, preset_names
from makeway.model.simulate import disk_cache, fluid, kept_runs
from makeway.model.simulate.driver import run
from makeway.model.simulate.fluid import fluid_run
from makeway.model.simulate.kept_runs import kept_run
from makeway.model.simulate.policies import DISPATCHES, Proportional, StrictHeadOfLine
from makeway.model.simulate.predict import Settings, compile_for, simulate, vendor_dispatch
from makeway.model.simulate.program import Program
from makeway.model.simulate.run_result import RunResult
from makeway.model.simulate.spread import BLOCK_SPREAD
from makeway.values.device import load_device
from makeway.values.errors import InvalidKernelError, UnsupportedError
from makeway.values.plan import parse_controls

H100 = load_device("H100-SXM5-80GB")
DEVICES = ("H100-SXM5-80GB", "A100-SXM4-80GB", "MI300X")
LAYERS = tuple(name for name in preset_names() if name.split("-")[0] not in ("conccl", "cb", "mb"))
CONTROLS = ("", "priority", "pad=24KiB", "partition=8+comm-blocks=8", "comm-blocks=8", "copy-engine")
# One device of each architecture whose layer presets all fit, and the cases outside the tolerance with how far off they
# are. A case that enters or leaves is noticed.
SWEPT = ("A100-SXM4-80GB", "B200", "H100-SXM5-80GB", "MI300X", "MI355X")
SAMPLE = (
    ("gemm-ar", "H100-SXM5-80GB", ""),
    ("gemm-ar", "MI300X", "priority"),
    ("ddp-llama-7b", "H100-SXM5-80GB", "priority"),
    ("ddp-llama-7b", "A100-SXM4-80GB", ""),
    ("fsdp-llama-7b", "A100-SXM4-80GB", "comm-blocks=8"),
    ("tp-llama-70b", "H100-SXM5-80GB", ""),
    ("tp-llama-70b", "MI300X", ""),
    ("tp-llama-70b", "MI300X", "partition=8+comm-blocks=8"),
    ("ep-moe", "A100-SXM4-80GB", "priority"),
)
TOLERANCE = 0.02
OUTSIDE: dict[tuple[str, str, str], float] = {
    ("fsdp-llama-7b", "MI355X", ""): -0.032,
    ("fsdp-llama-7b", "MI355X", "copy-engine"): -0.050,
    ("fsdp-llama-70b", "MI355X", "priority"): 0.037,
    ("ddp-llama-7b", "MI355X", ""): -0.030,
    ("ddp-llama-7b", "MI355X", "pad=24KiB"): 0.027,
    ("ddp-llama-7b", "MI355X", "comm-blocks=8"): -0.031,
    ("tp-llama-70b", "MI355X", ""): 0.061,
    ("tp-llama-70b", "MI355X", "priority"): 0.055,
    ("tp-llama-405b", "MI355X", ""): -0.023,
    ("tp-llama-405b", "MI355X", "priority"): -0.023,
    ("tp-llama-405b", "MI355X", "partition=8+comm-blocks=8"): 0.021,
}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        fluid._pairs.cache_clear()
        yield
    fluid._pairs.cache_clear()


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of measured pairs, in memory and on disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fluid._pairs.cache_clear()
    yield tmp_path / "makeway" / "pairs"
    fluid._pairs.cache_clear()


def compiled(preset: str, device: str, control: str = "", *, skew_ns: float = 0.0, jitter: float = 0.0) -> Program:
    known = load_device(device)
    conditions = Settings(skew_ns=skew_ns, jitter=jitter)
    controls = parse_controls(control.split("+") if control else [])
    return compile_for(load_preset(preset, known), known, controls, vendor_dispatch(known), conditions).program


def by_fluid(program: Program, device: str = "H100-SXM5-80GB") -> RunResult:
    return fluid_run(program, full="class", dispatch=vendor_dispatch(load_device(device)), hbm=Proportional())


def by_full(program: Program, device: str = "H100-SXM5-80GB") -> RunResult:
    engine = "block" if program.jitter else "class"
    return run(program, engine=engine, dispatch=vendor_dispatch(load_device(device)))  # type: ignore[arg-type]


def gemm_beside_comm() -> Program:
    return compiled("gemm-ar", "H100-SXM5-80GB", "priority")


def deviation(preset: str, device: str, control: str) -> float:
    program = compiled(preset, device, control)
    result = by_fluid(program, device)
    assert result.fallback is None
    return result.end_ns / by_full(program, device).end_ns - 1.0


# --- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_an_operation_alone_takes_as_long_as_in_the_full_engine(device: str) -> None:
    program = compiled("tp-llama-70b", device)
    for op in program.ops:
        alone = replace(program, ops=(replace(op, after=(), launch_ns=0.0),))
        assert by_fluid(alone, device).end_ns == pytest.approx(by_full(alone, device).end_ns, rel=1e-9)


@pytest.mark.parametrize(("preset", "device", "control"), SAMPLE)
def test_no_overlap_beats_the_longer_part(preset: str, device: str, control: str) -> None:
    prediction = simulate(
        load_preset(preset, load_device(device)),
        load_device(device),
        parse_controls(control.split("+") if control else []),
        Settings(engine="fluid"),
    )
    assert prediction.t_ns >= prediction.ideal_ns * (1 - 1e-9)


@pytest.mark.parametrize("which", [0, 1])
def test_more_work_never_ends_earlier(which: int) -> None:
    program, last = gemm_beside_comm(), 0.0
    for tenths in range(1, 41):
        ops = list(program.ops)
        ops[which] = replace(ops[which], work_ns=ops[which].work_ns * tenths / 10)
        end = by_fluid(replace(program, ops=tuple(ops))).end_ns
        assert end >= last * (1 - 1e-9)
        last = end


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), policies, hbm_rules)
def test_work_and_order_are_kept(program: Program, policy: StrictHeadOfLine, hbm: Proportional) -> None:
    result = fluid_run(program, full="class", dispatch=policy, hbm=hbm)
    work = sum(op.blocks * op.work_ns for op in program.ops if op.kind == "kernel")
    assert result.end_ns * 10 >= work * (1 - 1e-6)
    for op, times in zip(program.ops, result.times, strict=True):
        assert times.ended_ns >= times.moving_ns >= times.started_ns >= times.arrived_ns >= op.launch_ns
        assert all(times.arrived_ns >= result.times[earlier].ended_ns for earlier in op.after)


def test_the_same_input_gives_the_same_output_without_what_was_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, results = gemm_beside_comm(), []
    for name in ("one", "other"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        fluid._pairs.cache_clear()
        results.append(by_fluid(program))
    fluid._pairs.cache_clear()
    assert results[0] == results[1]


# --- the cache -----------------------------------------------------------------------------------


def test_cold_and_warm_caches_give_equal_results(pairs: Path) -> None:
    program = gemm_beside_comm()
    cold, in_memory = by_fluid(program), by_fluid(program)
    files = sorted(pairs.iterdir())
    fluid._pairs.cache_clear()
    assert cold == in_memory == by_fluid(program)
    assert sorted(pairs.iterdir()) == files != []
    assert pairs.stat().st_mode & 0o777 == 0o700


def test_the_dispatch_policy_is_part_of_the_key(pairs: Path) -> None:
    program = gemm_beside_comm()
    by_fluid(program)
    files = len(list(pairs.iterdir()))
    fluid_run(program, full="class", dispatch=DISPATCHES["backfill"], hbm=Proportional())
    assert len(list(pairs.iterdir())) == 2 * files


def test_a_changed_model_reads_no_old_entries(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = gemm_beside_comm()
    right = by_fluid(program)
    poison(pairs)
    monkeypatch.setattr(disk_cache, "_model_version", lambda: "another model")
    fluid._pairs.cache_clear()
    assert by_fluid(program) == right


@pytest.mark.parametrize("text", ["", "no digest", "\n[1.0]", "{digest}\n[1.0]", "{digest}\n[NaN, 1, 0, 1]", "\xff\n"])
def test_damaged_entries_are_measured_again(pairs: Path, text: str) -> None:
    program = gemm_beside_comm()
    right = by_fluid(program)
    for path in pairs.iterdir():
        body = text.partition("\n")[2]
        path.write_bytes(text.replace("{digest}", disk_cache._digest(body)).encode("latin-1"))
    fluid._pairs.cache_clear()
    assert by_fluid(program) == right


def test_entries_that_others_could_have_written_are_not_read(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = gemm_beside_comm()
    right = by_fluid(program)
    poison(pairs)
    fluid._pairs.cache_clear()
    assert by_fluid(program) != right  # whole entries of this user are believed
    pairs.chmod(0o777)
    fluid._pairs.cache_clear()
    assert by_fluid(program) == right
    pairs.chmod(0o700)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    fluid._pairs.cache_clear()
    assert by_fluid(program) == right


def test_links_to_other_files_are_not_followed(pairs: Path, tmp_path: Path) -> None:
    program = gemm_beside_comm()
    right = by_fluid(program)
    poison(pairs)
    for path in list(pairs.iterdir()):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    fluid._pairs.cache_clear()
    assert by_fluid(program) == right


def test_without_a_place_for_the_cache_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    right = by_fluid(gemm_beside_comm())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    fluid._pairs.cache_clear()
    assert by_fluid(gemm_beside_comm()) == right
    fluid._pairs.cache_clear()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of whole runs, in memory and on disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_runs.kept_run.cache_clear()
    yield tmp_path / "makeway" / "runs"
    kept_runs.kept_run.cache_clear()


def by_block(program: Program) -> RunResult:
    return kept_run(program, "block", StrictHeadOfLine(), Proportional())


def test_a_kept_run_equals_a_new_one_to_the_last_digit(runs: Path) -> None:
    program = compiled("gemm-ar", "H100-SXM5-80GB", jitter=BLOCK_SPREAD)
    cold = by_block(program)
    assert cold == run(program, engine="block")
    kept_runs.kept_run.cache_clear()
    assert by_block(program) == cold
    (file,) = runs.iterdir()
    assert (runs.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("change", [lambda numbers: numbers[:-1], lambda numbers: [*numbers[:-1], -1.0], None])
def test_a_run_that_cannot_be_one_is_run_again(runs: Path, change: Callable[[list[float]], list[float]] | None) -> None:
    program = compiled("gemm-ar", "H100-SXM5-80GB", jitter=BLOCK_SPREAD)
    cold = by_block(program)
    (file,) = runs.iterdir()
    text = json.dumps(change(json.loads(file.read_text().partition("\n")[2]))) if change else "[1.0]"
    file.write_text(f"{disk_cache._digest(text if change else 'other')}\n{text}")
    kept_runs.kept_run.cache_clear()
    assert by_block(program) == cold


def test_seed_spread_and_policy_are_part_of_the_key(runs: Path) -> None:
    program = compiled("gemm-ar", "H100-SXM5-80GB", jitter=BLOCK_SPREAD)
    by_block(program)
    by_block(replace(program, seed=1))
    by_block(replace(program, jitter=0.1))
    kept_run(program, "block", DISPATCHES["backfill"], Proportional())
    assert len(list(runs.iterdir())) == 4


def test_the_oldest_files_go_when_a_folder_grows_too_large(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MOST_FOLDER_BYTES", 1000)
    monkeypatch.setattr(disk_cache, "_WRITES_PER_CHECK", 1)
    cache = disk_cache.DiskCache("runs", "prefix")
    for number in range(40):
        cache.write(number, [float(number)] * 10)
        (written,) = set(runs.iterdir()) - {path for path in runs.iterdir() if path.stat().st_mtime_ns < 10**12}
        os.utime(written, ns=(number, number))
    assert cache.read(39) == [39.0] * 10
    assert cache.read(0) is None
    assert sum(path.stat().st_size for path in runs.iterdir()) <= 1100


def poison(pairs: Path) -> None:
    """Double every number of every entry, digests included."""
    for path in pairs.iterdir():
        text = json.dumps([2 * number for number in json.loads(path.read_text().partition("\n")[2])])
        path.write_text(f"{disk_cache._digest(text)}\n{text}")


# --- against the full engine ---------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "device", "control"), SAMPLE)
def test_a_sample_of_layers_meets_the_full_engine(preset: str, device: str, control: str) -> None:
    assert deviation(preset, device, control) == pytest.approx(0.0, abs=TOLERANCE)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", SWEPT)
def test_all_layers_meet_the_full_engine_or_are_listed(device: str) -> None:
    outside = {}
    for preset, control in product(LAYERS, CONTROLS):
        try:
            off = deviation(preset, device, control)
        except (UnsupportedError, InvalidKernelError):  # copy engines cannot add, and not every block can be padded
            assert control in ("copy-engine", "pad=24KiB")
        else:
            if abs(off) > TOLERANCE:
                outside[preset, device, control] = off
    assert outside == pytest.approx({case: off for case, off in OUTSIDE.items() if case[1] == device}, abs=1e-3)


def test_baselines_equal_those_of_the_full_engine() -> None:
    workload = load_preset("tp-llama-70b", H100)
    by_pairs = simulate(workload, H100, (), Settings(engine="fluid"))
    full = simulate(workload, H100)
    assert (by_pairs.engine, by_pairs.fallback, full.engine) == ("fluid", None, "block")
    for name in ("t_compute_ns", "t_comm_ns", "t_sequential_ns", "ideal_ns"):
        assert getattr(by_pairs, name) == getattr(full, name)


def test_a_late_rank_is_met_within_the_tolerance() -> None:
    program = compiled("tp-llama-70b", "H100-SXM5-80GB", "priority", skew_ns=30e3)
    result, full = by_fluid(program), by_full(program)
    assert result.fallback is None
    assert result.end_ns == pytest.approx(full.end_ns, rel=TOLERANCE)
    assert full.end_ns > by_full(compiled("tp-llama-70b", "H100-SXM5-80GB", "priority")).end_ns


def test_jitter_is_met_within_the_tolerance() -> None:
    program = compiled("gemm-ar", "H100-SXM5-80GB", "priority", jitter=BLOCK_SPREAD)
    assert by_fluid(program).end_ns == pytest.approx(by_full(program).end_ns, rel=TOLERANCE)


def test_copies_are_met_within_the_tolerance() -> None:
    program = compiled("ep-moe", "A100-SXM4-80GB", "copy-engine")
    assert by_fluid(program, "A100-SXM4-80GB").end_ns == pytest.approx(
        by_full(program, "A100-SXM4-80GB").end_ns, rel=TOLERANCE
    )


# --- what pairs cannot describe ------------------------------------------------------------------


def test_kernels_on_several_streams_fall_back_and_say_so() -> None:
    workload = load_preset("cb-ar", H100, PresetOptions(grid=(16, 16)))
    prediction = simulate(workload, H100, (), Settings(engine="fluid"))
    assert prediction.fallback == "kernels run at once"
    assert prediction.engine == "block"
    assert prediction.t_ns == pytest.approx(simulate(workload, H100).t_ns, rel=1e-9)  # the class engine


def test_held_queues_with_a_late_rank_fall_back() -> None:
    program = compiled("gemm-ar", "MI300X", skew_ns=20e3)
    result = by_fluid(program, "MI300X")
    assert "held-queue" in str(result.fallback)
    assert result.end_ns == by_full(program, "MI300X").end_ns
