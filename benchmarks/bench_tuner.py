"""What the tuner plugin costs per collective: nanoseconds and instructions, by what its rules say.

Our own driver of the tuner interface calls it as NCCL does. Goal: at most 200 ns per collective. Not yet run under a
real NCCL. Run it from the root of the repository: `python benchmarks/bench_tuner.py [--quick]`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import line

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.tuner.programs import MIB, Bench, compile_driver  # noqa: E402

from makeway.act.tuner.build import plugin  # noqa: E402
from makeway.act.tuner.channels import ChannelRule, encode_file  # noqa: E402
from makeway.act.tuner.live import set_channels  # noqa: E402

TREE = ChannelRule(channels=8, algorithm="tree", protocol="simple")
PASSED_OVER = tuple(ChannelRule(collective="reduce", channels=1, max_bytes=size) for size in range(31))
CASES: dict[str, tuple[ChannelRule, ...] | None] = {
    "no rules file": None,
    "no rule matches": (ChannelRule(collective="reduce", channels=8),),
    "channels": (ChannelRule(channels=8),),
    "channels, algorithm, protocol": (TREE,),
    "the last of 32 rules": (*PASSED_OVER, TREE),
}


def prepared(home: Path, name: str, rules: tuple[ChannelRule, ...] | None, driver: Path) -> tuple[Bench, Path | None]:
    """A bench with its own directory, and the rules file."""
    place = home / name.replace(" ", "-")
    place.mkdir()
    bench = Bench(driver=driver, plugin=plugin(), home=place)
    return bench, None if rules is None else bench.rules(encode_file(rules, most_channels=8))


def nanoseconds(bench: Bench, rules: Path | None, calls: int) -> float:
    """Processor time per call."""
    command = [str(bench.driver), "6", "comm", "8", "time", str(calls), str(MIB)]
    done = subprocess.run(
        command, env=bench.environment(rules), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return float(done.stdout)


def instructions(bench: Bench, rules: Path | None) -> float | None:
    """Instructions per call: the difference between two lengths of run, divided by the calls between."""
    if shutil.which("valgrind") is None:
        return None
    few, many = (_instructions(bench, rules, calls) for calls in (1000, 11_000))
    return (many - few) / 10_000


def _instructions(bench: Bench, rules: Path | None, calls: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [str(bench.driver), "6", "comm", "8", "time", str(calls), str(MIB)]
    done = subprocess.run(command, env=bench.environment(rules), check=True, capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    assert collected, done.stderr
    return int(collected[1])


def main() -> None:
    quick = "--quick" in sys.argv
    rounds, calls = (5, 200_000) if quick else (25, 2_000_000)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        driver = compile_driver(home / "driver")
        benches = {case: prepared(home, case, rules, driver) for case, rules in CASES.items()}
        _, path = benches["changed 63 times"] = prepared(home, "changed 63 times", (TREE,), driver)
        assert path is not None
        for number in range(1, 64):
            set_channels(path, 1 + number % 8, from_call=number)
        times: dict[str, list[float]] = {case: [] for case in benches}
        for _ in range(rounds):
            for case, samples in times.items():
                samples.append(nanoseconds(*benches[case], calls))
        print(f"ns of processor time per collective, {calls:,} calls in each of {rounds} processes, taking turns")
        for case, samples in times.items():
            counted = instructions(*benches[case])
            words = "valgrind is not installed" if counted is None else f"{counted:.0f} instructions"
            print(f"{line(case, samples, unit=1.0, sign='ns')}  {words}")


if __name__ == "__main__":
    main()
