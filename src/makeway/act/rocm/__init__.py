"""Controls on AMD GPUs through torch's HIP build. Not yet run on hardware. Loads no torch until a GPU is looked for."""
