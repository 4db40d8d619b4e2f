"""The only code that imports torch: a program of its own, which builds, measures or traces one training."""
