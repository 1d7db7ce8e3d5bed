"""From a workload and a device to a plan: candidates, score, best, explain."""
