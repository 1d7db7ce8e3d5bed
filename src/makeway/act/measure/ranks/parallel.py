"""Tensor- and expert-parallel layers: two micro-batches take turns, one exchanges while the other computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from makeway.act.measure.job import Job
from makeway.act.measure.ranks.exchange import GlooTransport, Memory, Transfer, Transport
from makeway.act.measure.ranks.lanes import Schedule, Stage, refusal, run_stages
from makeway.act.measure.ranks.pairs import cut, exchanged
from makeway.act.measure.ranks.world import World
from makeway.values.collective import Collective, CollectiveKind
from makeway.values.control import Chunks, Control
from makeway.values.units import ceil_to, format_bytes

BATCHES = 2
_TOKENS, _HIDDEN, _FFN = 512, 512, 2048  # of one micro-batch, at scale 1
_CUTS = 16
_TOLERANCE = 1e-3  # relative, of fp32 sums in another order through all layers

Compute = Callable[[slice], None]


@dataclass(slots=True)
class Turns:
    """Layers whose micro-batches take turns; `expected` is what an undivided model gives, by pieces."""

    world: World
    description: str
    build: Callable[[Transport], tuple[list[Stage], list[torch.Tensor]]]  # stages and each micro-batch's result
    kind: CollectiveKind
    size_bytes: int
    expected: Callable[[int, int], torch.Tensor]  # micro-batch, pieces
    stages: list[Stage] = field(init=False)
    results: list[torch.Tensor] = field(init=False)
    _by_memory: dict[Memory, tuple[list[Stage], list[torch.Tensor]]] = field(default_factory=dict)
    _known: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._work_in_memory_for(GlooTransport())

    def _work_in_memory_for(self, transport: Transport) -> None:
        if transport.memory not in self._by_memory:
            self._by_memory[transport.memory] = self.build(transport)
        self.stages, self.results = self._by_memory[transport.memory]

    @property
    def exchange(self) -> Collective | None:
        if self.world.ranks < 2:
            return None
        return Collective(kind=self.kind, size_bytes=self.size_bytes, ranks=self.world.ranks)

    @property
    def exchanges(self) -> int:
        return len(self.stages)

    def refusal(self, control: Control) -> str | None:
        if isinstance(control, Chunks):
            return refusal(self.stages, control.pieces, self.world.ranks)
        return None

    def prepare(self, schedule: Schedule) -> None:
        """Overwrites the last results, so that a round that did nothing would not pass for right."""
        self._work_in_memory_for(schedule.transport)
        for result in self.results:
            result.zero_()

    def run(self, schedule: Schedule) -> None:
        run_stages(self.stages, schedule, steady=False)

    def wrong(self, schedule: Schedule) -> str | None:
        if schedule.mode in ("compute", "comm"):
            return None  # numbers have no meaning without the other half
        for batch, result in enumerate(self.results):
            key = batch, schedule.pieces
            if key not in self._known:
                self._known[key] = self.expected(*key)
            must = self._known[key]
            error = float((result - must).abs().max() / must.abs().max())
            if not error <= _TOLERANCE:
                return f"micro-batch {batch} differs from the undivided model by {error:.1e} of its largest value"
        return None


def parallel(job: Job, world: World) -> Turns:
    """Layers of `steps` depth; the scale multiplies every side."""
    scale = job.scale or 1.0
    rows = ceil_to(max(round(_TOKENS * scale), 1), _CUTS * world.ranks)
    hidden = ceil_to(max(round(_HIDDEN * scale), 1), world.ranks)
    ffn = ceil_to(max(round(_FFN * scale), 1), world.ranks)
    make = _tensor_parallel if job.workload == "tp" else _expert_parallel
    return make(world, rows, hidden, ffn, job.round_steps, job.seed)


def _tensor_parallel(world: World, rows: int, hidden: int, ffn: int, layers: int, seed: int) -> Turns:
    """x <- all-reduce(relu(x @ columns of A) @ rows of B), as Megatron divides a feed-forward layer."""
    width = ffn // world.ranks
    mine = slice(world.rank * width, (world.rank + 1) * width)
    weights = [_weights(hidden, ffn, seed + layer) for layer in range(layers)]
    inputs = [_numbers((rows, hidden), seed, 1000 + batch) for batch in range(BATCHES)]
    parts = [(up[:, mine].contiguous(), down[mine].contiguous()) for up, down in weights]

    def build(transport: Transport) -> tuple[list[Stage], list[torch.Tensor]]:
        states = [[x, *(transport.buffer(rows, hidden) for _ in range(layers))] for x in inputs]
        stages = [
            Stage(
                name=f"layer {layer} of micro-batch {batch}",
                lane=batch,
                rows=rows,
                compute=partial(_feed_forward, states[batch][layer], up, down, states[batch][layer + 1]),
                transfer=partial(_reduced, states[batch][layer + 1]),
            )
            for layer, (up, down) in enumerate(parts)
            for batch in range(BATCHES)
        ]
        return stages, [state[-1] for state in states]

    def expected(batch: int, _: int) -> torch.Tensor:
        x = inputs[batch]
        for up, down in weights:
            x = torch.relu(x @ up) @ down
        return x

    size = rows * hidden * 4
    return Turns(
        world,
        f"{layers} layers of {hidden}x{ffn}, {rows} tokens in each of {BATCHES} micro-batches, "
        f"all-reduce of {format_bytes(size)}",
        build,
        "all-reduce",
        size,
        expected,
    )


def _expert_parallel(world: World, rows: int, hidden: int, ffn: int, layers: int, seed: int) -> Turns:
    """One expert per rank and balanced routing: tokens travel to their experts, and back."""
    ranks = world.ranks
    dense = [_numbers((hidden, hidden), seed, 2000 + layer) / hidden**0.5 for layer in range(layers)]
    experts = [[_weights(hidden, ffn, seed + 100 * layer + rank) for rank in range(ranks)] for layer in range(layers)]
    inputs = [[_numbers((rows, hidden), seed, 3000 + 10 * batch + rank) for rank in range(ranks)] for batch in (0, 1)]

    def build(transport: Transport) -> tuple[list[Stage], list[torch.Tensor]]:
        stages: list[Stage] = []
        states = [inputs[batch][world.rank] for batch in range(BATCHES)]
        for layer in range(layers):
            for phase in ("dispatch", "combine"):
                for batch in range(BATCHES):
                    made, received = transport.buffer(rows, hidden), torch.empty(rows, hidden)
                    compute: Compute = partial(_project, states[batch], dense[layer], made)
                    if phase == "combine":
                        compute = partial(_feed_forward, states[batch], *experts[layer][world.rank], made)
                    stages.append(
                        Stage(
                            name=f"layer {layer} {phase} of micro-batch {batch}",
                            lane=batch,
                            rows=rows,
                            compute=compute,
                            transfer=partial(_swapped, made, received),
                        )
                    )
                    states[batch] = received
        return stages, states

    def expected(batch: int, pieces: int) -> torch.Tensor:
        held = inputs[batch]
        for layer in range(layers):
            sent = [x @ dense[layer] for x in held]
            at_experts = [exchanged("all-to-all", sent, rank, pieces) for rank in range(ranks)]
            made = [torch.relu(x @ up) @ down for x, (up, down) in zip(at_experts, experts[layer], strict=True)]
            held = [exchanged("all-to-all", made, rank, pieces) for rank in range(ranks)]
        return held[world.rank]

    size = rows * hidden * 4
    return Turns(
        world,
        f"{layers} layers of one {hidden}x{ffn} expert per rank, {rows} tokens in each of {BATCHES} micro-batches, "
        f"all-to-all of {format_bytes(size)}",
        build,
        "all-to-all",
        size,
        expected,
    )


def _numbers(sides: tuple[int, int], seed: int, which: int) -> torch.Tensor:
    return torch.randn(sides, generator=torch.Generator().manual_seed(seed * 100_003 + which))


def _weights(hidden: int, ffn: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled so that numbers keep their size from layer to layer."""
    return _numbers((hidden, ffn), seed, 1) * (2 / hidden) ** 0.5, _numbers((ffn, hidden), seed, 2) / ffn**0.5


def _feed_forward(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, into: torch.Tensor, rows: slice) -> None:
    torch.mm(torch.mm(x[rows], up).relu_(), down, out=into[rows])


def _project(x: torch.Tensor, weight: torch.Tensor, into: torch.Tensor, rows: slice) -> None:
    torch.mm(x[rows], weight, out=into[rows])


def _reduced(tensor: torch.Tensor, piece: int, pieces: int) -> Transfer:
    part = cut(tensor, piece, pieces)
    return Transfer(kind="all-reduce", send=part, receive=part)


def _swapped(sent: torch.Tensor, received: torch.Tensor, piece: int, pieces: int) -> Transfer:
    return Transfer(kind="all-to-all", send=cut(sent, piece, pieces), receive=cut(received, piece, pieces))
