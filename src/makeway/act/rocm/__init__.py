"""Controls on AMD GPUs through torch's HIP build. Not yet run on hardware. Loads torch only to look for a GPU."""
