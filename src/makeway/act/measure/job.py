"""What a bench is asked to do: one value from the command line to the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from makeway.act.measure.link import Rate
from makeway.act.measure.names import family
from makeway.act.measure.variants import Controls, Variant, variant_name
from makeway.values.control import lossy, refuse_lossy
from makeway.values.device import Device, load_device
from makeway.values.errors import InputError
from makeway.values.plan import Plan

Grid = tuple[int, int]  # X x Y blocks of the GEMM, which loop over its tiles
Tile = tuple[int, int, int]  # M, N, K

DEFAULT_TIMEOUT_S = 10.0
GPUS = ("cuda", "rocm")  # that ranks run on
_SIM = "sim:"
GemmKernel = Literal["triton", "torch"]
NumberType = Literal["fp32", "tf32", "bf16", "fp8"]

_TRAINING_STEPS = 2  # a step is a whole training step
_PUBLISHED_STEPS = 10  # as the preset of arXiv 2606.09200 has
_CPU_STEPS = 4
_GPU_STEPS = 8  # the first GEMM and the last collective of a round have nothing beside them


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload, where to run it, and under which controls. None leaves a choice to the workload or the machine.

    Several grids or tiles make it an experiment: sequential, overlap and priority for each of them.
    """

    workload: str
    on: str = "cpu"  # or cuda, rocm, sim:DEVICE
    ranks: int | None = None
    link: Rate | None = None  # that CPU ranks are paced to
    controls: tuple[Controls, ...] = ()  # one variant each
    plan: bool = True  # search for the best controls, too
    wide: bool = False  # search more widely
    device: str | None = None  # whose predictions the search starts from
    grids: tuple[Grid, ...] = ()
    tiles: tuple[Tile, ...] = ()
    library: str | None = None  # of simulated collectives
    kernel: GemmKernel = "triton"  # that multiplies on a GPU: our own, or what torch calls
    number_type: NumberType | None = None  # of the GEMM's operands on a GPU
    cuda_graph: bool = False  # each round on a GPU is one captured graph
    repeats: int = 10
    warmup: int = 2
    trial_rounds: int = 4
    steps: int | None = None  # of the workload in one round
    size_bytes: int | None = None
    scale: float | None = None
    in_flight: int | None = None
    bucket_mb: float = 1.0
    compress: str = "none"
    allow_lossy: bool = False  # controls that change results, too
    seed: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S  # for one collective
    start_s: float = 60.0  # for ranks to meet
    variants: tuple[Variant, ...] = ()  # to measure on ranks; none: chosen by `controls`
    candidates: tuple[Variant, ...] = ()  # for the planned variant

    def __post_init__(self) -> None:
        self._check_place()
        self._check_numbers()
        for controls in self.controls:
            Plan(controls=controls)  # refuses contradictory controls
            if self.controls.count(controls) > 1:
                raise InputError(f"the variant {variant_name(controls)} is given twice; keep one")
        every = [control for controls in self.controls for control in controls]
        refuse_lossy(every, allowed=self.allow_lossy)
        if any(map(lossy, every)) and (self.workload != "ddp" or self.on != "cpu" or self.compress != "none"):
            raise InputError("compress is for gradients of ddp on CPU ranks, without --compress")
        if (self.grids or self.tiles) and not self.simulated and family(self.workload) not in ("pair", "published"):
            raise InputError(f"--grid and --tile are of one GEMM; {self.workload} has many. Name cb-ar, gemm-ar, ...")
        if self.tiles and not self.grids and self.on == "cpu":
            raise InputError("--tile without --grid does nothing on CPU ranks: it bounds the blocks of a grid")
        if self.swept and not self.grids:
            raise InputError("several tiles are compared grid by grid: name grids too, for example --grid 64x64")
        if self.swept and self.controls:
            raise InputError("several grids run sequential, overlap and priority for each; leave --control out")
        if self.swept and self.device:
            raise InputError("several grids plan nothing, so there is nothing to predict; leave --device out")

    def _check_place(self) -> None:
        if not self.simulated and self.on != "cpu" and self.on not in GPUS:
            raise InputError(f"cannot run on {self.on!r}; write --on cpu, cuda, rocm or sim:DEVICE")
        if self.link is not None and self.on != "cpu":
            raise InputError("--link paces real ranks of this host's cores; GPUs and simulated devices have their own")
        if self.library is not None and not self.simulated:
            raise InputError("--library is of simulated collectives; real ranks have the library that torch loads")
        if self.device is not None and self.simulated:
            raise InputError(f"--device starts planning on real ranks; {self.on} names its device already")
        if self.ranks is not None:
            check_ranks(self.ranks)
        self._check_gemm()

    def _check_gemm(self) -> None:
        if self.on not in GPUS:
            if self.cuda_graph:
                why = "nothing is launched" if self.simulated else "Gloo's collectives run on the host's cores"
                raise InputError(f"--cuda-graph captures what GPUs run; on {self.on} {why}. Use --on cuda or rocm")
            if self.kernel != "triton" or self.number_type is not None:
                raise InputError(f"--kernel and --type are of GEMMs on a GPU, not on {self.on}; use --on cuda or rocm")
        if self.kernel == "triton" and self.number_type in ("bf16", "fp8"):
            raise InputError(f"our own kernel multiplies fp32 and tf32, not {self.number_type}; add --kernel torch")
        if self.kernel == "torch" and (self.grids or self.tiles):
            raise InputError("--grid and --tile are of our own kernel; with --kernel torch the library chooses them")

    def _check_numbers(self) -> None:
        limits = {"repeats": 1, "warmup": 0, "steps": 1, "in_flight": 1, "trial_rounds": 2}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be {least} or more, got {value}")
        for sides in (*self.grids, *self.tiles):
            if min(sides) < 1:
                raise InputError(f"sides of grids and tiles must be 1 or more, got {sides}")
        if self.timeout_s <= 0:
            raise InputError(f"a timeout must be above 0 seconds, got {self.timeout_s}")

    @property
    def simulated(self) -> bool:
        return self.on.startswith(_SIM)

    @property
    def simulated_device(self) -> Device:
        return load_device(self.on.removeprefix(_SIM))

    @property
    def swept(self) -> bool:
        """Whether this is an experiment over grids or tiles."""
        return len(self.grids) > 1 or len(self.tiles) > 1

    @property
    def grid(self) -> Grid | None:
        """The one grid of a bench."""
        return self.grids[0] if self.grids else None

    @property
    def tile(self) -> Tile | None:
        return self.tiles[0] if self.tiles else None

    @property
    def round_steps(self) -> int:
        """Steps of the workload in one round on real ranks."""
        if self.steps is not None:
            return self.steps
        match family(self.workload):
            case "training":
                return _TRAINING_STEPS
            case "published" if not self.workload.startswith("conccl"):
                return _PUBLISHED_STEPS
            case _:
                return _CPU_STEPS if self.on == "cpu" else _GPU_STEPS


def check_ranks(ranks: int) -> None:
    """An error where nobody is there to communicate with."""
    if ranks < 2:
        raise InputError(f"a collective needs at least 2 ranks, got {ranks}")
