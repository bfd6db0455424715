#!/usr/bin/env python3
"""Measures how long one request of a client takes beside all that another client has queued.

    scripts/build && bench/fairness.py [MODEL] [--requests 200] [--tokens 200]

A server of 2 ranks with 8 seats serves MODEL (the demo model). Client A sends all of its requests at
once from one address. When they run and wait, client B sends one of 20 tokens from another address.
Ratios are of one run: B beside A to B alone, and B beside A to the time of all of A's.
"""
import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
A, B, SEATS = "127.0.0.2", "127.0.0.3", 8


class Server:
    def __init__(self, shoal: Path, model: Path):
        self.process = subprocess.Popen(
            [shoal, "serve", model, "-tp", "2", "--grpc-port", "0", "--port", "0",
             "--max-num-seqs", str(SEATS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = self.process.stdout.readline()
        if not ready.startswith("READY "):
            sys.exit("fairness: the server did not start")
        self.port = int(ready.split("http=")[1].split()[0].rsplit(":", 1)[1])

    def complete(self, source: str, tokens: int) -> float:
        """Seconds until the whole answer is there."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, source_address=(source, 0))
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "In the beginning", "max_tokens": tokens, "ignore_eos": True}),
            {"content-type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            sys.exit(f"fairness: {answer.status}: {body[:300]}")
        return time.monotonic() - began

    def waiting(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return next(int(float(line.split()[-1])) for line in text.splitlines()
                    if line.startswith("vllm:num_requests_waiting{"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=ROOT / "models" / "demo")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--shoal", type=Path, default=ROOT / "build" / "release" / "shoal")
    args = parser.parse_args()
    server = Server(args.shoal, args.model)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    alone = statistics.median(server.complete(B, 20) for _ in range(5))
    began = time.monotonic()
    others = [threading.Thread(target=server.complete, args=(A, args.tokens))
              for _ in range(args.requests)]
    for one in others:
        one.start()
    while server.waiting() < args.requests - SEATS - 1:
        time.sleep(0.01)
    beside = server.complete(B, 20)
    for one in others:
        one.join()
    everything = time.monotonic() - began
    server.process.terminate()
    server.process.wait()
    print(f"B alone {alone:.2f} s, beside {args.requests} of A {beside:.2f} s, all of A {everything:.1f} s")
    print(json.dumps({"beside_to_alone": round(beside / alone, 1),
                      "beside_to_all_of_a": round(beside / everything, 3)}))


if __name__ == "__main__":
    main()
