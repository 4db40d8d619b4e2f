"""A run as it is today beside the same run at an older commit, and beside Lightning's searches of the micro-batch.

    python -m benchmarks.older_commit [--case run] [--case make-run] [--commit 0e4856c]

Of each case the older commit is checked out into a worktree of its own, and its command line started with the Python
and the packages of this one; then today's, both with an empty cache, and charged their wall time from the start of the
process to its end. `make-run` is what the Makefile's `run` starts. Before that the libraries have been loaded once, so
that neither reads them from the disk for the other. Then Lightning's `scale_batch_size` (power, binsearch), as
`benchmarks.peers_live` drives it, searches on the same model and budget. At last the configurations that all came to
are measured again by today's probes, in rounds of which each measures all of them, every other round backwards. An
older winner that today's candidates cannot express is compared by the speed that each promises in its `best.yaml`.

Where the processor only emulates bf16, today's runs train in fp32 by themselves. Older commits and Lightning's searches
would not, and take minutes for each step: so that searches are compared and not number types, both are given fp32, an
older commit by its own default space with that in place of bf16 (`older_in` in the record).

Targets, for each case: at most a quarter of the older commit's wall time; a winner at least 97% as fast as its own, as
far as the 95% interval of the rounds' paired differences tells; and, beside each search of Lightning, a configuration
as fast as the one it delivers measured no later than it ends. The two cases take half an hour or more.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from autotune.devices.recorded_grid import append_line, read_grid
from autotune.environment import installed
from autotune.outcome import Ok
from autotune.probe.warm import WarmLauncher
from benchmarks.grid_oracle import Oracle, paired, rounds_of, told
from benchmarks.grid_recorder import LIMITS, ROOT, Recorder, begin
from benchmarks.older_run import Case, Ran, in_fp32, run, tried_in, worktree
from benchmarks.peer_searches import PEERS
from benchmarks.peers import OURS, Result, result_of
from benchmarks.peers_live import LiveSession, compared, known_after
from benchmarks.record_grid import replace_limits
from benchmarks.recording import RESULTS, record
from benchmarks.verdict import SMALLEST, unmeasured, verdict

COMMIT = "0e4856c"
"""Before the default strategy, racing and warm probes."""
WALL, WINNER = 0.25, 0.97
"""Targets: shares of the older commit's wall time and of its winner's speed."""
ROUNDS = 4
LIGHTNING = tuple(peer for peer in PEERS if "lightning" in peer.packages)


def made(makefile: str) -> Case:
    """Return what `make run` starts, from the Makefile's text."""
    recipe = re.search(r"^run:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None, "the Makefile has a target `run`"
    words = shlex.split(recipe[1].replace("\\\n", " "))
    return Case("make-run", tuple(words[words.index("run") + 1 :]))


CASES = (
    Case("run", ("--model", "gpt2", "--seq-len", "256", "--target-global-batch", "64K", "--device", "cpu:4GiB")),
    made((ROOT / "Makefile").read_text()),
)  # fmt: skip
SMALLEST_CASE = Case(
    "smallest",
    ("--model", "tiny-gpt2", "--seq-len", "32", "--target-global-batch", "64", "--device", "cpu:512MiB",
     "--max-probes", "1", "--no-predict", "--speed-tolerance", "0.8", "--sample-time", "0.3s", "--proof-time", "0.5s"),
)  # fmt: skip


@dataclass(frozen=True)
class Share:
    """How fast one configuration is beside another: 1 where they are as fast."""

    mean: float
    interval: tuple[float, float]
    how: str
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """Return it for the record."""
        return {"winner_share": self.mean, "interval": self.interval, "how": self.how, "rounds": self.rounds}


def share_of(ours: Ran, older: Ran, oracle: Oracle) -> Share:
    """Compare two winners: by the rounds, else by what each promises."""
    if older.promised[0] == 0.0:
        return Share(math.inf, (math.inf, math.inf), "the older commit has no winner")
    if ours.promised[0] == 0.0:
        return Share(0.0, (0.0, 0.0), "today's run has no winner")
    if ours.winner is not None and ours.winner == older.winner:
        return Share(1.0, (1.0, 1.0), "the same configuration")
    speeds = rounds_of(oracle.grid, [one for one in (ours.winner, older.winner) if one is not None])
    if ours.winner in speeds and older.winner in speeds:
        mean, half = paired(speeds[ours.winner], speeds[older.winner])
        rounds = {"ours": list(speeds[ours.winner]), "older": list(speeds[older.winner])}
        return Share(math.exp(mean), (math.exp(mean - half), math.exp(mean + half)), "measured again", rounds)
    (mine, own), (theirs, other) = ours.promised, older.promised
    half = math.hypot(own / mine, other / theirs)
    return Share(mine / theirs, (mine / theirs * (1 - half), mine / theirs * (1 + half)), "as promised")


def compare(case: Case, commit: str, folder: Path, smallest: bool, console: Console) -> dict[str, Any]:
    """Run a case both ways, and Lightning's searches; return the row."""
    definition, path = case.definition(), folder / "case.jsonl"
    limits = replace_limits(LIMITS) if smallest else LIMITS
    with WarmLauncher() as launcher:
        recorder = Recorder.of(definition, path, launcher)
        # A cold inspection: from here on the libraries' files are in memory.
        header = begin(definition, recorder, limits)
        emulates = header.speed is not None and header.speed.emulates("bf16")
        if emulates:
            definition = replace(definition, precision="fp32")
            header = begin(definition, recorder, limits)
        append_line(path, header)
        launcher.close()  # a server beside the runs takes memory
        with worktree(commit, folder) as tree:
            older = run(tree, in_fp32(tree, case, folder) if emulates else case, folder / "older")
        console.print(f"{case.name}: {commit}: {older.seconds:.0f} s, {older.probes} probes: {older.told}")
        ours = run(ROOT, case, folder / "ours")
        console.print(f"{case.name}: today: {ours.seconds:.0f} s, {ours.probes} probes: {ours.told}")
    with WarmLauncher() as launcher:
        recorder = Recorder.of(definition, path, launcher)
        oracle = Oracle(read_grid(path))
        peers = []
        for peer in () if smallest else LIGHTNING:
            peers.append(result_of(LiveSession(oracle, peer, recorder=recorder)))
            console.print(f"{case.name}: {peer.name} ended after {peers[-1].seconds:.0f} s")
        delivered = [ours.winner, older.winner, *(one.delivered for one in peers)]
        different = list(dict.fromkeys(one for one in delivered if one is not None))
        oracle = compared(recorder, different, 1 if smallest else ROUNDS, console)
    return {
        "case": case.name, "arguments": list(case.arguments), "commit": commit,
        "older_in": "fp32" if emulates else "bf16", "older": older.row(),
        "ours": ours.row(), "wall_share": ours.seconds / older.seconds, **share_of(ours, older, oracle).row(),
        "anytime": anytime(ours, peers, oracle),
    }  # fmt: skip


def anytime(ours: Ran, peers: list[Result], oracle: Oracle) -> list[dict[str, Any]]:
    """Return of each search of others when it ended, and when ours had measured a configuration as fast."""
    own = Result(
        "", OURS, "ours", ours.winner, ours.seconds, tried_in(ours), keeps_batch=ours.winner is not None
    )
    rows = []
    for peer in peers:
        one = peer.delivered
        trained = one is not None and bool(oracle.grid.samples(one)) and bool(oracle.speeds)
        rows.append(
            {
                "peer": peer.peer, "seconds": peer.seconds, "delivered": None if one is None else told(one),
                "share": oracle.share(one) if trained else 0.0,
                "known_after": known_after(own, one, oracle) if trained else 0.0,
                "probes": [[tried.ended, told(tried.candidate), tried.outcome.kind] for tried in peer.tried],
            }
        )  # fmt: skip
    trials = [
        [one.ended, told(one.candidate), one.outcome.kind, isinstance(one.outcome, Ok)] for one in own.tried
    ]
    return [{"peer": OURS, "seconds": ours.seconds, "probes": trials}, *rows]


def missed_by(rows: list[dict[str, Any]]) -> list[str]:
    """Return which targets are missed."""
    missed = []
    for row in rows:
        if row["wall_share"] > WALL:
            seconds = f"{row['ours']['seconds']:.0f} of {row['older']['seconds']:.0f} s"
            what = f"at most {WALL:g} of the wall time at {row['commit']}"
            missed.append(f"{row['case']}: {what}: {row['wall_share']:.2f} ({seconds})")
        if row["interval"][1] < WINNER:
            missed.append(f"{row['case']}: a winner at least {WINNER:.0%} as fast as the older one's: "
                          f"{row['winner_share']:.1%} ({row['how']})")  # fmt: skip
        for one in row["anytime"][1:]:
            known = one["known_after"]
            if known is None or known > one["seconds"]:
                when = "never" if known is None else f"after {known:.0f} s"
                missed.append(
                    f"{row['case']}: knows what {one['peer']} delivers after {one['seconds']:.0f} s {when}"
                )
    return missed


def table_of(rows: list[dict[str, Any]], missed: Sequence[str]) -> Table:
    """Return all cases, with the targets that are missed below."""
    table = Table(
        "case", "search", "seconds", "delivered", "winner's share of the older", "ours knew as much after",
        caption="\n".join(("targets that are missed:", *missed) if missed else ("no target is missed",)),
        caption_justify="left",
    )  # fmt: skip
    for row in rows:
        low, high = row["interval"]
        share = f"{row['winner_share']:.1%} ({low:.1%} to {high:.1%}; {row['how']})"
        table.add_row(
            row["case"], row["commit"], f"{row['older']['seconds']:.0f}", row["older"]["winner"], "", ""
        )
        table.add_row("", "today", f"{row['ours']['seconds']:.0f}", row["ours"]["winner"], share, "")
        for one in row["anytime"][1:]:
            known = "never" if one["known_after"] is None else f"{one['known_after']:.0f} s"
            table.add_row("", one["peer"], f"{one['seconds']:.0f}", str(one["delivered"]), "", known)
    return table


def main() -> int:
    """Compare every case, print the table, record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--case", action="append", choices=[case.name for case in CASES], help="may be repeated"
    )
    parser.add_argument("--commit", help=f"what today is compared with; {COMMIT} without it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--smallest", action="store_true", help=SMALLEST)
    options = parser.parse_args()
    # The smallest case needs no more history than any clone has.
    commit = options.commit or ("HEAD" if options.smallest else COMMIT)
    cases = [case for case in CASES if case.name in (options.case or [case.name])]
    if not options.smallest and installed("lightning") is None:
        raise unmeasured("older_commit", "not installed: lightning (pip install 'autotune[peers]')")
    console, rows, load = Console(width=180), [], os.getloadavg()[0]
    for case in (SMALLEST_CASE,) if options.smallest else cases:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".older-commit-") as folder:
            rows.append(compare(case, commit, Path(folder), options.smallest, console))
    missed = missed_by(rows)
    console.print(table_of(rows, missed))
    console.print(
        record(
            "older_commit", rows, options.out, smallest=options.smallest, cases=options.case, load=load,
            versions={"lightning": installed("lightning")}, missed=missed,
        )
    )  # fmt: skip
    return verdict([] if options.smallest else missed)


if __name__ == "__main__":
    sys.exit(main())
