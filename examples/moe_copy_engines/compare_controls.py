"""An MoE layer whose all-to-all runs on SMs, at high priority, in fewer blocks, or on copy engines.

python examples/moe_copy_engines/compare_controls.py [DEVICE]
"""

import sys
from pathlib import Path

from makeway import load_device, load_workload, parse_controls, simulate

device = load_device(sys.argv[1] if len(sys.argv) > 1 else "H100-SXM5-80GB")
layer = load_workload(Path(__file__).with_name("moe_layer.toml"))

print(f"{layer.name} on {layer.ranks} x {device.name} (predicted)")
print("controls                      ms  % of ideal")
for words in ([], ["priority"], ["priority", "comm-blocks=8"], ["copy-engine"]):
    step = simulate(layer, device, parse_controls(words))
    share = f"{100 * step.share_of_ideal:.0f}" if step.share_of_ideal is not None else "-"
    print(f"{' '.join(words) or 'none':24} {step.t_ns / 1e6:7.3f} {share:>11}")
