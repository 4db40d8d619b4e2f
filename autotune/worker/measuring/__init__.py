"""Measure a training: the time of its steps, its memory, and the verdict."""
