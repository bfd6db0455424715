#!/usr/bin/env python3
"""Measures how long health checks take while two clients send prompts of 8 MB.

    scripts/build && /usr/bin/python3 bench/health_beside_prompts.py [--rounds 3]

The prompts are tokenized and then refused, because they have too many tokens. Each round checks
the health for some seconds without these clients and then with them, on the same server, beside one
stream that generates all the time. The figure is the ratio of the two 99th percentiles. The model
is models/demo with a longer context, so that prompts of this size are tokenized at all.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "models" / "demo"
CONTEXT, PROMPT_BYTES, CLIENTS = 65536, 8 << 20, 2


def long_model(folder: Path) -> Path:
    """The demo model's files, with a configuration that says that its context is long."""
    for file in DEMO.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((DEMO / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(
        {**config, "max_position_embeddings": CONTEXT}))
    return folder


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def request(prompt: bytes, endless: bool = False) -> bytes:
    """A GenerateRequest, encoded by hand: the prompt is field 3, stopping.ignore_eos 6.4."""
    ignore_eos = b"\x32\x02\x20\x01" if endless else b""
    return b"\x1a" + varint(len(prompt)) + prompt + ignore_eos


class Clients:
    """Sends long prompts from several threads until it is closed."""

    def __init__(self, address: str):
        self.stop = False
        words = b"In the beginning there was a long prompt. "
        self.prompt = request(words * (PROMPT_BYTES // len(words)))
        self.sent = 0
        self.threads = [threading.Thread(target=self.run, args=(address,)) for _ in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def run(self, address: str):
        with channel(address) as own:
            generate = own.unary_stream("/openengine.v1.Inference/Generate")
            while not self.stop:
                try:
                    list(generate(self.prompt))
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                        raise
                self.sent += 1

    def close(self):
        self.stop = True
        for thread in self.threads:
            thread.join()


def channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0),
                                                   ("grpc.use_local_subchannel_pool", 1)])


def check_for(address: str, seconds: float) -> list[float]:
    """The milliseconds that each health check took, one after the other, 5 ms apart."""
    took = []
    with channel(address) as own:
        check = own.unary_unary("/grpc.health.v1.Health/Check")
        check(b"")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            check(b"", timeout=60)
            took.append((time.perf_counter() - began) * 1e3)
            time.sleep(0.005)
    return took


def drain(stream) -> None:
    try:
        for _ in stream:
            pass
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.CANCELLED:
            raise


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def measure(address: str, args) -> None:
    load = os.getloadavg()[0]
    ratios, alone_p99, beside_p99, sent = [], [], [], 0
    for _ in range(args.rounds):
        alone_p99.append(p99(check_for(address, args.seconds)))
        clients = Clients(address)
        time.sleep(0.5)
        beside_p99.append(p99(check_for(address, args.seconds)))
        clients.close()
        sent += clients.sent
        ratios.append(beside_p99[-1] / alone_p99[-1])
    print(f"{args.rounds} rounds, {sent} prompts of {PROMPT_BYTES >> 20} MB, load average before "
          f"{load:.2f}\n")
    print("| health check, 99th percentile | ms |\n|---|--:|")
    for name, values in (("without the prompts", alone_p99), ("beside them", beside_p99)):
        print(f"| {name} | {statistics.median(values):.1f} ({min(values):.1f} – "
              f"{max(values):.1f}) |")
    print(f"\nratio {statistics.median(ratios):.1f} ({min(ratios):.1f} – {max(ratios):.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of each half of a round")
    parser.add_argument("--shoal", type=Path, default=ROOT / "build" / "release" / "shoal")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([args.shoal, "serve", long_model(Path(folder)), "-tp", "1",
                                   "--threads-per-rank", "1", "--grpc-port", "0"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            ready = server.stdout.readline()
            if not ready.startswith("READY "):
                sys.exit("health_beside_prompts: the server did not start")
            address = dict(word.split("=", 1) for word in ready.split()[1:])["grpc"]
            with channel(address) as own:
                generate = own.unary_stream("/openengine.v1.Inference/Generate")
                stream = generate(request(b"In the beginning", endless=True))
                threading.Thread(target=drain, args=(stream,), daemon=True).start()
                measure(address, args)
                stream.cancel()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
