"""What two trials must share to have measured the same. Pure."""

from __future__ import annotations

from autotune.candidate import Candidate
from autotune.results.row import Environment, digest
from autotune.site import Site
from autotune.specs import Goal, ModelSpec, RunSpec


def environment_of(site: Site) -> Environment:
    """Return what a result depends on of the place where it was measured."""
    machine, device = site.machine, site.device
    return Environment(
        device_kind=device.kind, hardware=device.name, evidence=device.evidence, driver=device.driver,
        packages={**dict(sorted(machine.packages.items())), "python": machine.python},
        machine={"system": machine.system, "libc": machine.libc, "processor": machine.processor},
    )  # fmt: skip


def model_digest(model: ModelSpec) -> str:
    """Return what equal models share: the configuration, what trains of it, and the code where it is a function's."""
    plain = model.model_dump(mode="json")
    if model.config is not None:  # a preset and a copy of its config.json are one model
        plain |= {"name": "", "source": "", "path": None}
    return digest(plain)


def reuse_key(
    model: ModelSpec, candidate: Candidate, goal: Goal, accumulation_steps: int, environment: Environment
) -> str:
    """Return the digest of all that memory and speed of a trial depend on.

    It is the model, the candidate, the goal's rows, ranks and accumulation, and the environment: device, driver,
    every recorded package, operating system and processor. How long was measured is no part of it: a shorter
    measurement has a wider interval. Nor is the budget, which differs from night to night on a GPU: what took so
    many bytes takes them under any budget that has them, and what was refused is refused under a smaller one.
    """
    lengths = None if goal.lengths is None else goal.lengths.model_dump(mode="json")
    return digest(
        {
            "model": model_digest(model), "candidate": candidate.key(), "seq_len": goal.seq_len, "lengths": lengths,
            "gpus": goal.gpus, "nodes": goal.nodes, "accumulation_steps": accumulation_steps,
            "energy": goal.objective.name == "energy", "environment": environment.model_dump(mode="json"),
        }
    )  # fmt: skip


def asked_digest(spec: RunSpec) -> str:
    """Return what runs share that were asked for the same: model by its name, device, goal and optimizer.

    Not by what the model is: that its configuration or code became another is a change to be told, like a library's.
    """
    goal = spec.goal.model_dump(mode="json")
    return digest(
        {"model": spec.model.name, "goal": goal, "device": str(spec.device), "optimizer": spec.optimizer}
    )
