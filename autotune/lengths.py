"""How long the sequences of a dataset are, and the rows that training makes of them."""

from __future__ import annotations

import hashlib
import random
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from autotune.bounds import Amount, SeqLen, at_most
from autotune.candidate import Sequences
from autotune.errors import InputError
from autotune.printable import quoted
from autotune.units import MIB
from autotune.user_files import decoded, parse_json_value, read_bytes, user_path
from autotune.validation import Frozen

LONGEST = 2**24
"""Tokens of a sequence."""
MOST = 10**12
"""Sequences of one length."""
_WHOLE = re.compile(r"-?[0-9]{1,30}")
SequenceCount = Annotated[
    int, Field(ge=1), AfterValidator(at_most(10**15, "and no dataset has so many sequences"))
]
Row = tuple[int, ...]
"""The documents of one row, each by its tokens."""

LARGEST = 64 * MIB
"""Bytes of a file of lengths: ten million lines."""
DISTINCT = 256
"""Distinct lengths that are kept: of more, neighbours are grouped and stand as their mean, but for the longest."""
DOCUMENTS = 1024
"""Documents of the mix that stands for a dataset, one at each of as many quantiles of its histogram."""
SHOWN = 10
"""Mistakes of a file that are told one by one."""


class Lengths(Frozen):
    """The histogram of a dataset's sequence lengths, in tokens."""

    file: str
    """Where it was read from."""
    digest: str
    """SHA-256 of that file."""
    counts: Annotated[tuple[tuple[SeqLen, SequenceCount], ...], Field(min_length=1, max_length=DISTINCT)]
    """(length, number of sequences), shortest first."""
    cut: Amount = 0
    """Sequences that were longer than training takes: they count as that long."""

    @field_validator("counts")
    @classmethod
    def _ascend(cls, value: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        lengths = [length for length, _ in value]
        if lengths != sorted(set(lengths)):
            raise ValueError("each length stands there once, shortest first")
        return value

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.counts[-1][0]

    @property
    def samples(self) -> int:
        """Number of sequences."""
        return sum(count for _, count in self.counts)

    @property
    def mean(self) -> int:
        """Tokens of a sequence on the average, rounded: what a sample counts for in a global batch."""
        return max(1, round(sum(length * count for length, count in self.counts) / self.samples))

    def within(self, longest: int) -> Lengths:
        """Return the histogram of sequences that are cut after `longest` tokens."""
        over = sum(count for length, count in self.counts if length > longest)
        if not over:
            return self
        kept = [(length, count) for length, count in self.counts if length < longest]
        whole = over + sum(count for length, count in self.counts if length == longest)
        return self.model_copy(update={"counts": (*kept, (longest, whole)), "cut": self.cut + over})

    def rows(self, sequences: Sequences, row: int, seed: int) -> tuple[Row, ...]:
        """Return the rows (of `row` tokens at most) of a representative mix, in an order drawn by the seed.

        Rows that need no attention mask, because one document fills them, come last: training has to have the memory
        that a mask takes, and a probe sees the first ones.
        """
        made = list(_rows(self.counts, sequences, row))
        random.Random(seed).shuffle(made)
        return tuple(sorted(made, key=lambda documents: documents == (row,)))

    def tokens_per_row(self, sequences: Sequences, row: int) -> int:
        """Return the tokens that a row of `row` tokens really holds on the average, rounded: padding is not counted."""
        if sequences == "full":
            return row
        if sequences == "padded":
            return self.mean
        rows = _rows(self.counts, sequences, row)
        return max(1, round(sum(map(sum, rows)) / len(rows)))

    @classmethod
    def read(cls, file: Path) -> Lengths:
        """Read a CSV or JSON file. Raises InputError with every mistake."""
        data = read_bytes(file, f"--lengths {file}", LARGEST)
        counts = _grouped(_counted(decoded(data, f"--lengths {file}"), str(file)))
        return cls(file=str(file), digest=hashlib.sha256(data).hexdigest(), counts=counts)


def _counted(text: str, file: str) -> dict[int, int]:
    """Add up a text's lengths. Raises InputError."""
    pairs, problems = _json_pairs(text, file) if text.lstrip()[:1] in {"{", "["} else _lines(text)
    counts: dict[int, int] = {}
    for where, length, count in pairs:
        try:
            number, many = _whole(length), _whole(count)
        except ValueError as error:
            problems.append(f"{where}: {error}")
            continue
        if number < 1 or many < 0:
            problems.append(f"{where}: a length is at least 1 and a count at least 0, not {number},{many}")
        elif number > LONGEST or many > MOST:
            problems.append(
                f"{where}: a length is at most {LONGEST:,} and a count at most {MOST:,}, not "
                f"{quoted(number)},{quoted(many)}"
            )
        elif many:
            counts[number] = counts.get(number, 0) + many
    if problems:
        more = [f"--lengths {file}: {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise InputError([*(f"--lengths {file}, {problem}" for problem in problems[:SHOWN]), *more])
    if not counts:
        raise InputError(f"--lengths {file} holds no length; write one a line, or length,count")
    return counts


RawCount = tuple[str, object, object]
"""Where it stands, length, count."""


def _lines(text: str) -> tuple[list[RawCount], list[str]]:
    pairs: list[RawCount] = []
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [cell.strip() for cell in line.split(",")]
        if cells == [""] or (
            number == 1 and [cell.lower() for cell in cells] in (["length", "count"], ["length"])
        ):
            continue
        if len(cells) > 2:
            problems.append(f"line {number}: {len(cells)} values; write one length, or length,count")
        else:
            pairs.append((f"line {number}", cells[0], cells[1] if len(cells) == 2 else 1))
    return pairs, problems


def _json_pairs(text: str, file: str) -> tuple[list[RawCount], list[str]]:
    data = parse_json_value(text, f"--lengths {file}")
    if isinstance(data, dict):
        return [(f"key {quoted(key)}", key, value) for key, value in data.items()], []
    pairs: list[RawCount] = []
    problems = []
    for index, entry in enumerate(data):
        if isinstance(entry, list) and len(entry) != 2:
            problems.append(f"entry {index}: {len(entry)} values; write a length, or [length, count]")
        else:
            pairs.append((f"entry {index}", *(entry if isinstance(entry, list) else (entry, 1))))
    return pairs, problems


def _whole(value: object) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{quoted(value)} is not a whole number")


def _grouped(counts: dict[int, int]) -> tuple[tuple[int, int], ...]:
    ordered = sorted(counts.items())
    if len(ordered) <= DISTINCT:
        return tuple(ordered)
    *rest, longest = ordered
    size = -(-len(rest) // (DISTINCT - 1))
    groups = []
    for start in range(0, len(rest), size):
        group = rest[start : start + size]
        many = sum(count for _, count in group)
        groups.append((round(sum(length * count for length, count in group) / many), many))
    return (*groups, longest)


@lru_cache(maxsize=64)
def _rows(counts: tuple[tuple[int, int], ...], sequences: Sequences, row: int) -> tuple[Row, ...]:
    """Return a mix's rows, longest documents first: one in each, or as many as fit (first fit decreasing)."""
    documents = _mix(counts)
    if sequences == "full":
        return ((row,),)
    if sequences == "padded":
        return tuple((document,) for document in documents)
    rows: list[list[int]] = []
    room: list[int] = []
    for document in documents:
        place = next((index for index, left in enumerate(room) if left >= document), None)
        if place is None:
            rows.append([document])
            room.append(row - document)
        else:
            rows[place].append(document)
            room[place] -= document
    return tuple(map(tuple, rows))


def _mix(counts: tuple[tuple[int, int], ...]) -> list[int]:
    """Return documents at equal steps of the histogram's quantiles, longest first."""
    samples = sum(count for _, count in counts)
    mix: list[int] = []
    below, index = 0, 0
    for step in range(DOCUMENTS):
        quantile = (step + 0.5) / DOCUMENTS * samples
        while below + counts[index][1] < quantile:
            below += counts[index][1]
            index += 1
        mix.append(counts[index][0])
    return mix[::-1]


def read_lengths(file: str | None, base: Path) -> Lengths | None:
    """Return a dataset's length histogram, where one is given. Raises InputError with every mistake in it."""
    return None if file is None else Lengths.read(base / user_path(file, "--lengths"))
