"""The verbs of the command line: where each is, and what it does, the common ones first."""

from __future__ import annotations

VERBS: dict[str, tuple[str, str]] = {
    "run": ("autotune.cli.run", "Find, prove and emit the fastest configuration that fits."),
    "estimate": (
        "autotune.cli.estimate",
        "Predict memory and speed of one candidate, or of every rung, on GPUs that need not be there.",
    ),
    "resume": ("autotune.cli.run", "Go on with a run that was interrupted, from its journal."),
    "watch": ("autotune.cli.following", "Show a run as it goes on, from any other shell."),
    "runs": (
        "autotune.cli.following",
        "List runs: when, which model and device, in which state, and what won.",
    ),
    "report": (
        "autotune.cli.results",
        "Show what a run tried, which path it took, and what won; or compare two.",
    ),
    "verify": (
        "autotune.cli.results",
        "Repeat the proof of emitted configurations on this machine, one after the other.",
    ),
    "export": ("autotune.cli.results", "Write the winner as files that a training library loads."),
    "sweep": ("autotune.cli.sweep", "Run many models, devices and goals from one file, night after night."),
    "results": ("autotune.cli.results_query", "Ask what all trials of all nights of sweeps came to."),
    "doctor": ("autotune.cli.listings", "Say what this machine offers, and what is missing."),
    "models": ("autotune.cli.listings", "List the models that resolve by name without a network."),
    "spaces": ("autotune.cli.listings", "List and draw search spaces."),
    "schema": (
        "autotune.cli.editors",
        "Print the JSON Schema of a file, or join a file with it, for editors.",
    ),
    "completion": ("autotune.cli.editors", "Print the script that completes commands in a shell."),
}
"""The module whose `app` holds a verb, loaded when it is called, and the sentence that help says of it."""
