"""Real cgroups for tests, of version 1 or 2, whichever this machine has."""
import re
import uuid
from pathlib import Path

import harness


class Cgroup:
    """A new cgroup. OSError: no cgroup with the wanted file can be made here."""

    def __init__(self, places: list[tuple[str, str]]):
        """places: the folder of a hierarchy, and the file that a cgroup must have there."""
        name = f"shoal-test-{uuid.uuid4().hex[:8]}"
        for root, file in places:
            self.path = Path(root, name)
            try:
                self.path.mkdir()
            except OSError:
                continue
            self.file = self.path / file
            if self.file.exists():
                return
            self.path.rmdir()
        raise OSError(f"no cgroup with {' or '.join(file for _, file in places)} can be made here")

    def add(self, pid: int):
        (self.path / "cgroup.procs").write_text(str(pid))

    def remove(self):
        harness.wait_until(self.removed, "an empty cgroup")

    def removed(self) -> bool:
        try:
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # somebody is still in it
            return False
        return True


class Freezer(Cgroup):
    """Its processes stand still while it is frozen. `docker pause` does the same."""

    def __init__(self):
        super().__init__([("/sys/fs/cgroup/freezer", "freezer.state"),
                          ("/sys/fs/cgroup", "cgroup.freeze"),
                          ("/sys/fs/cgroup/unified", "cgroup.freeze")])
        self.values = {"freezer.state": ("THAWED", "FROZEN"), "cgroup.freeze": ("0", "1")}

    def freeze(self, yes: bool):
        if self.file.exists():
            self.file.write_text(self.values[self.file.name][yes])

    def remove(self):
        self.freeze(False)
        super().remove()


class CpuQuota(Cgroup):
    """Its processes together get this many percent of one processor."""

    def __init__(self, percent: int):
        super().__init__([("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"),
                          ("/sys/fs/cgroup/cpu,cpuacct", "cpu.cfs_quota_us"),
                          ("/sys/fs/cgroup", "cpu.max")])
        quota = f"{percent * 1000}"  # of a period of 100,000 us
        self.file.write_text(quota if self.file.name == "cpu.cfs_quota_us" else f"{quota} 100000")


class PidsLimit(Cgroup):
    """Its processes together have this many threads at most."""

    def __init__(self, limit: int):
        super().__init__([("/sys/fs/cgroup/pids", "pids.max"), ("/sys/fs/cgroup", "pids.max")])
        self.file.write_text(str(limit))


class MemoryLimit(Cgroup):
    """Its processes together get this many bytes."""

    def __init__(self, limit: int):
        super().__init__([("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                          ("/sys/fs/cgroup", "memory.max")])
        self.limit = limit
        self.file.write_text(str(limit))

    def used(self) -> int:
        names = {"memory.limit_in_bytes": "memory.usage_in_bytes", "memory.max": "memory.current"}
        return int((self.path / names[self.file.name]).read_text())


def limit_of_remedy(report: dict) -> int:
    """The memory limit that doctor suggests, as a command for this machine or for its container."""
    texts = [remedy["text"] for remedy in report["remedies"] if "memory" in remedy["text"]]
    found = re.search(r'--memory=(\d+)b|memory: "(\d+)"|echo (\d+) > ', texts[0])
    return int(next(number for number in found.groups() if number))
