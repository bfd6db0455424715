"""Starts the program where the kernel refuses it something: for preexec_fn of subprocess.Popen.

Everything is real: a seccomp filter answers system calls with an errno, a limit is a limit, and
another user is another user.
"""
import ctypes
import os
import resource
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
# x86-64's numbers.
MADVISE, SOCKETPAIR, STATFS, FALLOCATE, ACCEPT4 = 28, 53, 137, 285, 288
SIGNALFD4, EVENTFD2, MEMFD_CREATE, PIDFD_OPEN, CLONE3 = 289, 290, 319, 434, 435
UNSHARE = 272
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
    load, equal, answer = 0x20, 0x15, 0x06
    allow, refuse = statement(answer, 0x7FFF0000), statement(answer, verdict)
    if third is None:
        code = [statement(load, 0), statement(equal, call, 0, 1), refuse, allow]
    else:
        code = [statement(load, 0), statement(equal, call, 0, 3),
                statement(load, 16 + 2 * 8), statement(equal, third, 0, 1), refuse, allow]
    text = b"".join(code)

    def install():
        program = Program(len(code), text)
        if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or \
                LIBC.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program)):
            raise OSError(ctypes.get_errno(), "no seccomp filter")
    return install


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
