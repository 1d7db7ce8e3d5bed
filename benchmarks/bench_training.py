"""A small transformer under DistributedDataParallel (plain and with fp16 gradients) and fully_shard, over three links.

The same goals as bench_overlap.py. Needs a quiet machine; some minutes.
"""

from __future__ import annotations

from bench_overlap import LINKS, Cell, parsed, run_cells


def main() -> None:
    options = parsed(__doc__)
    kinds = (("ddp", "none"), ("ddp", "fp16"), ("fsdp2", "none"))
    cells = [Cell(workload=workload, link=link, compress=compress) for workload, compress in kinds for link in LINKS]
    run_cells(cells, repeats=3 if options.quick else 15, wide=not options.quick)


if __name__ == "__main__":
    main()
