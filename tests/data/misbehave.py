"""A worker that behaves as told: `misbehave.py BEHAVIOUR REQUEST RESULT_FD`. Standard library only."""

import os
import signal
import subprocess
import sys
import time

behaviour, request, result_fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
VERDICT = b'{"type":"result","protocol":1,"outcome":{"kind":"unsupported","reason":"as told"}}\n'


def say(data: bytes) -> None:
    while data:
        data = data[os.write(result_fd, data) :]


def answer() -> None:
    say(VERDICT)


def sleeper() -> None:
    """Replace this process by one that would outlive everything."""
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])


def daemonize(deaf: bool = False) -> None:
    """Leave a grandchild in a session of its own, whose parent is gone."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if deaf:
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
            os.set_inheritable(result_fd, True)
            os.write(write, b"x")
            os.close(write)
            sleeper()
        os._exit(0)
    os.close(write)
    os.read(read, 1)
    os.wait()


def hang() -> None:
    say(b'{"type":"progress","phase":"backward","step":2}\n')
    time.sleep(600)


def hang_deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    hang()


def segfault() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_own_group() -> None:
    answer()
    os.killpg(0, signal.SIGKILL)


def loud() -> None:
    for stream in (sys.stdout, sys.stderr):
        for _ in range(160):
            stream.write("\x00 not {json}\n" * 6000)
        stream.write("last words\n")
        stream.flush()
    answer()


def garbage() -> None:
    say(b"\xff\xfe{not json\n[1, 2\n" + b"z" * (9 * 2**20) + b"\n" + b'{"type":"result"')


def garbage_then_answer() -> None:
    say(b"Warning: a library wrote here\n")
    answer()


def two_answers() -> None:
    say(VERDICT + VERDICT.replace(b"as told", b"again"))


def pieces() -> None:
    message = b'{"type":"progress","phase":"build","baseline":123}\n' + VERDICT
    for at in range(len(message)):
        say(message[at : at + 1])


def over_budget() -> None:
    """Take memory until the kernel refuses, and say where that was."""
    held = []
    try:
        while True:
            held.append(bytearray(2**20))
    except MemoryError:
        count = len(held)
        del held
        say(VERDICT.replace(b"as told", b"%d" % count))


def die_at_limit() -> None:
    """What a native library does that does not check its malloc: fill up, then crash."""
    held = []
    try:
        while True:
            held.append(bytearray(2**20))
    except MemoryError:
        time.sleep(0.1)
        segfault()


def exit_early() -> None:
    sys.exit(0)


def exit_three() -> None:
    sys.exit(3)


def answer_then_exit_three() -> None:
    answer()
    sys.exit(3)


def answer_then_segfault() -> None:
    answer()
    segfault()


def answer_then_hang() -> None:
    answer()
    hang()


def leave_child() -> None:
    if os.fork() == 0:
        sleeper()
    answer()


def leave_daemons() -> None:
    daemonize()
    daemonize(deaf=True)
    answer()


def hang_after_daemons() -> None:
    daemonize(deaf=True)
    hang()


def flood() -> None:
    """Print 300 MB, slowly enough that somebody can look."""
    chunk = b"noise\n" * 200_000
    for _ in range(250):
        os.write(1, chunk)
        time.sleep(0.002)
    time.sleep(0.1)
    os.write(1, b"last words\n")
    answer()


def breed() -> None:
    """Several generations, half of them in sessions of their own, then a crash of the first."""
    read, write = os.pipe()
    for _ in range(4):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                os.fork()
            os.write(write, b"x")
            time.sleep(600)
    for _ in range(12):
        os.read(read, 1)
    segfault()


def helper_that_ends() -> None:
    """A helper that ends by itself soon after the worker, as multiprocessing's resource tracker does."""
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    answer()


def describe() -> None:
    """Say what the process was given."""
    import json
    import resource
    from pathlib import Path

    facts = {
        "limit": resource.getrlimit(resource.RLIMIT_DATA),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "leader": os.getsid(0) == os.getpid(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "descriptors": sorted(
            int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) != 3 or result_fd == 3
        ),
        "result_fd": result_fd,
        "told": os.environ.get("TOLD"),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "path": os.environ.get("PYTHONPATH"),
        "request": json.loads(Path(request).read_text())["kind"],
        "signals": {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGTERM", "SIGHUP")},
    }
    say(VERDICT.replace(b'"as told"', json.dumps(json.dumps(facts)).encode()))


globals()[behaviour]()
