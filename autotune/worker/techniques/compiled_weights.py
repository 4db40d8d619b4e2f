"""Which of the tensors that a compiled block keeps for backward are copies of the model's own.

The compiler keeps casts of weights beside activations, and autograd's graph, by which others tell one from the other,
ends at the compiled block. The compiler's own graph tells: what of its results depends on parameters and buffers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

_FEW = 256
"""Copies that are remembered before it is looked whether they are still there."""


class WeightCopies:
    """The storages of copies that are alive."""

    def __init__(self) -> None:
        self._alive: dict[int, StorageWeakRef] = {}
        self._most = _FEW

    def note(self, tensor: Tensor) -> None:
        """Remember that a tensor is a copy of the model's own."""
        if len(self._alive) >= self._most:
            self._alive = {key: storage for key, storage in self._alive.items() if not storage.expired()}
            self._most = max(_FEW, 2 * len(self._alive))
        storage = tensor.untyped_storage()
        self._alive[storage._cdata] = StorageWeakRef(storage)

    def __contains__(self, tensor: Tensor) -> bool:
        """Tell whether a tensor lies in the storage of a copy; a view of it does."""
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return known is not None and not known.expired()


WEIGHT_COPIES = WeightCopies()
"""Those that compiled blocks of this process have made."""


def noting_weights(graph: GraphModule, inputs: Sequence[Any]) -> Any:
    """Compile as torch's own backend `inductor` does, and let the program note the copies of weights that it gives."""
    from torch._inductor.compile_fx import compile_fx  # late: it imports the compiler

    return compile_fx(graph, inputs, inner_compile=_compiled)


def _compiled(graph: GraphModule, inputs: Sequence[Any], *args: Any, **settings: Any) -> Any:
    from torch._inductor.compile_fx import compile_fx_inner

    forward = not settings.get("is_backward") and not settings.get("is_inference")
    # It changes the graph.
    own = _of_the_model(graph, settings.get("static_input_idxs", ())) if forward else []
    compiled: Any = compile_fx_inner(graph, inputs, *args, **settings)
    run = compiled.current_callable if own else None
    if run is not None:

        def noting(values: Any) -> Any:
            results = run(values)
            for index in own:
                WEIGHT_COPIES.note(results[index])
            return results

        compiled.current_callable = noting
    return compiled


def _of_the_model(graph: GraphModule, static: Sequence[int]) -> list[int]:
    """Return which results of a graph are tensors that depend on its static inputs, parameters and buffers, alone."""
    known: set[Node] = set()
    placeholders = 0
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            if placeholders in static:
                known.add(node)
            placeholders += 1
        elif node.op == "output":
            return [
                index
                for index, value in enumerate(node.args[0])
                if value in known and isinstance(value.meta.get("val"), Tensor)
            ]
        elif node.all_input_nodes and known.issuperset(node.all_input_nodes):
            known.add(node)
    raise AssertionError("every graph has an output")
