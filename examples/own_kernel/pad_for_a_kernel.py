"""From a compiled kernel to a pad: does the collective's block fit beside it, what makes room, and does that pay?

python examples/own_kernel/pad_for_a_kernel.py
"""

from pathlib import Path

from makeway import inspect, load_device, load_workload, make_room, parse_controls, resident_blocks, simulate

here = Path(__file__).parent
# The launch, not the file, decides on dynamic shared memory; Triton reports it as `metadata.shared`.
cases = [
    ("matmul.sm_90.cubin", "H100-SXM5-80GB", "nccl-2.32.3/ring-simple", 49_152),
    ("matmul.gfx90a.hsaco", "MI250X", "rccl-5.4.3/generic", 32_768),
]

for file, name, collective, smem_dynamic_bytes in cases:
    device = load_device(name)
    block = inspect(here.parent / file).kernels[0].resources(smem_dynamic_bytes=smem_dynamic_bytes)
    print(f"{file} on {device.name}: {block.threads} threads of {block.registers_per_thread} registers,", end=" ")
    print(f"{block.smem_bytes:,} B of shared memory; {resident_blocks(device, block)} blocks fit on an SM")
    answer = make_room(device, block, collective)
    short = ", ".join(f"{shortage.amount:,} {shortage.resource}" for shortage in answer.beside_full.short_of)
    print(f"  beside them the collective's block is short of {short}; it fits:")
    for option in answer.options:
        print(f"  - {option.joins.replace('_', ' ')}: pad {option.pad_bytes:,} B,", end=" ")
        print(f"{option.compute_blocks} compute blocks per SM, {option.comm_threads} threads of the collective")

device = load_device("MI250X")
layer = load_workload(here / "layer.toml")
print(f"the kernel beside an all-gather of 3 GiB on {device.name} (predicted):")
for words in ([], ["pad=1"], ["priority"], ["pad=1", "priority"]):
    print(f"  {' '.join(words) or 'no control':16} {simulate(layer, device, parse_controls(words)).t_ns / 1e6:.1f} ms")
