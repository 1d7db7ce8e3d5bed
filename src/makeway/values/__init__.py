"""Values: devices, kernels, workloads, controls, plans, timelines. Frozen, checked once, no side effects."""
