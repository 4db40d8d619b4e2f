"""Compiled blocks on the stand-in for CUDA; `test_compile.py` runs these in a process of their own."""

import pytest

from autotune.worker.errors import CannotTrace
from autotune.worker.techniques import compilation
from autotune.worker.tracing.trace import trace
from tests.data.requests import request
from tests.numerics.runs import MODELS


def _traced(tmp_path, ranks=1, **fields):
    fields = {"precision": "bf16", "seq_len": 64, **fields}
    probe = request(MODELS["llama"], tmp_path, device="cuda:0", **fields)
    return trace(probe.model_copy(update={"world_size": ranks}))


def test_a_gpus_compiled_blocks_are_traced_without_one(tmp_path):
    compiled, plain = (_traced(tmp_path, compile=how) for how in ("regional", "none"))
    assert compiled.exact is None
    # What is fused is not made: of a block, the SiLU's result and all that norms and rotations have between.
    assert 0.5 < compiled.allocated(8) / plain.allocated(8) < 0.9
    for phase in ("forward", "backward"):
        ours, theirs = (dict(_by_kind(line.work.of(phase, 8))) for line in (compiled, plain))
        assert ours["matmul"][0] == pytest.approx(theirs["matmul"][0], rel=0.001)
        assert ours["attention"][0] == theirs["attention"][0]
        assert ours["memory"][1] < 0.6 * theirs["memory"][1]
    names = {operator.name for operator, _ in compiled.work.of("forward", 8)}
    assert any(name.startswith("triton_poi_fused") and "silu" in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "fields"), [(2, {"sharding": "fsdp2"}), (1, {"adapters": "lora"})], ids=str
)
def test_a_gpus_compiled_blocks_are_traced_with_what_goes_around_them(ranks, fields, tmp_path):
    compiled, plain = (_traced(tmp_path, ranks, compile=how, **fields) for how in ("regional", "none"))
    assert compiled.exact is None
    assert 0.5 < compiled.allocated(8) / plain.allocated(8) < 0.95
    ours, theirs = (dict(_by_kind(line.work.of("backward", 8))) for line in (compiled, plain))
    assert ours.keys() == theirs.keys()
    assert ours["matmul"][0] == pytest.approx(theirs["matmul"][0], rel=0.001)
    if ranks > 1:
        assert ours["reduce_scatter"] == theirs["reduce_scatter"]


def test_why_the_compiler_takes_no_block_is_told_in_its_words(tmp_path, monkeypatch):
    def refusing(graph, inputs):
        raise RuntimeError("no kernel for this\nand a long story")

    monkeypatch.setattr(compilation, "BACKEND", refusing)
    with pytest.raises(CannotTrace) as told:
        _traced(tmp_path, compile="regional")
    assert "(no kernel for this)" in str(told.value)


def _by_kind(operators):
    """Return (kind, (FLOPs, bytes)) of operators with their counts."""
    kinds = {operator.kind for operator, _ in operators}
    for kind in kinds:
        alike = [(operator, count) for operator, count in operators if operator.kind == kind]
        yield (
            kind,
            tuple(sum(getattr(one, field) * count for one, count in alike) for field in ("flops", "bytes")),
        )
