"""The pages of this machine, of which /dev/shm consists: 4 KiB on x86, and 4, 16 or 64 KiB on Arm."""
import os

PAGE = os.sysconf("SC_PAGESIZE")  # bytes


def whole_pages(size: int) -> int:
    """The bytes that a file of this size takes in /dev/shm."""
    return -(-size // PAGE) * PAGE


def of_documents() -> bool:
    """Whether documents and manifests have the figures of this machine: they are for pages of 4 KiB."""
    return PAGE == 4096
