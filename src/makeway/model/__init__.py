"""The model: what fits on an SM, how a workload runs on a device, and how close that is to published results."""
