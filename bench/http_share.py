#!/usr/bin/env python3
"""What the HTTP front costs: http_share.py MODEL [--streams 64] [--tokens 120] [--prompt-tokens 256]

Streams over HTTP run together, while the log says how long each step took. It prints the share of
the time between the first and the last step in which no step ran, which is what planning, text, JSON
and sockets cost, and the processor time of the front beside that of the ranks. Then one prompt alone:
the time to its first event over that of the steps of its prefill. A model of random weights needs a
tokenizer.json beside it, for example that of models/demo.
"""
import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

SHOAL = os.environ.get("SHOAL", str(Path(__file__).parents[1] / "build" / "release" / "shoal"))
STEP = re.compile(r"^(\S+)Z DEBUG front .* step (\d+): (\d+) decodes, (\d+) tokens of prompts, (\d+) us")


def steps(log: Path) -> list[tuple[float, int, int, float]]:
    """The end, the decodes, the tokens of prompts and the seconds of each step so far."""
    found = []
    for line in log.read_text().splitlines():
        if match := STEP.match(line):
            end = datetime.fromisoformat(match[1]).timestamp()
            found.append((end, int(match[3]), int(match[4]), int(match[5]) / 1e6))
    return found


def stream(address: str, prompt: list[int], tokens: int) -> float:
    """Streams an answer, and returns the seconds to its first event."""
    connection = http.client.HTTPConnection(address, timeout=600)
    began = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}),
        {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"status {answer.status}: {answer.read()}")
    answer.readline()
    first = time.monotonic() - began
    answer.read()
    connection.close()
    return first


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as stderr:
            server = subprocess.Popen(
                [SHOAL, "serve", flags.model, "-tp", "2", "--grpc-port", "0", "--log-level", "debug",
                 "--max-num-seqs", str(flags.streams)], stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            measure(flags, server, re.search(r"http=(\S+)", server.stdout.readline())[1], log)
        finally:
            server.terminate()
            server.wait()


def measure(flags, server, address: str, log: Path):
    prompt = [5 + i % 90 for i in range(flags.prompt_tokens)]
    ratios = []
    for turn in range(3):
        before = len(steps(log))
        first = stream(address, [turn, *prompt], 1)
        time.sleep(0.2)
        ratios.append(first / sum(step[3] for step in steps(log)[before:]))
    before = len(steps(log))
    pids = [server.pid, *map(int, subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True,
                                                 text=True).stdout.split())]
    used = [processor_seconds(pid) for pid in pids]
    threads = [threading.Thread(target=stream, args=(address, prompt[:8 + i % 8], flags.tokens))
               for i in range(flags.streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.2)
    used = [processor_seconds(pid) - seconds for pid, seconds in zip(pids, used)]
    full = [step for step in steps(log)[before:] if step[1] >= 3 * flags.streams // 4]
    if len(full) < 2:
        sys.exit(f"too few steps: {[step[1:] for step in steps(log)[before:]][:40]}")
    wall = full[-1][0] - full[0][0]
    inside = sum(step[3] for step in full[1:])
    print(f"{flags.streams} streams, {len(full)} steps of {statistics.median(s[3] for s in full):.3f} s: "
          f"no step runs in {100 * (1 - inside / wall):.2f} % of the time; the front takes "
          f"{100 * used[0] / sum(used):.2f} % of the processor time")
    print(f"first event of {flags.prompt_tokens} tokens: {statistics.median(ratios):.3f} times the "
          f"prefill ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
