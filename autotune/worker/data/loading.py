"""A dataset of the user's own through torch's DataLoader: worker processes, pinned memory, batches in advance.

Batches and samples are the same whatever the number of workers: their order is fixed, and each sample is made under a
seed of its own.
"""

from __future__ import annotations

import contextlib
import math
import random
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.data import DataLoader

from autotune.candidate import Candidate
from autotune.memory.host_footprint import SHARED_MEMORY, batches_ahead
from autotune.units import format_bytes
from autotune.worker.data.batch_check import check_collated
from autotune.worker.dataset import Collate, Samples
from autotune.worker.errors import CannotRun, OutOfSpace

LOOKED_AT = 256
"""Samples, spread over the dataset, among which the largest is looked for: memory is proven with it."""
GOLDEN = (math.sqrt(5) - 1) / 2
"""Steps of this share of the dataset spread any number of samples evenly over it."""


class Loader:
    """Batches of a dataset for one rank, in a fixed order, without end; on the host, pinned where that was asked for.

    Workers are forked when the first batch is asked for, and end with `close`. What they hold is the host's memory and
    not the device's, on `cpu` too: a limit on this process's memory is not theirs.
    """

    def __init__(
        self,
        dataset: Samples,
        collate: Collate,
        candidate: Candidate,
        device: torch.device,
        seed: int,
        stride: int = 1,
    ) -> None:
        """`stride` is the number of ranks, which take every `stride`-th batch."""
        self._seeded = _Seeded(dataset, seed)
        self._collate = collate
        self._candidate = candidate
        self._device = device
        self._seed = seed
        self._stride = stride
        self._pin = candidate.pin_memory and device.type == "cuda"
        self._next: tuple[int, int] | None = None
        self._batches: Any = None
        self._largest: int | None = None
        self._single: Mapping[str, Tensor] = {}
        """The batch of the largest sample alone."""
        self._heaviest: dict[int, Mapping[str, Tensor]] = {}

    @property
    def ahead(self) -> int:
        """Batches that are made before they are asked for."""
        return batches_ahead(self._candidate)

    def batch(self, index: int, micro_batch: int) -> dict[str, Tensor]:
        """Return a batch of the order; one that does not follow the last one starts the workers anew.

        Raises what the dataset raises, ModelError for a batch that does not hold the samples it was made of, CannotRun
        where shared memory is too small, and OutOfSpace where a worker was killed for memory.
        """
        if (index, micro_batch) != self._next:
            self._start(index, micro_batch)
        try:
            batch = next(self._batches)
        except RuntimeError as error:
            self._explain(error, micro_batch)
            raise
        if not self._single:
            self._of_largest(micro_batch)
        check_collated(batch, micro_batch, self._single)
        self._next = (index + self._stride, micro_batch)
        return self._placed(batch, shared=self._candidate.num_workers > 0)

    def heaviest(self, micro_batch: int) -> dict[str, Tensor]:
        """Return a batch of the largest sample alone: the most memory that a batch takes."""
        return self._placed(self._of_largest(micro_batch), shared=True)

    def host_bytes(self) -> int:
        """Return the bytes that worker processes and batches in advance take of the host now."""
        if self._next is None:
            return 0
        processes = getattr(self._batches, "_workers", [])
        ahead = batches_ahead(self._candidate) * self._bytes(self._next[1])
        return ahead + sum(_proportional_bytes(process.pid) for process in processes)

    def close(self) -> None:
        """End the workers."""
        batches, self._batches, self._next = self._batches, None, None
        if hasattr(batches, "_shutdown_workers"):
            batches._shutdown_workers()

    def _start(self, first: int, micro_batch: int) -> None:
        self.close()
        candidate = self._candidate
        if candidate.num_workers:
            self._check_shared_memory(micro_batch)
        loader: DataLoader[Any] = DataLoader(
            self._seeded,
            batch_sampler=_Order(len(self._seeded), first, self._stride, micro_batch),
            collate_fn=self._collate,
            num_workers=candidate.num_workers,
            pin_memory=self._pin,
            prefetch_factor=candidate.prefetch_factor if candidate.num_workers else None,
            worker_init_fn=_unlimited,
            multiprocessing_context="fork" if candidate.num_workers else None,
            generator=torch.Generator().manual_seed(self._seed),  # or each start would draw of the training's
        )
        self._batches = iter(loader)

    def _placed(self, batch: Mapping[str, Tensor], shared: bool) -> dict[str, Tensor]:
        """Return a batch; on the `cpu` device out of memory that is shared, which would not count as the device's."""
        copied = shared and self._device.type == "cpu"
        return {name: value.clone() if copied else value for name, value in batch.items()}

    def _of_largest(self, micro_batch: int) -> Mapping[str, Tensor]:
        if micro_batch not in self._heaviest:
            with unset_fake_temporarily():  # a trace takes the dataset as it is
                if self._largest is None:
                    count = len(self._seeded)
                    seen = range(0, count, -(-count // LOOKED_AT))
                    self._largest = max(
                        seen, key=lambda number: _bytes(self._collate([self._seeded[number]]))
                    )
                    self._single = self._collate([self._seeded[self._largest]])
                batch = self._collate([self._seeded[self._largest] for _ in range(micro_batch)])
            check_collated(batch, micro_batch, self._single, copies=True)
            self._heaviest = {micro_batch: batch}
        return self._heaviest[micro_batch]

    def _bytes(self, micro_batch: int) -> int:
        return _bytes(self._of_largest(micro_batch))

    def _check_shared_memory(self, micro_batch: int) -> None:
        # One more than in advance: the batch that was taken is given back when the next one is.
        needed = (batches_ahead(self._candidate) + 1) * self._bytes(micro_batch)
        free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.exists() else None
        if free is not None and needed > free:
            raise CannotRun(
                "num_workers",
                "room",
                f"{self._ahead(micro_batch)}, and {format_bytes(free)} are free there; {_LARGER}",
            )

    def _ahead(self, micro_batch: int) -> str:
        candidate = self._candidate
        needed = (batches_ahead(candidate) + 1) * self._bytes(micro_batch)
        return (
            f"{candidate.num_workers} loader workers with {candidate.prefetch_factor} batches each in advance take "
            f"up to {format_bytes(needed)} of shared memory ({SHARED_MEMORY})"
        )

    def _explain(self, error: RuntimeError, micro_batch: int) -> None:
        """Raise what a worker died of, where its signal says so."""
        ended = []
        for process in getattr(self._batches, "_workers", []):
            process.join(timeout=1.0)
            ended.append(process.exitcode)
        if -signal.SIGBUS in ended:  # a page of shared memory that could not be had
            raise CannotRun(
                "num_workers", "room", f"{self._ahead(micro_batch)}, and it ran out; {_LARGER}"
            ) from error
        if -signal.SIGKILL in ended:
            message = (
                "a loader worker was killed, as the kernel does where memory runs out; try fewer workers"
            )
            raise OutOfSpace("host", self._bytes(micro_batch), None, message) from error


_LARGER = "use fewer workers, or make it larger (docker run --shm-size)"


class _Order:
    """The samples of every `stride`-th batch from `first` on; every sample comes once before one comes again."""

    def __init__(self, samples: int, first: int, stride: int, micro_batch: int) -> None:
        self._samples, self._first, self._stride, self._size = samples, first, stride, micro_batch
        step = max(1, round(GOLDEN * samples))
        while math.gcd(step, samples) != 1:
            step += 1
        self._step = step

    def __iter__(self) -> Iterator[list[int]]:
        index = self._first
        while True:
            numbers = range(index * self._size, (index + 1) * self._size)
            yield [number * self._step % self._samples for number in numbers]
            index += self._stride


class _Seeded:
    """A dataset whose every sample is made under a seed of its own; the caller's own draws go on as before."""

    def __init__(self, dataset: Samples, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        drawn = random.getstate()
        numpy = sys.modules.get("numpy")
        of_numpy = numpy.random.get_state() if numpy else None
        seed = hash((self._seed, index)) % 2**32
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                random.seed(seed)
                if numpy:
                    numpy.random.seed(seed)
                return self._dataset[index]
        finally:
            random.setstate(drawn)
            if numpy:
                numpy.random.set_state(of_numpy)


def _unlimited(_worker: int) -> None:
    """Lift the limit on private memory: a fork begins with all of the probe's, and its own is the host's."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _bytes(batch: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in batch.values())


def _proportional_bytes(process: int) -> int:
    """Return a process's resident memory, of what it shares its share; 0 where the kernel does not say (any more)."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
