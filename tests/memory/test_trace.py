"""The trace against real training on the CPU, byte by byte; and the rules by which the CUDA stand-in differs."""

import gc
import json
from pathlib import Path

import pytest
import torch

from autotune.candidate import Candidate, alike
from autotune.lengths import Lengths
from autotune.models.resolve import resolve
from autotune.timeline.timeline import Timeline
from autotune.worker.build.assembly import assemble
from autotune.worker.errors import CannotTrace
from autotune.worker.techniques import activation_offload, offload_store
from autotune.worker.tracing.storage_recorder import StorageRecorder, _known_operators
from autotune.worker.tracing.trace import trace, trace_alike
from tests.memory.counted import SEQ_LEN, InMemory, evaluated, measured, request


@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
def test_a_trace_counts_the_bytes_of_real_steps_at_any_micro_batch(model):
    timeline = trace(request(model))
    for micro_batch, micro_steps in ((1, 1), (2, 1), (7, 1), (1, 2), (5, 2)):
        real = measured(request(model, micro_batch=micro_batch), micro_steps)
        assert timeline.allocated(micro_batch, accumulating=micro_steps > 1) == pytest.approx(real, rel=1e-4)


@pytest.mark.parametrize("sequences", ["padded", "packed"])
def test_the_masks_of_padded_and_packed_rows_are_traced_as_they_are_made(sequences):
    lengths = Lengths(file="lengths.csv", digest="0", counts=((5, 8), (30, 3), (SEQ_LEN, 1)))

    def of(**fields):
        fields = {"sequences": sequences, **fields}
        return request("tiny-llama", **fields).model_copy(update={"lengths": lengths})

    timeline = trace(of())
    for micro_batch in (1, 5):
        real = measured(of(micro_batch=micro_batch))
        # The profiler counts the rows' own tensors on their way to the batch; a trace gives each the device's.
        assert timeline.allocated(micro_batch) == pytest.approx(real, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trace_counts_the_bytes_of_an_evaluation_at_any_micro_batch(precision):
    timeline = trace(request("tiny-llama", precision=precision).model_copy(update={"evaluation": True}))
    assert Timeline.parse(timeline.dump()) == timeline
    real = evaluated(request("tiny-llama", precision=precision, micro_batch=3), 20)
    assert timeline.evaluated(3, 20) == pytest.approx(real, rel=1e-4)
    assert trace(request("tiny-llama", precision=precision)).evaluation is None, "only where it is asked for"


@pytest.mark.parametrize(
    "how",
    [
        {"checkpointing": "selective"},
        {"checkpointing": "selective", "checkpointed_blocks": 1},
        {"checkpointing": "full", "checkpointed_blocks": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
def test_partial_checkpointing_is_traced_as_it_runs(model, how):
    timeline = trace(request(model, **how))
    for micro_batch in (1, 6):
        real = measured(request(model, **how, micro_batch=micro_batch))
        # As below; selective checkpointing keeps the state of two more generators' contexts a block.
        assert timeline.allocated(micro_batch) == pytest.approx(real, abs=2 * 3 * 5056 + 512)
    assert timeline.allocated(16) < 0.95 * trace(request(model)).allocated(16)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
def test_activation_offload_is_traced_as_it_runs(model, checkpointing, monkeypatch):
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 10)
    fields = {"checkpointing": checkpointing, "activation_offload": True}
    timeline = trace(request(model, **fields))
    assert timeline.exact is None, "the same tensors are moved at every micro-batch"
    moved = []

    class Counted(InMemory):
        def zeros_like(self, tensor):
            moved.append(tensor.nbytes)
            return super().zeros_like(tensor)

    monkeypatch.setattr(offload_store, "MappedFiles", Counted)
    for micro_batch in (1, 7):
        moved.clear()
        real = measured(request(model, micro_batch=micro_batch, **fields))
        assert timeline.allocated(micro_batch) == pytest.approx(real, abs=2 * 5056 + 1024)
        assert 2 * timeline.activations_on_disk(micro_batch) == sum(moved) > 0, "of two steps"
    assert timeline.allocated(16) < trace(request(model, checkpointing=checkpointing)).allocated(16)


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
@pytest.mark.parametrize("adapters", ["none", "lora"])
def test_adapters_and_pure_bf16_are_traced_as_they_run(adapters, precision):
    timeline = trace(request("tiny-llama", adapters=adapters, precision=precision))
    assert timeline.exact is None
    for micro_batch in (1, 6):
        real = measured(
            request("tiny-llama", micro_batch=micro_batch, adapters=adapters, precision=precision)
        )
        assert timeline.allocated(micro_batch) == pytest.approx(real, rel=1e-3)


@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
def test_chunked_loss_is_traced_as_it_runs(model):
    timeline = trace(request(model, loss="chunked"))
    assert timeline.exact is None
    for micro_batch, micro_steps in ((1, 1), (7, 1), (5, 2)):
        real = measured(request(model, micro_batch=micro_batch, loss="chunked"), micro_steps)
        assert timeline.allocated(micro_batch, accumulating=micro_steps > 1) == pytest.approx(real, rel=1e-3)
    assert timeline.allocated(16) < 0.95 * trace(request(model)).allocated(16)


@pytest.mark.parametrize(("name", "seq_len"), [("benchmarks/own_model.py:build", 128), ("mixtral", 64)])
def test_convolutions_and_experts_are_counted_too(name, seq_len):
    if name == "mixtral":
        spec = resolve("mixtral-8x7b", base=Path.cwd())
        small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 500}  # fmt: skip
        spec = spec.model_copy(
            update={"config": {**spec.config, **small, "bos_token_id": 1, "eos_token_id": 2}}
        )
    else:
        spec = resolve(name, base=Path(__file__).parents[2])

    def probe(micro_batch):
        return request(seq_len=seq_len, micro_batch=micro_batch).model_copy(update={"model": spec})

    timeline = trace(probe(1))
    for micro_batch in (1, 7):
        # oneDNN's copies are those of AVX-512; elsewhere its blocks, and so the copies, may differ.
        assert timeline.allocated(micro_batch) == pytest.approx(measured(probe(micro_batch)), rel=1e-3)


def user_module(tmp_path, forward):
    """Return a model whose forward pass has the given lines between `x`, of width 4, and the returned `y`."""
    source = f"""
import torch

class Moody(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.table = None

    def forward(self, x):
        y = self.linear(x)
        {forward}
        return y.sum()

def build():
    return Moody(), lambda micro_batch, seq_len: {{"x": torch.ones(micro_batch, 4)}}
"""
    (tmp_path / f"{tmp_path.name}.py").write_text(source)
    return resolve(f"{tmp_path.name}.py:build", base=tmp_path)


def test_a_path_that_switches_with_the_size_is_traced_at_its_own_micro_batch(tmp_path):
    spec = user_module(tmp_path, "y = y.exp().sin() if len(x) > 2 else y")
    for micro_batch in (1, 5):
        timeline = trace(request(micro_batch=micro_batch).model_copy(update={"model": spec}))
        assert timeline.exact == micro_batch
        assert not timeline.covers(3)
    assert timeline.facts["model"] == "Moody"


def test_a_model_that_sets_itself_up_at_its_first_step_is_traced_from_its_second(tmp_path):
    spec = user_module(
        tmp_path,
        "self.table = torch.ones(9999) if self.table is None else self.table; y = y + self.table.sum()",
    )
    timeline = trace(request().model_copy(update={"model": spec}))
    assert timeline.exact is None
    sizes = timeline.sizes(4)
    assert 9999 * 4 in [sizes[event] for event in timeline.build.events if event >= 0]
    assert 9999 * 4 not in [sizes[event] for event in timeline.micro.events if event >= 0]


def test_checkpointing_and_plain_sgd_are_traced_as_they_run():
    fields = {"checkpointing": "full", "optimizer": "sgd"}
    timeline = trace(request("tiny-llama", **fields))
    # Each block keeps the generator's state (5056 B), which no operator makes.
    real = measured(request("tiny-llama", micro_batch=4, **fields))
    assert timeline.allocated(4) == pytest.approx(real, abs=2 * 5056 + 512)
    assert timeline.peak(4).breakdown["optimizer_state"] == 0


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw-8bit", "adafactor", "momentum"])
def test_optimizers_are_traced_as_they_run(optimizer, in_backward):
    fields = {"optimizer": optimizer, "optimizer_in_backward": in_backward}
    timeline = trace(request(**fields))
    for micro_batch in (1, 5):
        real = measured(request(micro_batch=micro_batch, **fields))
        assert timeline.allocated(micro_batch) == pytest.approx(real, rel=1e-3)
    state = timeline.peak(5).breakdown["optimizer_state"]
    assert state > 0.01 * timeline.peak(5).breakdown["parameter"]


def test_foreach_takes_the_roots_of_all_second_moments_at_once():
    peaks = {}
    for kernel in ("fused", "foreach"):
        # So short that the peak is in the step.
        probe = request(seq_len=4, micro_batch=2, optimizer_kernel=kernel)
        peaks[kernel] = trace(probe).peak(2)
        assert peaks[kernel].bytes == pytest.approx(measured(probe), rel=1e-3)
    assert peaks["foreach"].phase == "optimizer"
    assert peaks["foreach"].breakdown["temporary"] == pytest.approx(
        peaks["fused"].breakdown["parameter"], rel=0.01
    )


@pytest.mark.parametrize("offload", ["optimizer", "full"])
def test_what_lives_in_files_is_not_counted(offload, tmp_path):
    timeline = trace(request("tiny-llama", offload=offload))
    probe = request("tiny-llama", offload=offload, micro_batch=3).model_copy(update={"folder": str(tmp_path)})
    parameters = timeline.facts["parameters"] * 4
    in_files = {"optimizer": 2, "full": 4}[offload] * parameters  # the profiler counts mapped files too
    assert timeline.allocated(3) == pytest.approx(measured(probe) - in_files, rel=1e-4)
    assert not list(tmp_path.iterdir())


def test_a_model_that_looks_at_its_values_is_refused_by_the_name_of_the_operator(tmp_path):
    spec = user_module(tmp_path, "y = y if y.mean() > 0 else y.abs()")
    with pytest.raises(CannotTrace, match=r"_local_scalar_dense.*probe"):
        trace(request().model_copy(update={"model": spec}))


def test_the_peak_is_explained_by_what_is_alive_at_it():
    timeline = trace(request())
    peak = timeline.peak(8)
    assert sum(peak.breakdown.values()) == peak.bytes
    parameters = sum(p.numel() * 4 for p in assemble(request()).model.parameters())
    assert peak.breakdown["parameter"] == parameters
    # Two moments, and a step counter for each of the parameters.
    assert 0 <= peak.breakdown["optimizer_state"] - 2 * parameters < 1024
    assert peak.breakdown["activation"] > peak.breakdown["temporary"]
    assert peak.phase == "backward"
    assert peak.step == 2, "the optimizer's state exists from the first step's end on"
    assert peak.holders[0].module.startswith("transformer.h.")


def test_memory_grows_by_a_constant_with_the_micro_batch_and_not_with_the_optimizer():
    timeline = trace(request())
    slopes = {timeline.allocated(m + 1) - timeline.allocated(m) for m in (20, 30, 40)}
    assert len(slopes) == 1
    stateless = trace(request(optimizer="sgd"))
    state = timeline.peak(16).breakdown["optimizer_state"]
    assert timeline.allocated(16) - stateless.allocated(16) == state


def test_a_trace_survives_its_cache():
    timeline = trace(request())
    again = type(timeline).parse(timeline.dump())
    assert again == timeline
    assert again.peak(3) == timeline.peak(3)


def test_a_trace_is_the_same_whatever_was_traced_before():
    def said(timeline):
        return {name: value for name, value in json.loads(timeline.dump()).items() if name != "facts"}

    asked = [
        request(seq_len=48, **fields) for fields in ({}, {"precision": "bf16", "optimizer": "adafactor"})
    ]
    _known_operators.cache_clear()
    first = said(trace(asked[0]))
    _known_operators.cache_clear()
    trace(asked[1])
    assert said(trace(asked[0])) == first


def test_a_trace_keeps_the_collector_away_from_what_was_frozen_before():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        trace(request(optimizer="sgd"))
        assert gc.get_freeze_count() > 0.9 * frozen > 0  # a few of them may have ended by themselves
    finally:
        gc.unfreeze()


def test_what_is_written_into_a_tensor_that_was_given_is_no_allocation():
    with StorageRecorder("cpu", {}) as recorder:
        matrix, result = torch.empty(4, 4), torch.empty(4, 4)
        for _ in range(2):  # the second call is replayed
            with recorder.segment() as segment:
                assert torch.mm(matrix, matrix, out=result) is result
            assert segment.events == []


def test_values_of_positions_and_masks_are_known_and_floats_are_not():
    with StorageRecorder("cpu", {}):
        positions = torch.arange(8)[None] + torch.tensor([[0], [1]])
        assert bool((positions.diff(dim=-1) == 1).all())
        positions[:, 3] = 7
        assert not bool((positions.diff(dim=-1) == 1).all())
        assert positions[0].tolist() == [0, 1, 2, 7, 4, 5, 6, 7]
        unknown = torch.empty(8) > 0
        with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
            bool(unknown.any())
        positions[0, 0] = torch.randint(8, ())
        with pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
            positions.max().item()


@pytest.mark.parametrize(
    ("ranks", "fields", "others"),
    [
        (1, {}, [{"offload": "optimizer"}, {"optimizer": "sgd"}, {"optimizer": "adafactor"}]),
        (2, {"sharding": "ddp"}, [{"sharding": "zero1"}, {"offload": "optimizer"}]),
        (2, {"sharding": "fsdp2"}, [{"optimizer": "momentum"}]),
    ],
    ids=["one device", "ddp", "fsdp2"],
)
def test_optimizers_traced_over_the_same_micro_steps_are_as_traced_alone(ranks, fields, others):
    (group,) = alike(Candidate(**{**fields, **change}) for change in (*others, {}))
    one = request("tiny-llama").model_copy(update={"world_size": ranks})
    found = trace_alike(one.model_copy(update={"candidate": group[0]}), group[1:])
    assert set(found) == set(group)
    for candidate, together in found.items():
        alone = trace(one.model_copy(update={"candidate": candidate}))
        for micro_batch in (1, 2, 5):
            for accumulating in (False, True):
                expected = alone.allocated(micro_batch, accumulating=accumulating)
                assert together.allocated(micro_batch, accumulating=accumulating) == pytest.approx(
                    expected, rel=2e-4
                )
        assert together.work == alone.work
