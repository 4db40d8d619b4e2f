"""Candidates of which some share their passes and others their optimizer."""

from autotune.candidate import Candidate

PASSES = [Candidate(checkpointing=value) for value in ("none", "selective", "full")]
OTHERS = [{"optimizer_kernel": "foreach"}, {"offload": "optimizer"}]
LADDER = [one.model_copy(update=other) for one in PASSES for other in ({}, *OTHERS)]
