"""Build a training: the model, the optimizer, and every technique in its order."""
