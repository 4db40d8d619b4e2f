"""Imported by the process that workers are forked from: what a worker of a GPT-2 or of a user's model imports."""

import gc

from autotune.worker.warm import preload

preload({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, distributed=False)
gc.freeze()  # as a server of warm probes does
