"""What runs in Ray's own workers: a coordinator for each job, and a runner of the node's program on each of its nodes.

The classes are made in functions, because Ray hands such over by value: its workers need no autotune. The node's
program has its own Python, as `python` of the cluster file says.
"""

from __future__ import annotations

from typing import Any

LINGER = 30.0
"""Seconds that a coordinator waits for somebody to ask what came of its job, before it makes room."""


def runner_class(ray: Any) -> Any:
    """Return the actor that runs the program of one node, and ends it when it ends itself."""

    class Runner:
        def __init__(self, command: list[str], environment: dict[str, str], folder: str, log: str) -> None:
            import ctypes
            import os
            import signal
            import subprocess

            def end_with_parent() -> None:
                # PR_SET_PDEATHSIG (man 2 prctl): of this, the main thread.
                ctypes.CDLL(None).prctl(1, signal.SIGTERM)

            self.process = None
            self.where = ray.util.get_node_ip_address()
            with open(log, "ab") as out:
                try:
                    self.process = subprocess.Popen(
                        command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=out,
                        stderr=out, preexec_fn=end_with_parent, start_new_session=True,
                    )  # fmt: skip
                except OSError as error:
                    out.write(f"{error}\n".encode())

        def node(self) -> str:
            return str(self.where)

        def wait(self) -> int:
            return 127 if self.process is None else int(self.process.wait())

        def stop(self) -> None:
            import contextlib
            import subprocess

            if self.process is not None and self.process.poll() is None:
                self.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(50)
                self.process.kill()

    return ray.remote(max_restarts=0, max_concurrency=4)(Runner)


def coordinator_class(ray: Any) -> Any:
    """Return the actor of a job: it holds the placement group of its nodes, whose runners end with it."""
    runner = runner_class(ray)
    linger = LINGER

    class Coordinator:
        def __init__(self, plan: dict[str, Any]) -> None:
            import threading

            self.plan = plan
            self.told: dict[str, Any] = {}
            self.stopped = False
            self.runners: list[Any] = []
            self.done = threading.Event()
            threading.Thread(target=self.watch, daemon=True).start()

        def watch(self) -> None:
            import os
            import time

            try:
                self.told = self.run()
            except Exception as error:  # noqa: BLE001 - it is told where the job was asked for
                self.told = {"end": "node", "nodes": [], "why": str(error).strip().partition("\n")[0]}
            self.done.set()
            time.sleep(linger)  # whoever waits for it kills this actor sooner
            os._exit(0)

        def run(self) -> dict[str, Any]:
            from ray.util.placement_group import placement_group
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            plan, commands = self.plan, self.plan["commands"]
            strategy = "STRICT_SPREAD" if len(commands) > 1 else "PACK"
            group = placement_group([plan["takes"]] * len(commands), strategy=strategy)
            while not group.wait(1):
                if self.stopped:
                    return {"end": "cancelled", "nodes": [], "why": "before it ran"}
            custom = {what: share for what, share in plan["takes"].items() if what not in {"CPU", "GPU"}}
            self.runners = [
                runner.options(
                    num_cpus=plan["takes"]["CPU"], num_gpus=plan["takes"].get("GPU", 0), resources=custom,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
                ).remote(command, plan["environment"], plan["folder"], plan["log"])
                for number, command in enumerate(commands)
            ]  # fmt: skip
            if self.stopped:
                self.stop_runners()
            nodes = ray.get([one.node.remote() for one in self.runners])
            waiting = {one.wait.remote(): where for one, where in zip(self.runners, nodes, strict=True)}
            bad: dict[str, Any] | None = None
            while waiting:
                (ended,), _ = ray.wait([*waiting], num_returns=1)
                where = waiting.pop(ended)
                try:
                    code = ray.get(ended)
                    why = f"exit code {code}"
                    end = "failed"
                except ray.exceptions.RayError as error:
                    code, why, end = 1, str(error).strip().partition("\n")[0], "node"
                if code and bad is None:
                    bad = {"end": "cancelled" if self.stopped else end, "nodes": [where], "why": why}
                    self.stop_runners()  # of the other nodes, as srun --kill-on-bad-exit does
            return bad or {"end": "completed", "nodes": nodes, "why": ""}

        def stop_runners(self) -> None:
            stopping = [one.stop.remote() for one in self.runners]
            if stopping:
                ray.wait(stopping, num_returns=len(stopping), timeout=55)

        def stop(self) -> None:
            self.stopped = True
            self.stop_runners()

        def result(self) -> dict[str, Any]:
            self.done.wait()
            return self.told

    return ray.remote(max_restarts=0, max_concurrency=8)(Coordinator)
