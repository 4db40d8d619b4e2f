"""Run a training on tensors without data, and record every allocation and operator."""
