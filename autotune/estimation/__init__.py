"""`autotune estimate`: predict memory and speed of candidates on a GPU that need not be there."""
