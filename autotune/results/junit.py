"""A comparison as JUnit XML, which every CI shows: a test case for each cell."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from autotune.printable import printable
from autotune.results.changes import KINDS, NightChange, NightComparison


def junit(comparison: NightComparison) -> str:
    """Return the text: a regression is a failure, a cell that ended by no fault of its model an error.

    A cell without a night to compare it with is skipped; what is only told stands in its output.
    """
    regressed = {change.cell for change in comparison.regressions}
    uncompared = {one.cell: one for one in comparison.uncompared}
    broken = {name for name, one in uncompared.items() if one.state in {"failed", "interrupted", "bad_input"}}
    counts = {
        "tests": len(comparison.cells), "failures": len(regressed), "errors": len(broken),
        "skipped": len(uncompared) - len(broken),
    }  # fmt: skip
    written = {name: str(count) for name, count in counts.items()}
    root = Element("testsuites", {"name": "autotune", **written})
    suite = SubElement(
        root, "testsuite",
        {
            "name": _text(f"{comparison.sweep} {comparison.night}"),
            "time": f"{sum(row.seconds for row in comparison.cells):.3f}", **written,
        },
    )  # fmt: skip
    for row in comparison.cells:
        case = SubElement(
            suite, "testcase", classname=_text(row.sweep), name=_text(row.cell), time=f"{row.seconds:.3f}"
        )
        told = [change for change in comparison.changes if change.cell == row.cell]
        failed = [change for change in told if change.regressed]
        if failed:
            kinds = ", ".join(KINDS[change.kind] for change in failed)
            failure = SubElement(case, "failure", type=failed[0].kind, message=_text(f"{row.cell}: {kinds}"))
            failure.text = _text("\n".join(map(_lines, failed)))
        elif row.cell in broken:
            SubElement(case, "error", type=row.state, message=_text(uncompared[row.cell].why))
        elif row.cell in uncompared:
            SubElement(case, "skipped", message=_text(uncompared[row.cell].why))
        if only := [change for change in told if not change.regressed]:
            SubElement(case, "system-out").text = _text("\n".join(map(_lines, only)))
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _lines(change: NightChange) -> str:
    return "\n".join([change.what, *(f"    {other}" for other in change.beside)])


def _text(text: str) -> str:
    """Return text without what XML 1.0 has no way to write: control characters, halves of characters."""
    return printable(text).replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
