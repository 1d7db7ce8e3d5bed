"""What `import makeway` costs, in fresh processes: time beside a bare interpreter, and modules beyond the bare one.

    python benchmarks/bench_import.py [PROCESSES]

The time of an import is what a process takes beyond a bare interpreter, pair by pair. Two points of reference: the
standard library's argparse, and makeway with every public name looked up. Limits for `import makeway`: 60 ms, and 40
modules that are not the standard library's; no torch, no plotly.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

LIMIT_MS, LIMIT_MODULES, PROCESSES = 60.0, 40, 20
UNWANTED = ("torch", "plotly")
CASES = {
    "a bare interpreter": "pass",
    "import argparse": "import argparse",
    "import makeway": "import makeway",
    "every public name": "import makeway; [getattr(makeway, name) for name in makeway.__all__]",
}
LOADED = "\nimport sys; print(*sys.modules)"


def process_ms(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - started) * 1e3


def modules(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code + LOADED], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:8.1f} ms  (quartiles {low:.1f} to {high:.1f}, n={len(values)})"


def main() -> None:
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else PROCESSES
    for code in CASES.values():
        process_ms(code)  # byte code is written, files are in the page cache
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(processes):
        for name, code in CASES.items():
            times[name].append(process_ms(code))
    bare_times, bare_modules = times["a bare interpreter"], modules(CASES["a bare interpreter"])
    print(f"{'whole process':<20} {quartiles(bare_times)}  a bare interpreter")
    for name, code in list(CASES.items())[1:]:
        beyond = [own - bare for own, bare in zip(times[name], bare_times, strict=True)]
        loaded = modules(code) - bare_modules
        foreign = {module for module in loaded if module.partition(".")[0] not in sys.stdlib_module_names}
        print(f"{name:<20} {quartiles(beyond)}  {len(loaded)} modules, {len(foreign)} not the standard library's")
        if name == "import makeway":
            unwanted = sorted(foreign & set(UNWANTED))
            met = statistics.median(beyond) <= LIMIT_MS and len(foreign) <= LIMIT_MODULES and not unwanted
            print(
                f"{'':<20} limits {LIMIT_MS:g} ms and {LIMIT_MODULES} modules, none of {', '.join(UNWANTED)}: "
                f"{'met' if met else 'NOT met'}"
            )


if __name__ == "__main__":
    main()
