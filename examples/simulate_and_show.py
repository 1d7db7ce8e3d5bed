"""Predict a GEMM beside an all-reduce on an H100, without and with controls, and show the verdict of each.

python examples/simulate_and_show.py
"""

from makeway import load_device, load_preset, parse_control, report_of, simulate

device = load_device("H100-SXM5-80GB")
workload = load_preset("gemm-ar", device)

for control in ("", "priority", "partition=8"):
    controls = [parse_control(control)] if control else []
    prediction = simulate(workload, device, controls)
    report = report_of(prediction)  # the value that text, page and JSON render
    print(f"{control or 'no control'}: {prediction.t_ns / 1e6:.2f} ms")
    print(f"  {report.headline.sentence} ({report.headline.origin})")
