"""Apply techniques to a model or an optimizer, in files named as their declarations."""
