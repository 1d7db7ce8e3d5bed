"""How long one residency question takes, in pure Python. Goal: `blocks beside` under 20 microseconds."""

from __future__ import annotations

from timing import interleaved, line

from makeway import blocks_beside, load_device, load_footprint, make_room, pad_range, parse_resources, resident_blocks

REPEATS = 1000


def main() -> None:
    device = load_device("H100-SXM5-80GB")
    compute = parse_resources("threads=256,registers=98,smem=48KiB")
    comm = load_footprint("nccl-2.32.3/ring-simple", device.arch)
    block = comm.block
    assert block is not None

    cases = {
        "blocks alone": lambda: [resident_blocks(device, compute) for _ in range(REPEATS)],
        "blocks beside": lambda: [blocks_beside(device, compute, 2, block) for _ in range(REPEATS)],
        "pad range": lambda: [pad_range(device, compute, 1) for _ in range(REPEATS)],
        "room-making question, all options": lambda: [make_room(device, compute, comm) for _ in range(REPEATS)],
    }
    print("residency questions (pure Python, one core)")
    for name, seconds in interleaved(cases, rounds=30).items():
        print(line(name, seconds, per=REPEATS, unit=1e-6, sign="us"))


if __name__ == "__main__":
    main()
