"""What a library makes of tensors while it is imported is no part of a trace."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_first_trace_of_a_process_is_as_the_second():
    """Adafactor's module imports others that make tensors, if they are installed."""
    program = (
        "from pathlib import Path\n"
        "from autotune.worker.tracing.trace import trace\n"
        "from tests.data.requests import family, request\n"
        "asked = request(family('gpt2', n_layer=1), Path(), optimizer='adafactor')\n"
        "first, second = (trace(asked, short=False).allocated(1, False) for _ in range(2))\n"
        "assert first == second, (first, second)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
