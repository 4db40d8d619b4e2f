"""Devices as seen from outside their workers: NVIDIA GPUs, the processor with a budget, simulated GPUs."""
