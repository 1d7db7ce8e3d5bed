"""Controls on NVIDIA GPUs through torch. Not yet run on hardware. Loads torch only to look for a GPU."""
