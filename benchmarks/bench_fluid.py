"""simulate() of layer presets by the fluid engine and by the per-block engine (the default), cold and warm.

Goal, one core: at most 20 ms warm by fluid, baselines included. Cold means that no run is kept; from disk, that another
process has left its runs; warm, that this process has. Every time is processor time of simulate() with its baselines.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timing import line

from makeway import load_device
from makeway.model.presets import load_preset, preset_names
from makeway.model.simulate import fluid, predict
from makeway.model.simulate.kept_runs import kept_run
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.values.control import CommPriority, Control

DEVICES = ("H100-SXM5-80GB", "A100-SXM4-80GB", "MI300X")
LAYERS = tuple(name for name in preset_names() if name.split("-")[0] not in ("conccl", "cb", "mb"))
VARIANTS: dict[str, tuple[Control, ...]] = {"none": (), "priority": (CommPriority(),)}
ROUNDS = 7


def timed(run: Callable[[], Prediction], *, forget: bool) -> tuple[float, Prediction]:
    predict._baseline.cache_clear()
    if forget:
        fluid._pairs.cache_clear()
        kept_run.cache_clear()
    started = time.process_time()
    prediction = run()
    return time.process_time() - started, prediction


def case(preset: str, device_name: str, controls: tuple[Control, ...]) -> tuple[dict[str, list[float]], float, str]:
    """Seconds by kind of run, the deviation of the fluid engine, and why it fell back."""
    device = load_device(device_name)
    workload = load_preset(preset, device)
    seconds: dict[str, list[float]] = {}
    ends: dict[str, Prediction] = {}
    for engine in ("fluid", "block"):

        def run(engine: str = engine) -> Prediction:
            return simulate(workload, device, controls, Settings(engine=engine))  # type: ignore[arg-type]

        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = str(Path(cache))
            cold, ends[engine] = timed(run, forget=True)
            seconds[f"{engine} cold"] = [cold]
            seconds[f"{engine} from disk"] = [timed(run, forget=True)[0] for _ in range(ROUNDS)]
            seconds[f"{engine} warm"] = [timed(run, forget=False)[0] for _ in range(ROUNDS)]
    return seconds, ends["fluid"].t_ns / ends["block"].t_ns - 1.0, ends["fluid"].fallback or ""


def main() -> None:
    everything: dict[str, list[float]] = {}
    deviations, ratios = [], []
    print(f"{'':<42} {'fluid, ms':>24} {'block, ms':>24}  block cold /")
    print(f"{'preset':<16} {'device':<15} {'control':<8} {'    cold    disk    warm' * 2}  fluid warm      off")
    for device in DEVICES:
        for preset in LAYERS:
            for name, controls in VARIANTS.items():
                seconds, off, fallback = case(preset, device, controls)
                medians = {kind: 1e3 * statistics.median(values) for kind, values in seconds.items()}
                times = "".join(f"{value:8.1f}" for value in medians.values())
                ratio = medians["block cold"] / medians["fluid warm"]
                print(f"{preset:<16} {device:<15} {name:<8} {times} {ratio:10.0f} {off:+9.3%} {fallback}", flush=True)
                ratios.append(ratio)
                deviations.append(abs(off))
                for kind, value in medians.items():
                    everything.setdefault(kind, []).append(value / 1e3)
    for kind, values in everything.items():
        print(f"{line(f'simulate(), {kind}', values)}; longest {1e3 * max(values):.1f} ms")
    print(
        f"block cold / fluid warm: median {statistics.median(ratios):.0f}, from {min(ratios):.0f} to {max(ratios):.0f}"
    )
    close = sum(off <= 0.008 for off in deviations)
    print(f"off by at most 0.8 %: {close} of {len(deviations)}; most {max(deviations):.3%}; goal for fluid warm: 20 ms")


if __name__ == "__main__":
    main()
