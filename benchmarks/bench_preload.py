"""What the launch shim costs: per launch, in instructions, at start-up; and whether 16 threads are counted exactly.

Launches go to the stand-in driver of the tests, which does the documented checks and records nothing. Goals: at most
25 ns and 230 instructions of the shim per padded launch (with occupancy, clusters and carve-out), at most 5 ms added to
the start of a program. A carve-out needs cuLaunchKernelEx: what the stand-in takes longer for that call is counted
apart, since a real driver's cost is not known. Not yet run on hardware.
Run it from the root of the repository: `python benchmarks/bench_preload.py [--quick]`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import interleaved, line

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.standin.build import cuda_driver, environment  # noqa: E402

from makeway.act.preload.build import library  # noqa: E402
from makeway.act.preload.receipts import read_receipts  # noqa: E402
from makeway.act.preload.rules import LaunchRule, Rules, encode_rules, rules_of  # noqa: E402
from makeway.values.plan import Plan  # noqa: E402

KERNEL, ARCH, DEVICE = "gemm", "sm_90", "H100-SXM5-80GB"
THREADS = 16


class Bench:
    """The client and everything it is started with."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.client = home / "launch_cost"
        source = str(ROOT / "benchmarks" / "launch_cost.c")
        subprocess.run(
            ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", source, "-o", self.client, "-ldl", "-lpthread"],
            check=True,
        )
        subprocess.run([sys.executable, ROOT / "tests" / "standin" / "kernels.py", home, ARCH], check=True)
        self.shim = library()
        self.plain = environment(cuda_driver(home), device=DEVICE, record=None)
        comm = rules_of(Plan(controls=())).comm_patterns
        rules = {
            "counted, no rule": Rules(launches=(), comm_patterns=comm, raise_comm_priority=True),
            "padded": Rules(
                launches=(LaunchRule(pattern=KERNEL, pad_bytes=40_000),), comm_patterns=comm, raise_comm_priority=True
            ),
            "padded to 2 blocks per SM": Rules(
                launches=(LaunchRule(pattern=KERNEL, blocks_per_sm=2),), comm_patterns=comm, raise_comm_priority=True
            ),
        }
        self.environments = {"without the shim": self.plain, "preloaded, no rules file": self.shimmed(None)}
        self.environments |= {name: self.shimmed(each) for name, each in rules.items()}

    def shimmed(self, rules: Rules | None) -> dict[str, str]:
        result = {**self.plain, "LD_PRELOAD": str(self.shim)}
        if rules is not None:
            place = Path(tempfile.mkdtemp(dir=self.home))
            (place / "rules").write_bytes(encode_rules(rules))
            result |= {"MAKEWAY_RULES": str(place / "rules"), "MAKEWAY_RECEIPTS": str(place)}
        return result

    def command(self, threads: int, launches: int) -> list[str]:
        return [str(self.client), str(self.home / f"{KERNEL}.{ARCH}.cubin"), KERNEL, "0", str(threads), str(launches)]

    def launch_ns(self, name: str, *, launches: int) -> float:
        """Nanoseconds of processor time per launch of one process, on one thread."""
        done = subprocess.run(
            self.command(1, launches), env=self.environments[name], check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    def instructions(self, name: str) -> tuple[float, float] | None:
        """Instructions per launch, in all and in the shim: the difference of two runs over the launches between."""
        if shutil.which("valgrind") is None:
            return None
        few, many = (self._instructions(name, launches) for launches in (1000, 11_000))
        return (many[0] - few[0]) / 10_000, (many[1] - few[1]) / 10_000

    def _instructions(self, name: str, launches: int) -> tuple[int, int]:
        out = self.home / "callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *self.command(1, launches)]
        subprocess.run(command, env=self.environments[name], check=True, capture_output=True, text=True)
        return costs(out.read_text(), self.shim.name)

    def count_threads(self, launches: int) -> tuple[int, int]:
        """Launches made by 16 threads, and those in the receipts."""
        environment = self.environments["padded"]
        place = Path(environment["MAKEWAY_RECEIPTS"])
        for path in place.glob("launch-*"):
            path.unlink()
        subprocess.run(self.command(THREADS, launches), env=environment, check=True, capture_output=True)
        (process,) = read_receipts(place)
        return THREADS * launches, sum(kernel.padded for kernel in process.kernels)


def costs(profile: str, library: str) -> tuple[int, int]:
    """Instructions of a callgrind profile, in all and in one library; a call costs what the callee's lines say."""
    names: dict[str, str] = {}
    inside, called, total, own = False, False, 0, 0
    for text in profile.splitlines():
        if entry := re.match(r"ob=\((\d+)\)(?: (.*))?", text):
            names[entry[1]] = entry[2] or names[entry[1]]
            inside = names[entry[1]].endswith(library)
        elif entry := re.match(r"cob=\((\d+)\) (.*)", text):
            names[entry[1]] = entry[2]
        elif text.startswith("calls="):
            called = True  # the next line is what the call took
        elif re.match(r"[+\-*\d]", text):
            if not called:
                count = int(text.split()[1])
                total += count
                own += count if inside else 0
            called = False
    return total, own


def main() -> None:
    quick = "--quick" in sys.argv
    rounds, launches = (5, 100_000) if quick else (25, 500_000)
    with tempfile.TemporaryDirectory() as home:
        bench = Bench(Path(home))
        nanoseconds: dict[str, list[float]] = {name: [] for name in bench.environments}
        for _ in range(rounds):
            for name, found in nanoseconds.items():
                found.append(bench.launch_ns(name, launches=launches))
        print(
            f"ns of processor time per launch, {launches:,} launches in each of {rounds} processes, "
            f"taking turns ({os.cpu_count()} cores)"
        )
        for name, found in nanoseconds.items():
            instructions = bench.instructions(name)
            counted = "valgrind is not installed"
            if instructions is not None:
                counted = f"{instructions[0]:.0f} instructions, {instructions[1]:.0f} of them in the shim"
            print(f"{line(name, found, unit=1.0, sign='ns')}  {counted}")
        made, counted_launches = bench.count_threads(10_000 if quick else 1_000_000)
        print(f"{THREADS} threads: {made:,} launches made, {counted_launches:,} in the receipts")
        true = ["/bin/true"]
        cases = {
            name: lambda env=bench.environments[name]: subprocess.run(true, env=env, check=True)
            for name in ("without the shim", "padded")
        }
        for name, seconds in interleaved(cases, rounds=rounds * 4).items():
            print(line(f"start of a program, {name}", seconds))


if __name__ == "__main__":
    main()
