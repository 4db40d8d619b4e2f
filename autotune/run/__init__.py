"""One run: its loop, its journal and folder, its proof and its `best.yaml`."""
