"""Stands for wandb, which axolotl 0.19 imports always and calls only where a run is reported to it."""
