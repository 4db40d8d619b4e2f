"""Where tensors are kept off a GPU: on the host, or on disk behind a few buffers, the same bits come back."""

import pytest
import torch

from autotune.candidate import Candidate
from autotune.techniques.axis import Context
from autotune.worker.techniques import activation_offload, offload_store
from autotune.worker.techniques.mapped_files import MappedFiles, is_mapped
from autotune.worker.techniques.offload_store import BUFFERS, DiskStore, HostStore
from tests.numerics.runs import COPIED, plain, train
from tests.reasons import reasons

CPU = torch.device("cpu")


@pytest.fixture
def small_buffers(monkeypatch):
    """Let the tiny model's tensors take several buffers each."""
    monkeypatch.setattr(offload_store, "BUFFER", 1 << 12)
    monkeypatch.setattr(activation_offload, "SMALL", 1 << 10)


@pytest.mark.parametrize(
    "moving",
    [{"offload": "optimizer"}, {"offload": "gradients"}, {"activation_offload": True},
     {"offload": "full", "checkpointing": "full"}],
    ids=str,
)  # fmt: skip
def test_offload_to_disk_by_copies_changes_no_bit(moving, small_buffers):
    def in_files(training):
        state = [tensor for tensor in training.optimizer.state_tensors() if tensor.dim()]
        if moving.get("offload"):
            assert all(is_mapped(tensor) for tensor in state)

    run = train("gpt2", files=COPIED, check=in_files, precision="fp32", offload_to="disk", **moving)
    reference = plain("gpt2", "fp32")
    assert run.losses == reference.losses
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.weights, reference.weights, strict=True))


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(3, 5000), torch.randn(5000, 3).t(), torch.randn(7, 9, 11, 13).to(memory_format=torch.channels_last),
     torch.tensor(2.5), torch.empty(0, 4), torch.randn(100, 100)[:, ::2], torch.randn(40, 1).expand(40, 40),
     torch.randn(4097).bfloat16()],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.stride()}",
)  # fmt: skip
def test_what_was_stored_comes_back_whatever_its_layout(tensor, small_buffers, tmp_path):
    for place in (HostStore(CPU), DiskStore(MappedFiles(tmp_path), CPU)):
        room = place.room_like(tensor)
        place.store(tensor, room)
        back = torch.empty_like(tensor)
        place.fetch(room, back)
        assert torch.equal(back, tensor)


def test_the_last_of_several_stores_counts_and_is_in_its_file_once_settled(small_buffers, tmp_path):
    place = DiskStore(MappedFiles(tmp_path), CPU)
    first, second = torch.randn(3000), torch.randn(10)
    rooms = [place.room_like(first), place.room_like(second)]
    for change in range(3):
        place.store(first + change, rooms[0])
        place.store(second + change, rooms[1])
    assert not torch.equal(rooms[1], second + 2), "the last is still in its buffer"
    back = torch.empty(1000)
    place.fetch(rooms[0][500:1500], back)
    assert torch.equal(back, (first + 2)[500:1500])
    place.settle()
    assert torch.equal(rooms[0], first + 2)
    assert torch.equal(rooms[1], second + 2)
    assert all(is_mapped(room) for room in rooms)
    assert not list(tmp_path.iterdir())


def test_buffers_of_a_fixed_size_are_all_the_host_memory_that_the_disk_takes(small_buffers, tmp_path):
    place = DiskStore(MappedFiles(tmp_path), CPU)
    tensor = torch.randn(100 * offload_store.BUFFER // 4)
    place.store(tensor, place.room_like(tensor))
    held = {buffer.memory.untyped_storage().data_ptr(): buffer.memory for buffer in place._buffers}
    assert (
        sum(memory.untyped_storage().nbytes() for memory in held.values()) == BUFFERS * offload_store.BUFFER
    )


def test_places_that_make_no_sense_are_refused_with_their_reason():
    nothing_leaves = ("offload_to", "axes", "offload", "activation_offload", "checkpointing")
    assert reasons(Candidate(offload_to="disk")) == [nothing_leaves]
    assert reasons(Candidate(offload_to="disk", activation_offload=True)) == []
    deepspeed = Candidate(engine="deepspeed", sharding="zero3", offload="optimizer", offload_to="disk")
    assert reasons(deepspeed) == [("engine", "axes", "offload", "offload_to")]
    on_host = Candidate(offload="optimizer", offload_to="host")
    assert reasons(on_host, Context(world_size=1, kind="cpu")) == [("offload_to", "context")]
    assert reasons(on_host, Context(world_size=1, kind="cuda")) == []
    assert (on_host.offload_place("cuda"), Candidate(offload="full").offload_place("cpu")) == ("host", "disk")
    assert reasons(Candidate(sharding="fsdp2", offload="full"), Context(world_size=2, kind="cpu")) == []
