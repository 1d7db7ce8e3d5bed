"""Tile shaping, Figs. 5 and 6 of arXiv 2606.09200: time with tile 64x64x64 (opt2) over that with 64x64x32 (opt1).

The paper prints bars without numbers and says in words: opt2 is equal or faster over a wide range, most of all for the
memory-bound pairs; slightly slower only for mb-a2a on A40 at 16 and 32 blocks; alike at very high block counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from makeway.model.presets import PresetOptions, load_preset
from makeway.model.simulate.predict import simulate
from makeway.model.validate.grid import published_device
from makeway.model.validate.rows import Row

OPT1, OPT2 = (64, 64, 32), (64, 64, 64)
SHOWN = {  # the devices of Fig. 5 (all-reduce) and Fig. 6 (all-to-all)
    "cb-ar": ("A100", "H100"),
    "mb-ar": ("A100", "H100"),
    "cb-a2a": ("A40", "A100"),
    "mb-a2a": ("A40", "A100"),
}
COUNTS = (16, 32, 64, 256, 1024, 4096, 16384)
_SLOWER = ("mb-a2a", "A40")  # where opt2 loses, at 16 and 32 blocks
_FEW = (16, 32)
_WORDS = "the paper gives the direction in words, no number"


@cache
def tile_ratio(workload: str, device_name: str, blocks: int) -> float:
    """Predicted time of plain overlap with opt2 over that with opt1."""
    device = published_device(device_name)
    side = min(blocks, 128)
    times = [
        simulate(load_preset(workload, device, PresetOptions(grid=(side, blocks // side), tile=tile)), device).t_ns
        for tile in (OPT1, OPT2)
    ]
    return times[1] / times[0]


def tile_rows() -> Iterator[Row]:
    """For each pair: the best and the worst that opt2 does, and how the two tiles compare at the end."""
    row = partial(Row, unit="x", assumed=(_WORDS,))
    for workload, devices in SHOWN.items():
        for device in devices:
            counts = [n for n in COUNTS if (workload, device) != _SLOWER or n not in _FEW]
            ratios = [tile_ratio(workload, device, n) for n in counts]
            source = f"arXiv 2606.09200 Fig. {5 if workload.endswith('ar') else 6}"
            case = f"{workload}: opt2 over opt1, slowest of {len(counts)} grids (published: at most 1)"
            yield row(source=source, device=device, case=case, published=1.0, predicted=max(ratios))
            case = f"{workload}: opt2 over opt1, fastest grid (published: below 1, most for mb)"
            yield row(source=source, device=device, case=case, published=1.0, predicted=min(ratios))
    workload, device = _SLOWER
    for blocks in _FEW:
        case = f"{workload}: opt2 over opt1 at {blocks} blocks (published: slightly above 1)"
        predicted = tile_ratio(workload, device, blocks)
        yield row(source="arXiv 2606.09200 Fig. 6", device=device, case=case, published=1.0, predicted=predicted)
