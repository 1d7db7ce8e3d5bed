"""makeway's tuner plugin for NCCL and RCCL: channels, algorithm and protocol by call, changed while the job runs."""
