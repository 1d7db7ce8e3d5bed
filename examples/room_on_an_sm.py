"""Does NCCL's block fit beside a busy kernel, and what makes room for it?

python examples/room_on_an_sm.py
"""

from makeway import load_device, load_footprint, make_room, parse_resources, resident_blocks

device = load_device("H100-SXM5-80GB")
gemm = parse_resources("threads=128,registers=128,smem=48KiB")
nccl = load_footprint("nccl-2.32.3/ring-simple", device.arch)

print(f"{device.name}: {resident_blocks(device, gemm)} blocks of the GEMM fit on an SM")
answer = make_room(device, gemm, nccl)
print(f"beside all of them, NCCL's block {'fits' if answer.beside_full.fits else 'does not fit'}")
for option in answer.options:
    print(f"  {option.joins.replace('_', ' ')}: pad each GEMM block by {option.pad_bytes:,} bytes;", end=" ")
    print(f"resident blocks per SM: {option.compute_blocks}, threads of NCCL's block: {option.comm_threads}")
