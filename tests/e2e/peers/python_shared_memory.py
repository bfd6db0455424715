"""A child fills 8 MiB of multiprocessing.shared_memory, and the parent checks them."""
import multiprocessing
from multiprocessing import shared_memory

BYTES = 8 << 20


def fill(name: str):
    shared = shared_memory.SharedMemory(name)
    shared.buf[:BYTES] = b"\x5a" * BYTES
    shared.close()


if __name__ == "__main__":
    shared = shared_memory.SharedMemory(create=True, size=BYTES)
    try:
        child = multiprocessing.Process(target=fill, args=(shared.name,))
        child.start()
        child.join()
        print("child ended with", child.exitcode)
        assert child.exitcode == 0 and bytes(shared.buf[:BYTES]) == b"\x5a" * BYTES
    finally:
        shared.close()
        shared.unlink()
