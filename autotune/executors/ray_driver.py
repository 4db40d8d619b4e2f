"""The program that speaks with a Ray cluster for the tuner: `python -m autotune.executors.ray_driver ADDRESS`.

A request is a line of JSON on standard input, its answer a line on standard output, and end of file ends the program;
what Ray prints goes to standard error. Jobs go on without it: each is a detached actor, and only Ray's public calls are
used, which need no dashboard.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from autotune.executors.ray_actors import coordinator_class
from autotune.executors.scheduler import PREFIX

NAMESPACE = "autotune"
REMEMBERED = 300.0
"""Seconds for which a job that has ended is listed."""
ENDING = 60.0
"""Seconds that a node's program gets to end its probe."""
Told = dict[str, Any]


class Refused(Exception):
    """The cluster was reached, and what is asked cannot be had."""


class Driver:
    """The jobs of a cluster that this process is connected with."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._coordinator = coordinator_class(ray)
        self._results: dict[str, Any] = {}
        """By the job's name what its coordinator will say."""
        self._ended: dict[str, tuple[float, Told]] = {}

    def submit(self, request: Told) -> str:
        """Start a job's coordinator. Raises Refused where no node has what one of its programs takes."""
        name, takes = request["name"], request["takes"]
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fitting = [node for node in nodes if all(node.get(what, 0) >= share for what, share in takes.items())]
        if len(fitting) < len(request["commands"]):
            asked = ", ".join(f"{share:g} {what}" for what, share in takes.items())
            raise Refused(
                f"a job takes {asked} on each of {len(request['commands'])} nodes, and {len(fitting)} of its "
                f"{len(nodes)} nodes have that; change the partition's keys in the cluster file"
            )
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
        coordinator = self._coordinator.options(**options).remote(request)
        self._results[name] = coordinator.result.remote()
        return str(name)

    def listed(self) -> dict[str, Told]:
        """Return each job that lives, or ended a short while ago."""
        for one in self._ray.util.list_named_actors(all_namespaces=True):
            name = one["name"]
            known = name in self._results or name in self._ended
            if one["namespace"] == NAMESPACE and name.startswith(PREFIX) and not known:
                try:
                    self._results[name] = self._ray.get_actor(name, namespace=NAMESPACE).result.remote()
                except ValueError:  # gone by now
                    continue
        names = {result: name for name, result in self._results.items()}
        done = self._ray.wait([*names], num_returns=len(names), timeout=0)[0] if names else []
        for result in done:
            self._ended[names[result]] = time.monotonic(), self._end(result)
            del self._results[names[result]]
            self._kill(names[result])
        self._ended = {
            name: kept for name, kept in self._ended.items() if time.monotonic() - kept[0] < REMEMBERED
        }
        lives: Told = {"end": None, "running": True, "nodes": [], "why": ""}
        return dict.fromkeys(self._results, lives) | {name: told for name, (_, told) in self._ended.items()}

    def cancel(self, names: list[str]) -> None:
        """End jobs, each with its probe."""
        stopping = []
        for name in names:
            try:
                stopping.append(self._ray.get_actor(name, namespace=NAMESPACE).stop.remote())
            except ValueError:  # it has ended
                continue
        if stopping:
            self._ray.wait(stopping, num_returns=len(stopping), timeout=ENDING)
        told = {"end": "cancelled", "nodes": [], "why": "autotune cancelled it", "running": False}
        for name in names:
            self._results.pop(name, None)
            self._ended[name] = time.monotonic(), told
            self._kill(name)

    def _end(self, result: Any) -> Told:
        try:
            told: Told = self._ray.get(result)
        except self._ray.exceptions.RayError as error:
            told = {"end": "node", "nodes": [], "why": _first_line(error)}
        return {**told, "running": False}

    def _kill(self, name: str) -> None:
        try:
            self._ray.kill(self._ray.get_actor(name, namespace=NAMESPACE))
        except ValueError:  # it ended by itself
            return


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def main(address: str) -> int:
    """Answer requests until there are none; return the program's exit code."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer
    import ray

    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001 - whatever Ray raises, the tuner tells it
        print(_first_line(error), file=sys.stderr)
        return 1
    driver = Driver(ray)
    for line in sys.stdin:
        request = json.loads(line)
        told: Told
        try:
            match request["do"]:
                case "submit":
                    told = {"answer": driver.submit(request)}
                case "list":
                    told = {"answer": driver.listed()}
                case _:
                    driver.cancel(request["names"])
                    told = {"answer": None}
        except Exception as error:  # noqa: BLE001 - Ray raises whatever its calls meet
            refused = isinstance(error, Refused | ValueError)
            told = {"error": _first_line(error) or repr(error), "refused": refused}
        print(json.dumps(told), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
