"""Apply what lets several ranks share a training: DDP, ZeRO, FSDP2, DeepSpeed, tensor parallelism."""
