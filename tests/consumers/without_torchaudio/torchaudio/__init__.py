"""Stands in for torchaudio, which LLaMA-Factory imports always, and of which the registry has CUDA builds alone."""
