"""What a user asked a bench for, as a value, and the one function that answers it, wherever it is to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from makeway.act.measure.bench import cores, job_settings, run_bench, run_here, torchrun_ranks, with_usual_steps
from makeway.act.measure.experiment import CPU_SIDES, PAPER_SIDES, Grid, Sweep, Tile, parse_grids, sweep
from makeway.act.measure.gpus import VENDORS, gpu_ranks, gpu_settings, planner_setting
from makeway.act.measure.host_forecast import forecast, in_predicted_order, with_predictions
from makeway.act.measure.job import DEFAULT_TIMEOUT_S, Job
from makeway.act.measure.link import Rate
from makeway.act.measure.names import family
from makeway.act.measure.outcome import TORCHRUN, Bench
from makeway.act.measure.simulated import simulated_bench, simulated_experiment
from makeway.act.measure.variants import Setting, parse_variant
from makeway.act.triton.config import OPT1
from makeway.values.control import CommPriority, control_word
from makeway.values.device import load_device
from makeway.values.errors import InputError

Progress = Callable[[str], None]

_SIM = "sim:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A bench, or a sweep where several grids or tiles are named; None leaves a choice to the workload or machine."""

    workload: str
    on: str = "cpu"
    ranks: int | None = None
    rate: Rate | None = None
    controls: tuple[str, ...] = ()  # variants, as words
    plan: bool = True
    wide: bool = False  # search more widely for the planned variant
    device: str | None = None  # whose predictions planning starts from
    grids: str | None = None
    tiles: tuple[Tile, ...] = ()
    library: str | None = None
    repeats: int = 10
    warmup: int = 2
    steps: int | None = None
    size_bytes: int | None = None
    scale: float | None = None
    in_flight: int | None = None
    bucket_mb: float = 1.0
    compress: str = "none"
    timeout_s: float = DEFAULT_TIMEOUT_S
    start_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.simulated and self.on != "cpu" and self.on not in VENDORS:
            raise InputError(f"cannot run on {self.on!r}; write --on cpu, cuda, rocm or sim:DEVICE")
        if self.rate is not None and self.on != "cpu":
            raise InputError("--link paces real ranks of this host's cores; GPUs and simulated devices have their own")
        if self.library is not None and not self.simulated:
            raise InputError("--library is of simulated collectives; real ranks have the library that torch loads")
        if self.device is not None and self.simulated:
            raise InputError(f"--device starts planning on real ranks; {self.on} names its device already")
        if self.ranks is not None and self.ranks < 1:
            raise InputError(f"--ranks must be 1 or more, got {self.ranks}")
        if (self.grids or self.tiles) and not self.simulated and family(self.workload) not in ("pair", "published"):
            raise InputError(f"--grid and --tile are of one GEMM; {self.workload} has many. Name cb-ar, gemm-ar, ...")
        if self.tiles and not self.grids and self.on == "cpu":
            raise InputError("--tile without --grid does nothing on CPU ranks: it bounds the blocks of a grid")
        if self.swept and self.controls:
            raise InputError("a sweep runs sequential, overlap and priority for each grid; leave --control out")
        if self.swept and self.device:
            raise InputError("a sweep plans nothing, so that there is nothing to predict; leave --device out")

    @property
    def simulated(self) -> bool:
        return self.on.startswith(_SIM)

    @property
    def found_grids(self) -> tuple[Grid, ...]:
        sides = CPU_SIDES if self.on == "cpu" else PAPER_SIDES
        return parse_grids(self.grids, sides) if self.grids else ()

    @property
    def swept(self) -> bool:
        return len(self.found_grids) > 1 or len(self.tiles) > 1


def answer(asked: Asked, progress: Progress = lambda stage: None) -> Bench | Sweep | None:
    """What was asked for; None on a rank other than 0 where torchrun started the ranks."""
    if asked.simulated:
        return _simulated_sweep(asked, progress) if asked.swept else _simulated(asked)
    return _measured_sweep(asked, progress) if asked.swept else _measured(asked, progress)


# --- simulated ---------------------------------------------------------------------------------


def _simulated(asked: Asked) -> Bench:
    return simulated_bench(
        asked.workload,
        load_device(asked.on.removeprefix(_SIM)),
        controls=[parse_variant(text) for text in asked.controls],
        ranks=asked.ranks,
        grid=asked.found_grids[0] if asked.grids else None,
        tile=asked.tiles[0] if asked.tiles else None,
        in_flight=asked.in_flight,
        iterations=asked.steps,
        library=asked.library,
        plan=asked.plan,
    )


def _simulated_sweep(asked: Asked, progress: Progress) -> Sweep:
    device = load_device(asked.on.removeprefix(_SIM))
    if not asked.grids:
        raise InputError("several tiles are compared grid by grid: name grids too, for example --grid 64x64")
    return Sweep(
        experiments=tuple(
            simulated_experiment(
                asked.workload,
                device,
                asked.found_grids,
                tile=tile,
                ranks=asked.ranks,
                in_flight=asked.in_flight,
                iterations=asked.steps,
                library=asked.library,
                progress=progress,
            )
            for tile in asked.tiles or (None,)
        )
    )


# --- measured ----------------------------------------------------------------------------------


def _measured(asked: Asked, progress: Progress) -> Bench | None:
    launched = torchrun_ranks()
    if launched is not None and asked.rate:
        raise InputError("--link needs ranks that makeway starts itself; leave torchrun out: makeway bench --ranks N")
    ranks = _ranks(asked, launched)
    job = _job(asked, ranks)
    if asked.device and asked.on == "cpu":
        return _forecast(asked, job, ranks, launched, progress)
    return _run(asked, job, ranks, launched, progress)


def _run(asked: Asked, job: Job, ranks: int, launched: int | None, progress: Progress) -> Bench | None:
    if launched is not None:
        return run_here(job)
    return run_bench(job, ranks, rate=asked.rate, start_s=asked.start_s, progress=progress)


def _forecast(asked: Asked, job: Job, ranks: int, launched: int | None, progress: Progress) -> Bench | None:
    """Measured with the candidates in predicted order, and the predictions beside the times."""
    assert asked.device is not None
    job, told = forecast(job, load_device(asked.device), ranks=ranks, cores=cores(), rate=asked.rate)
    job, notes = in_predicted_order(job, told)
    found = _run(asked, job, ranks, launched, progress)
    return found and with_predictions(found, job, told, notes)


def _measured_sweep(asked: Asked, progress: Progress) -> Sweep:
    if torchrun_ranks() is not None:
        raise InputError("a sweep starts ranks of its own for every grid; leave torchrun out: makeway bench --ranks N")
    if not asked.grids:
        raise InputError("several tiles are compared grid by grid: name grids too, for example --grid 4x4")
    ranks = _ranks(asked, None)
    one = replace(asked, controls=(control_word(CommPriority()),), grids=None, tiles=(), plan=False)
    job = _job(one, ranks)
    # Times of one experiment are compared with one another: all have the threads that the prioritised run has.
    threads = job.settings[-1].threads
    settings = tuple(replace(each, threads=threads) for each in job.settings if each.name != TORCHRUN)

    def run(grid: Grid, tile: Tile) -> Bench:
        cell = replace(job, settings=settings, grid=grid, tile=tile)
        return run_bench(cell, ranks, rate=asked.rate, start_s=asked.start_s)

    return sweep(asked.found_grids, asked.tiles or (OPT1,), run, progress)


def _ranks(asked: Asked, launched: int | None) -> int:
    if asked.on in VENDORS:
        here = gpu_ranks(asked.on, None if launched is not None else asked.ranks)
        return here if launched is None else launched
    return launched or asked.ranks or 2


def _job(asked: Asked, ranks: int) -> Job:
    settings, candidates = _settings(asked, ranks)
    job = Job(
        workload=asked.workload,
        settings=settings,
        on=asked.on,
        candidates=candidates,
        repeats=asked.repeats,
        warmup=asked.warmup,
        size_bytes=asked.size_bytes,
        scale=asked.scale,
        in_flight=asked.in_flight or 1,
        grid=asked.found_grids[0] if asked.grids else None,
        tile=asked.tiles[0] if asked.tiles else None,
        bucket_mb=asked.bucket_mb,
        compress=asked.compress,
        timeout_s=asked.timeout_s,
    )
    return replace(job, steps=asked.steps) if asked.steps else with_usual_steps(job)


def _settings(asked: Asked, ranks: int) -> tuple[tuple[Setting, ...], tuple[Setting, ...]]:
    family(asked.workload)
    if asked.on == "cpu":
        return job_settings(asked.controls, ranks, apart=asked.rate is not None, plan=asked.plan, wide=asked.wide)
    settings, candidates = gpu_settings(asked.workload, asked.controls, plan=asked.plan, wide=asked.wide)
    if not asked.device or not candidates:
        return settings, candidates
    first = planner_setting(asked.workload, load_device(asked.device), ranks=ranks, in_flight=asked.in_flight)
    return settings, (*first, *(one for one in candidates if one not in first))
