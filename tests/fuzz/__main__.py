"""Run many examples of every kind, and print what came of them by kind and exit code: `python -m tests.fuzz`.

Examples are drawn in rounds, each from a seed of its own, so that a run can be split or continued: `--first` skips
rounds.
What fails is made as small as it gets, printed, and written into a folder; the rest goes on.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pprint
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.kinds import Example, kinds, play
from tests.fuzz.surface import Ended, complaint, seams

ROUND = 100
"""Examples of one kind in a round."""
ALONE = 200
"""One example of so many is run in a process of its own."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=int(os.environ.get("FUZZ_EXAMPLES", 100_000)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("FUZZ_SEED", 0)))
    parser.add_argument(
        "--first", type=int, default=0, help="round to begin with, after one that was interrupted"
    )
    parser.add_argument("--kind", action="append", help="only this kind; may be repeated")
    parser.add_argument(
        "--failures", type=Path, default=Path("fuzz-failures"), help="where failing inputs are written"
    )
    parser.add_argument("--no-shrink", action="store_true", help="leave failing inputs as they were found")
    asked = parser.parse_args()
    return Fuzz(asked.seed, asked.failures, not asked.no_shrink).go(asked.examples, asked.first, asked.kind)


class Fuzz:
    """Counts what came of examples."""

    def __init__(self, seed: int, failures: Path, shrink: bool) -> None:
        self.seed = seed
        self.phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
        self.failures = failures.absolute()
        self.seen: Counter[tuple[str, int | None]] = Counter()
        self.failed = 0
        self.numbers = itertools.count(1)

    def go(self, examples: int, first: int, only: list[str] | None) -> int:
        """Draw so many examples in all; return the exit code."""
        strategies = {kind: strategy for kind, strategy in kinds().items() if not only or kind in only}
        rounds = range(first, -(-examples // (ROUND * len(strategies))))
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="autotune-fuzz-") as folder, seams():
            os.environ |= {"HOME": folder, "AUTOTUNE_CACHE": folder}
            for number in rounds:
                for index, (kind, strategy) in enumerate(strategies.items()):
                    self.round(kind, strategy, 1000 * number + index, Path(folder) / "work")
                done = sum(self.seen.values())
                print(
                    f"round {number}: {done:,} examples, {self.failed} failures, {time.monotonic() - began:.0f} s",
                    flush=True,
                )
        self.report()
        return 1 if self.failed else 0

    def round(self, kind: str, strategy: object, number: int, folder: Path) -> None:
        """Draw one round; of its failures the first, made small, is kept."""
        smallest: list[tuple[Example, Ended]] = []

        @seed(self.seed * 1_000_003 + number)
        @settings(
            max_examples=ROUND, deadline=None, database=None, phases=self.phases,
            suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        )  # fmt: skip
        @given(strategy)  # type: ignore[arg-type]
        def holds(example: Example) -> None:
            ended = play(example, folder, alone=next(self.numbers) % ALONE == 0)
            self.seen[kind, ended.code] += 1
            if complaint(ended) is not None:
                smallest[:] = [(example, ended)]
                raise AssertionError(complaint(ended))

        try:
            holds()
        except BaseException as error:  # hypothesis wraps what an example raised
            if isinstance(error, KeyboardInterrupt):
                raise
            self.failed += 1
            self.keep(kind, number, *smallest[0]) if smallest else print(repr(error))

    def keep(self, kind: str, number: int, example: Example, ended: Ended) -> None:
        """Print a failure, and write its input."""
        self.failures.mkdir(parents=True, exist_ok=True)
        file = self.failures / f"{kind}-{self.seed}-{number}.txt"
        file.write_text(f"{pprint.pformat(example)}\n\n{complaint(ended)}\n", "utf-8", "backslashreplace")
        said = "\n".join((complaint(ended) or "").splitlines()[-12:])
        print(f"\n{file}\n{said}".encode("utf-8", "backslashreplace").decode(), flush=True)

    def report(self) -> None:
        """Print the table."""
        codes = sorted({code for _, code in self.seen}, key=lambda code: -1 if code is None else code)
        print(f"\n{'kind':<10}" + "".join(f"{'none' if code is None else code:>9}" for code in codes))
        for kind in dict.fromkeys(kind for kind, _ in self.seen):
            print(f"{kind:<10}" + "".join(f"{self.seen[kind, code]:>9,}" for code in codes))
        print(f"{sum(self.seen.values()):,} examples, {self.failed} failures, seed {self.seed}")


if __name__ == "__main__":
    sys.exit(main())
