"""When collectives of gloo began and ended, as seen from Python while a step runs.

torch's profiler would tell it too, but leaving it may kill the process: 5 of 120 probes on two ranks ended with SIGSEGV
in `profile.__exit__` (torch 2.13, four at a time on two cores), perhaps because gloo's threads still close their spans.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

Spans = list[tuple[int, int]]
"""From when to when, in nanoseconds."""


class Collectives(TorchDispatchMode):  # type: ignore[misc]  # mypy does not follow torch
    """Notes, while it is entered, when each collective was asked for and when it was done, by `time.perf_counter_ns`.

    Those of C++ (DDP's reducer) and of Python (FSDP2, the sharded optimizer) pass through the dispatcher as `c10d`
    operators, which give a `Work`; DTensor's as functional ones, which are done when somebody has waited for them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spans: list[list[int]] = []
        self._awaited: dict[int, list[int]] = {}
        """Functional ones that nobody has waited for, by the storage of what they give."""
        self._works: list[_Awaited] = []
        """Kept alive: a boxed one alone would forget what Python does when it is waited for."""

    def spans(self) -> Spans:
        """Return from when to when each was under way; those that have not ended, as ending now."""
        now = time.perf_counter_ns()
        return [(began, ended or now) for began, ended in self._spans]

    def under_way(self) -> int:
        """Return how many have not ended."""
        return sum(not ended for _began, ended in self._spans)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if DTensor in types or AsyncCollectiveTensor in types:
            return NotImplemented  # what they do is made of operators on plain tensors, which come here again
        namespace = getattr(func, "namespace", "")
        if namespace not in ("c10d", "_c10d_functional") or "::_wrap" in func.name():
            return func(*args, **(kwargs or {}))
        span = [time.perf_counter_ns(), 0]
        result = func(*args, **(kwargs or {}))
        if namespace == "c10d":
            self._spans.append(span)
            return self._followed(result, span)
        if func.overloadpacket is torch.ops._c10d_functional.wait_tensor:
            for tensor in _tensors(args):
                _end(self._awaited.pop(_storage(tensor), span))
        else:
            self._spans.append(span)
            self._awaited |= {_storage(tensor): span for tensor in _tensors(result)}
        return result

    def _followed(self, result: Any, span: list[int]) -> Any:
        """Return what an operator gave, which tells `span` its end."""
        *tensors, boxed = result if isinstance(result, tuple | list) else (result,)
        work = Work.unbox(boxed)
        try:
            work.get_future().add_done_callback(lambda _future: _end(span))  # in a thread of gloo
        except RuntimeError:  # a scattered sum has none: gloo reduces all of it, and who waits takes a part
            self._works.append(_Awaited(work, span))
            boxed = self._works[-1].boxed()
        return (*tensors, boxed) if tensors else boxed


class _Awaited(Work):  # type: ignore[misc]  # mypy does not follow torch
    """A collective that is done when somebody has waited for it."""

    def __init__(self, work: Work, span: list[int]) -> None:
        super().__init__()
        self._work, self._span = work, span

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        done = bool(self._work.wait(timeout))
        _end(self._span)
        return done

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


def _end(span: list[int]) -> None:
    span[1] = time.perf_counter_ns()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for each in value for tensor in _tensors(each)] if isinstance(value, tuple | list) else []


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
