"""What this process holds, in bytes: by the kernel, and on CUDA by torch's caching allocator. Linux only."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from typing import Any


class MemoryPeaks:
    """Peaks are running maxima, because frameworks reset those that torch counts."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._peak = self._data_peak = self._mapped = 0
        self._cuda_peak = self._cuda_reserved = 0
        self._untouched = 0
        self._beside: int | None = None
        self._training_peak = 0
        self.baseline = self._now()[0]
        """Anonymous memory before anything is built: interpreter and libraries."""

    def begin(self) -> None:
        """Take what is held now for interpreter and libraries, and begin the peak here."""
        self.baseline, data, self._mapped = self._now()
        self._untouched = max(0, data - self.baseline)
        self._peak, self._data_peak = self.baseline, data
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(b"5")  # proc_pid_clear_refs(5): the kernel's own peak begins anew

    def begin_training(self, parameters: int) -> None:
        """Count the training's own peak from here, where so many bytes of parameters are held beside libraries."""
        self.look(None)
        anonymous = self._now()[0]
        self._beside, self._training_peak = max(0, anonymous - parameters), anonymous
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(b"5")

    def held(self, torch: Any) -> int:
        """Return the bytes that are held now beyond the baseline."""
        if torch is not None and torch.cuda.is_initialized():
            return int(torch.cuda.memory_allocated())
        return max(0, self._now()[0] - self.baseline)

    def look(self, torch: Any) -> None:
        """Bring the peaks up to date."""
        anonymous, data, mapped = self._now()
        self._mapped = max(self._mapped, mapped)
        status = os.pread(self._status, 4096, 0)
        start = status.index(b"VmHWM:") + len(b"VmHWM:")
        resident = int(status[start : start + 32].split()[0]) * 1024
        now = max(anonymous, resident - self._mapped)
        self._peak, self._training_peak = max(self._peak, now), max(self._training_peak, now)
        self._data_peak = max(self._data_peak, data, self._peak + self._untouched)
        if torch is not None and torch.cuda.is_initialized():
            self._cuda_peak = max(self._cuda_peak, torch.cuda.max_memory_allocated())
            self._cuda_reserved = max(self._cuda_reserved, torch.cuda.max_memory_reserved())

    def free(self) -> int | None:
        """Return what RLIMIT_DATA leaves now; None where there is no limit."""
        limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
        return None if limit == resource.RLIM_INFINITY else max(0, limit - self._now()[1])

    def totals(self, torch: Any) -> dict[str, Any]:
        """Return the peaks of all that was watched."""
        totals: dict[str, Any] = {"baseline": self.baseline, "peak": self._peak, "data": self._data_peak}
        if self._beside is not None:
            totals["tensors"] = max(0, self._training_peak - self._beside)
        if torch is not None and torch.cuda.is_initialized():
            counted = torch.cuda.memory_stats()
            free, total = torch.cuda.mem_get_info()
            totals["cuda"] = {
                "peak": self._cuda_peak,
                "reserved": self._cuda_reserved,
                "used": total - free,
                "ooms": counted.get("num_ooms", 0),
                "retries": counted.get("num_alloc_retries", 0),
            }
        return totals

    def _now(self) -> tuple[int, int, int]:
        """Return anonymous memory, private data (which RLIMIT_DATA counts) and mapped files."""
        fields = os.pread(self._statm, 256, 0).split()
        resident, mapped, data = (int(fields[index]) * self._page for index in (1, 2, 5))
        return resident - mapped, data, mapped


def loaders() -> dict[str, int] | None:
    """Return how many processes load batches for this one, and the bytes that they hold of their own."""
    if "multiprocessing" not in sys.modules:
        return None
    children = [child.pid for child in sys.modules["multiprocessing"].active_children() if child.pid]
    held = 0
    for pid in children:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
            held += (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    return {"processes": len(children), "bytes": held} if children else None
