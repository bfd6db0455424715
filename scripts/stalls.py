"""Lets everything in a cgroup, or whatever the processors run, stand still now and then.

A *stall* is made by the freezer of a cgroup. Where none can be made, real-time processes hold all
processors. SIGSTOP would not do: its SIGCONT would wake ranks that a test has stopped.

    python3 scripts/stalls.py SECONDS [CGROUP-FOLDER]    every so many seconds, until stdin ends;
                                                         prints how many there were
"""
import contextlib
import fcntl
import os
import random
import select
import signal
import subprocess
import sys
import time
import uuid
import weakref
from pathlib import Path

LEAST_S, MOST_S = 0.5, 3.0
PREFIX = "shoal-stalls-"  # of the names of the cgroups
# The hierarchies, and the file with its values for going on and for standing still.
PLACES = (("/sys/fs/cgroup/freezer", "freezer.state", "THAWED", "FROZEN"),
          ("/sys/fs/cgroup", "cgroup.freeze", "0", "1"),
          ("/sys/fs/cgroup/unified", "cgroup.freeze", "0", "1"))


class Freezer:
    """A cgroup whose processes can stand still. As long as a process has one of these objects, the
    cgroup is in use. OSError: the folder is no such cgroup."""

    def __init__(self, folder: Path):
        self.folder = folder
        _, file, self.thawed, self.frozen = next(
            (place for place in PLACES if (folder / place[1]).exists()), PLACES[0])
        self.file = folder / file
        self.lock = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.lock)
        fcntl.flock(self.lock, fcntl.LOCK_SH)

    def freeze(self):
        self.file.write_text(self.frozen)

    def thaw(self):
        try:
            self.file.write_text(self.thawed)
        except OSError:
            if self.folder.exists():
                raise

    def joined_by(self) -> tuple[str, ...]:
        """A command that starts the command behind it in the cgroup."""
        return ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"))

    def can_be_joined(self) -> bool:
        return not subprocess.run([*self.joined_by(), "true"], stderr=subprocess.DEVNULL).returncode

    def remove(self):
        """Thaws it, and ends what is still in it."""
        self.thaw()
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            if not self.folder.exists():
                return
            with contextlib.suppress(OSError):
                for pid in (self.folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)


def remove_left_over():
    """Removes the cgroups of runs whose processes were all killed. One may be frozen."""
    for root, file, *_ in PLACES:
        for left in Path(root).glob(f"{PREFIX}*/{file}"):
            with contextlib.suppress(OSError):  # it is in use, or another run is quicker
                freezer = Freezer(left.parent)
                fcntl.flock(freezer.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                freezer.remove()


def new_freezer() -> Freezer | None:
    """None: no freezer can be made here, or no process can be moved into it."""
    remove_left_over()
    for root, *_ in PLACES:
        folder = Path(root, f"{PREFIX}{uuid.uuid4().hex[:8]}")
        try:
            folder.mkdir()
            freezer = Freezer(folder)
            if freezer.can_be_joined():
                return freezer
        except OSError:  # nobody may make one there, or it is no such hierarchy
            pass
        with contextlib.suppress(OSError):
            folder.rmdir()
    return None


def hold_processors(seconds: float):
    """Holds all processors. The kernel leaves a twentieth of each second to others. Each process
    ends by itself, whatever becomes of this one."""
    children = []
    for processor in os.sched_getaffinity(0):
        if child := os.fork():
            children.append(child)
            continue
        try:
            os.sched_setaffinity(0, {processor})
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
            os._exit(0)
        finally:
            os._exit(1)
    if any(os.waitpid(child, 0)[1] for child in children):
        raise OSError("neither a freezer nor a real-time process can be had here")


def stdin_ends_within(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def run(every: float, freezer: Freezer | None) -> int:
    """Until stdin ends, which it does with the process at its other end. Returns how many stalls
    there were."""
    stalls = 0
    while not stdin_ends_within(every):
        length = random.uniform(LEAST_S, MOST_S)
        if freezer is None:
            hold_processors(length)
        else:
            try:
                freezer.freeze()
                stdin_ends_within(length)
            finally:
                freezer.thaw()
        stalls += 1
    return stalls


class Stalls:
    """Stalls beside a run of tests, from a process of their own: if one of the two is killed, the
    other thaws the cgroup, and if both are, the next run does."""

    def __init__(self, every: float = 20, freezer: Freezer | None = None):
        self.freezer = freezer
        self.count = 0  # known at the end
        words = [str(freezer.folder)] if freezer else []
        self.process = subprocess.Popen([sys.executable, __file__, str(every), *words],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)

    def prefix(self) -> tuple[str, ...]:
        """What starts a command so that it stands still in a stall."""
        return self.freezer.joined_by() if self.freezer else ()

    def alive(self) -> bool:
        """Thaws the cgroup if the process has ended."""
        if self.process.poll() is None:
            return True
        if self.freezer:
            self.freezer.thaw()
        return False

    def end(self):
        self.count = int(self.process.communicate()[0] or 0)
        if self.freezer:
            self.freezer.remove()


def main() -> int:
    freezer = Freezer(Path(sys.argv[2])) if len(sys.argv) > 2 else None
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        count = run(float(sys.argv[1]), freezer)
        with contextlib.suppress(BrokenPipeError):  # who wanted to know was killed
            os.write(sys.stdout.fileno(), b"%d\n" % count)
    finally:
        if freezer:
            freezer.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
