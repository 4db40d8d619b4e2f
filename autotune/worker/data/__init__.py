"""Make batches: synthetic ones, packed or padded rows, or those of a user's dataset."""
