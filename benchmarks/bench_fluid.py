"""simulate() of layer presets by the fluid engine, cold and warm, against the engine that `auto` takes.

Goal, one core: at most 20 ms warm, baselines included. Cold means that no pair has been measured; warm from disk, that
another process has. Every time is processor time of simulate() with its four baselines; none of them is cached
between rounds.
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
from makeway.model.simulate.predict import Prediction, Settings, simulate
from makeway.values.control import CommPriority, Control

DEVICES = ("H100-SXM5-80GB", "A100-SXM4-80GB", "MI300X")
LAYERS = tuple(name for name in preset_names() if name.split("-")[0] not in ("conccl", "cb", "mb"))
VARIANTS: dict[str, tuple[Control, ...]] = {"none": (), "priority": (CommPriority(),)}
ROUNDS = 11
FULL_ROUNDS = 3


def timed(run: Callable[[], Prediction], *, forget: bool) -> tuple[float, Prediction]:
    predict._baseline.cache_clear()
    if forget:
        fluid._pairs.cache_clear()
    started = time.process_time()
    prediction = run()
    return time.process_time() - started, prediction


def case(preset: str, device_name: str, controls: tuple[Control, ...]) -> tuple[dict[str, list[float]], float, str]:
    """Seconds by kind of run, the deviation of the fluid engine, and why it fell back."""
    device = load_device(device_name)
    workload = load_preset(preset, device)

    def by(engine: str) -> Callable[[], Prediction]:
        return lambda: simulate(workload, device, controls, Settings(engine=engine))  # type: ignore[arg-type]

    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = str(Path(cache))
        cold, quick = timed(by("fluid"), forget=True)
        seconds["cold"] = [cold]
        seconds["from disk"] = [timed(by("fluid"), forget=True)[0] for _ in range(ROUNDS)]
        seconds["warm"] = [timed(by("fluid"), forget=False)[0] for _ in range(ROUNDS)]
    runs = [timed(by("auto"), forget=False) for _ in range(FULL_ROUNDS)]
    seconds["full"] = [spent for spent, _ in runs]
    return seconds, quick.t_ns / runs[0][1].t_ns - 1.0, quick.fallback or ""


def main() -> None:
    everything: dict[str, list[float]] = {}
    deviations, ratios = [], []
    print(
        f"{'preset':<16} {'device':<15} {'control':<9} {'cold':>7} {'disk':>7} {'warm':>7} {'full':>8} ms  ratio  off"
    )
    for device in DEVICES:
        for preset in LAYERS:
            for name, controls in VARIANTS.items():
                seconds, off, fallback = case(preset, device, controls)
                medians = {kind: 1e3 * statistics.median(values) for kind, values in seconds.items()}
                times = "".join(f"{medians[kind]:8.1f}" for kind in ("cold", "from disk", "warm", "full"))
                ratio = medians["full"] / medians["warm"]
                print(f"{preset:<16} {device:<15} {name:<8} {times}    {ratio:7.0f} {off:+8.3%} {fallback}", flush=True)
                ratios.append(ratio)
                deviations.append(abs(off))
                for kind, value in medians.items():
                    everything.setdefault(kind, []).append(value / 1e3)
    for kind, values in everything.items():
        print(f"{line(f'simulate(), {kind}', values)}; longest {1e3 * max(values):.1f} ms")
    print(f"full / warm: median {statistics.median(ratios):.0f}, from {min(ratios):.0f} to {max(ratios):.0f}")
    close = sum(off <= 0.008 for off in deviations)
    print(f"off by at most 0.8 %: {close} of {len(deviations)}; most {max(deviations):.3%}; goal for warm: 20 ms")


if __name__ == "__main__":
    main()
