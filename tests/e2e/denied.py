"""Starts the program where the kernel refuses it something: for preexec_fn of subprocess.Popen.

Everything is real: a seccomp filter answers system calls with an errno or holds them, a limit is a
limit, and another user is another user.
"""
import ctypes
import fcntl
import os
import platform
import resource
import select
import socket
import struct
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
# Each kind of processor numbers its system calls otherwise.
CALLS = {
    "x86_64": {"pread64": 17, "madvise": 28, "socketpair": 53, "statfs": 137, "openat": 257, "unshare": 272,
               "fallocate": 285, "accept4": 288, "signalfd4": 289, "eventfd2": 290, "seccomp": 317,
               "memfd_create": 319, "pidfd_open": 434, "clone3": 435},
    "aarch64": {"eventfd2": 19, "statfs": 43, "fallocate": 47, "openat": 56, "pread64": 67,
                "signalfd4": 74, "unshare": 97, "socketpair": 199, "madvise": 233, "accept4": 242, "seccomp": 277,
                "memfd_create": 279, "pidfd_open": 434, "clone3": 435},
}
OURS = CALLS[platform.machine()]
MADVISE, SOCKETPAIR, STATFS = OURS["madvise"], OURS["socketpair"], OURS["statfs"]
FALLOCATE, ACCEPT4, SIGNALFD4 = OURS["fallocate"], OURS["accept4"], OURS["signalfd4"]
EVENTFD2, MEMFD_CREATE, UNSHARE = OURS["eventfd2"], OURS["memfd_create"], OURS["unshare"]
PIDFD_OPEN, CLONE3 = OURS["pidfd_open"], OURS["clone3"]
POPULATE_WRITE = 23


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def statement(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


def deny(call: int, error: int, third: int | None = None):
    """Makes a function that lets this system call fail with the errno, for all that comes after.

    third: only if the third argument is this.
    """
    return filtered(call, 0x00050000 | error, third)


def kill(call: int):
    """Makes a function that lets this system call kill its process, for all that comes after."""
    return filtered(call, 0x80000000)


def filtered(call: int, verdict: int, third: int | None = None):
    program = program_of(call, verdict, third)

    def install():
        if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
                LIBC.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program)):
            raise OSError(ctypes.get_errno(), "no seccomp filter")
    return install


def program_of(call: int, verdict: int, third: int | None = None) -> Program:
    load, equal, answer = 0x20, 0x15, 0x06
    allow, refuse = statement(answer, 0x7FFF0000), statement(answer, verdict)
    if third is None:
        code = [statement(load, 0), statement(equal, call, 0, 1), refuse, allow]
    else:
        code = [statement(load, 0), statement(equal, call, 0, 3),
                statement(load, 16 + 2 * 8), statement(equal, third, 0, 1), refuse, allow]
    return Program(len(code), b"".join(code))


class HeldCalls(threading.Thread):
    """System calls of this name with this third argument, by all that comes after install(). From hold()
    on, the kernel holds them, as it does if a file's server is gone. Start it when the program runs.

    path, skip: of the opening of files, only of those that end with this, after the first `skip`."""
    NEW_LISTENER, ASK, LET_GO, RECEIVE, ANSWER = 8, 0x7FC00000, 1, 0xC0502100, 0xC0182101

    def __init__(self, call: str, third: int, path: str = "", skip: int = 0):
        super().__init__(daemon=True)
        self.path, self.skip = path.encode(), skip
        self.program = program_of(OURS[call], self.ASK, third=third)
        self.near, self.far = socket.socketpair()
        self.holds, self.held = threading.Event(), threading.Event()

    def install(self):
        LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        listener = LIBC.syscall(OURS["seccomp"], 1, self.NEW_LISTENER, ctypes.byref(self.program))
        if listener < 0:
            raise OSError(ctypes.get_errno(), "no seccomp filter")
        socket.send_fds(self.far, [b"."], [listener])

    def hold(self):
        self.holds.set()

    def is_meant(self, call: bytes) -> bool:
        if not self.path:
            return True
        process, name = struct.unpack_from("=8xI28xQ", call)  # of seccomp_notif: the second argument
        with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
            memory.seek(name)
            if not memory.read(4096).split(b"\0")[0].endswith(self.path):
                return False
        self.skip -= 1
        return self.skip < 0

    def run(self):
        with self.near, self.far:
            [listener] = socket.recv_fds(self.near, 1, 1)[1]
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while any(events & select.POLLIN for _, events in poll.poll()):
            call = bytearray(80)
            try:
                fcntl.ioctl(listener, self.RECEIVE, call)
                if self.holds.is_set() and self.is_meant(call):
                    self.held.set()
                else:
                    answer = call[:8] + struct.pack("qiI", 0, 0, self.LET_GO)
                    fcntl.ioctl(listener, self.ANSWER, answer)
            except FileNotFoundError:  # whoever has called is gone
                pass
        os.close(listener)


def limit(kind: int, most: int, uid: int | None = None):
    """Makes a function that sets a limit, and then becomes another user, because root has no limit
    of processes."""
    def install():
        resource.setrlimit(kind, (most, most))
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
    return install
