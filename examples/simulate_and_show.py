"""Predict a GEMM beside an all-reduce on an H100, without and with controls, and show what `makeway simulate` shows.

python examples/simulate_and_show.py
"""

from makeway import load_device, load_preset, parse_control, report_of, simulate
from makeway.show.text import text

device = load_device("H100-SXM5-80GB")
workload = load_preset("gemm-ar", device)

for control in ("", "priority", "partition=24"):
    controls = [parse_control(control)] if control else []
    prediction = simulate(workload, device, controls)
    print(text(report_of(prediction)))  # makeway.show.page and makeway.show.json render the same report
