"""A model that fits a GPU only where another training is allowed: what a user is told, and then gets."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import autotune

SPACE = """
name: small
description: Checkpointing alone.
axes: {precision: [fp16], checkpointing: [none, full]}
graph:
  start: plain
  nodes:
    plain: {title: FP16, set: {precision: fp16, checkpointing: none}, next: {ok: grow, oom: full}}
    full: {title: Checkpointing, set: {checkpointing: full}, next: {ok: grow}}
    grow: {title: Grow, grow: {factor: 2, resolution: 0.5}}
"""


def test_what_would_fit_is_told_with_the_option_that_then_trains_it(tmp_path: Path) -> None:
    """Weights and gradients of gpt2-medium take 2.64 GiB, its weights 1.32 GiB, and 2.51 GiB may be used."""
    (tmp_path / "small.yaml").write_text(SPACE)
    run = (
        "run",
        "--model",
        "gpt2-medium",
        "--seq-len",
        "64",
        "--target-global-batch",
        "512",
        "--space",
        "small.yaml",
    )
    gpu = ("--device", "sim:t4", "--headroom", "0.83", "--json")
    refused = autotune(*run, *gpu, cwd=tmp_path)
    assert refused.code == 3, refused.stderr
    assert "nothing fits" in refused.stderr
    assert any("--allow lora" in line for line in refused.stderr.splitlines())
    decided = refused.document["decided"]
    assert decided["winner"] is None
    offers = {offer["name"]: offer for offer in decided["offers"]}
    assert offers["lora"]["prediction"]["peak"] < 0.17 * 14.75 * 2**30
    assert offers["adamw-8bit"]["prediction"] is None
    assert offers["adamw-8bit"]["reason"]
    assert not {"bf16-pure", "fp8"} & set(offers), "a T4 computes in neither"
    allowed = autotune(*run, *gpu, "--allow", "LoRA", cwd=tmp_path)
    assert allowed.code == 0, allowed.stderr
    best = allowed.document["best"]
    assert best["candidate"]["adapters"] == "lora"
    assert best["allowed"] == ["lora"]
    assert any("what is learned differs" in note for note in best["notes"])
