"""Its language: only named in the signatures of kernels."""


class constexpr:
    def __init__(self, value=None):
        self.value = value


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return constexpr
