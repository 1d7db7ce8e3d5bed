"""Controls on NVIDIA GPUs through torch. Not yet run on hardware. Loads no torch until a GPU is looked for."""
