"""Many large requests at once leave the server's memory under its budget."""
import sys
import threading
from pathlib import Path

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(77)

import harness

MEBIBYTE = 1 << 20
BUDGET = 512 * MEBIBYTE  # what SECURITY.md says
REQUESTS = 24
# One stop condition: a token id, as a message in a message. Fifteen mebibytes of them took 225 MB
# as objects.
CONDITION = b"\x1a\x02\x10\x05"


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def most_memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


class RequestMemory(harness.TestCase):
    def test_large_requests_stay_within_the_budget(self):
        server = self.serve(harness.DEMO, "-tp", 2)
        channel = grpc.insecure_channel(server.wait_ready()["grpc"],
                                        options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        generate = channel.unary_stream("/openengine.v1.Inference/Generate")
        conditions = field(3, b"In the beginning") + field(6, CONDITION * (15 * MEBIBYTE // 4))
        ids = field(4, field(1, b"\x05" * (15 * MEBIBYTE)))
        prompt = field(3, b"In the beginning " * (15 * MEBIBYTE // 17))
        codes = []

        def send(request: bytes):
            try:
                list(generate(request, timeout=5 * harness.GUARD))
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.append(error.code())
        clients = [threading.Thread(target=send, args=((conditions, ids, prompt)[i % 3],))
                   for i in range(REQUESTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertLess(most_memory(server.pid), BUDGET)
        # Those for which there is no room within some seconds are told to come back.
        self.assertEqual(len(codes), REQUESTS)
        self.assertLessEqual(set(codes), {grpc.StatusCode.INVALID_ARGUMENT,
                                          grpc.StatusCode.RESOURCE_EXHAUSTED})


if __name__ == "__main__":
    harness.main()
