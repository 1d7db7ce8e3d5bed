"""How should Llama 3 70B be divided over 1,024 GPUs, and what do controls bring there?

python examples/llama_70b_layouts/fastest_layouts.py [GPUS]
"""

import sys

from makeway import load_cluster, load_model, scale

gpus = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
answer = scale(load_model("llama-3-70b"), load_cluster("dgx-h100"), gpus=gpus, top=5)
search = answer.search
assert search is not None

print(f"Llama 3 70B on {gpus:,} H100, predicted: {search.considered:,} layouts, {search.fitting:,} fit in memory")
print("place  tp  pp  chunks  dp  micro batch  step s  tokens/s/GPU  MFU %    GiB")
for row in search.ranked[:5]:
    layout = row.layout
    print(
        f"{row.place:5}  {layout.tp:2}  {layout.pp:2}  {layout.vp:6}  {layout.dp:2}  {layout.micro_batch:11}", end="  "
    )
    print(f"{row.step_ns / 1e9:6.3f}  {row.tokens_per_s_per_gpu:12,.0f}  {100 * row.mfu:5.1f}  {row.memory_gib:5.1f}")

print("where the time of the fastest goes, with the controls that help it most:")
for line in answer.step.ledger:
    print(f"  {line.kind:32} {line.ns / 1e6:9.1f} ms")
