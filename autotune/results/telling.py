"""Tell a comparison to whoever asked: files for a CI, a webhook."""

from __future__ import annotations

from pathlib import Path

from autotune.probe.folder import write_atomically
from autotune.results.changes import NightComparison
from autotune.results.junit import junit as junit_text
from autotune.results.summary import markdown
from autotune.results.webhook import message, post


def tell(
    comparison: NightComparison,
    *,
    junit: Path | None = None,
    summary: Path | None = None,
    webhook: str | None = None,
) -> list[str]:
    """Write the files and post the message that are asked for; return, in a sentence each, what failed.

    None of it is fatal: what regressed is known all the same.
    """
    problems = []
    for file, text in ((junit, junit_text), (summary, markdown)):
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(file, text(comparison))
            except OSError as error:
                problems.append(f"{file} was not written: {error.strerror or error}")
    if webhook is not None and (why := post(webhook, message(comparison))) is not None:
        problems.append(why)
    return problems
