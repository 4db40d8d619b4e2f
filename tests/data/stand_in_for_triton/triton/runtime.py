"""Stands in for Triton, which comes with builds of torch for GPUs alone: kernels are there, and cannot be launched."""


class JITFunction:
    def __init__(self, function):
        self.__name__ = function.__name__
        self.arg_names = list(function.__code__.co_varnames[: function.__code__.co_argcount])

    def __getitem__(self, grid):
        return lambda *args, **options: self.run(*args, grid=grid, **options)

    def run(self, *args, **options):
        raise RuntimeError("there is no GPU")


class Autotuner(JITFunction):
    """Chooses among configurations of a kernel, by trying."""


class Heuristics(JITFunction):
    """Chooses by rules."""
