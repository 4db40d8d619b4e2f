"""Timelines of a model's training steps, made by workers without a device, or read from the cache."""
