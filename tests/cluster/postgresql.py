"""A PostgreSQL server of its own, for as long as somebody needs one: in a temporary folder, on a Unix socket alone.

`make cluster-deps` installs it. PostgreSQL refuses to run as root, so then it runs as the user that Debian made for it.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

USER = "postgres"
SECONDS = 60
"""Until it answers, at most."""


def programs() -> Path:
    """Return the folder of the newest PostgreSQL that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if not found:
        raise RuntimeError("PostgreSQL is not installed: make cluster-deps")
    return found[-1].parent


@contextmanager
def server() -> Iterator[str]:
    """Start a server; yield the URL of its database `postgres`. Nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="autotune-postgresql-"))
    other: dict[str, Any] = {}
    if os.geteuid() == 0:
        entry = pwd.getpwnam(USER)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        other = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    data = folder / "data"
    try:
        subprocess.run(
            [programs() / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync",
             "--encoding=UTF8", "--locale=C"],
            check=True, capture_output=True, cwd="/", **other,
        )  # fmt: skip
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs() / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
                stdout=log, stderr=log, cwd="/", **other,
            )  # fmt: skip
        try:
            _wait(process, folder)
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: the data are thrown away
            process.wait()
    finally:
        shutil.rmtree(folder)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + SECONDS
    ready = [programs() / "pg_isready", "-q", "-h", folder]
    while subprocess.run(ready, check=False).returncode:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"PostgreSQL does not start: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.1)
