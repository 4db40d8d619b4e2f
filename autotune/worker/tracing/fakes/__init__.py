"""Stand-ins for what a trace runs without: CUDA, ranks, compilers, flash-attn, Triton, DeepSpeed."""
