#!/usr/bin/env python3
"""What the fronts cost: front_share.py MODEL [--front http|grpc] [--before PROGRAM] [--rounds 3]

Streams run together, while the log says how long each step took. It prints the share of the time
between the first and the last step in which no step ran, which is what planning, text, encoding and
sockets cost, and the processor time of the front beside that of the ranks. Then prompts alone: the
time to the first event over that of the steps of its prefill. With --before, another build of the
program runs in turns with this one, and the last lines have the ratios before / after (above 1: this one
is cheaper). A model of random weights needs a tokenizer.json beside it, for example that of
models/demo. gRPC needs grpcio and the stubs of proto/ (as bench/mixed_load.py).
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
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


def http_stream(address: str, prompt: list[int], tokens: int) -> float:
    """Streams an answer, and returns the seconds to its first event."""
    connection = http.client.HTTPConnection(address, timeout=600)
    began = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}),
        {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {answer.read()}")
    answer.readline()
    first = time.monotonic() - began
    answer.read()
    connection.close()
    return first


def grpc_stream(address: str, prompt: list[int], tokens: int) -> float:
    """The same over gRPC."""
    import grpc
    from openengine.v1 import generate_pb2 as pb
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt), sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StoppingOptions(max_tokens=tokens, ignore_eos=True)).SerializeToString()
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        grpc.channel_ready_future(channel).result()
        began = time.monotonic()
        events = channel.unary_stream("/openengine.v1.Inference/Generate")(request)
        next(events)
        first = time.monotonic() - began
        for _ in events:
            pass
    return first


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    step_s: float
    outside: float     # the share of the time in which no step runs
    processor: float   # the front's share of the processor time
    first_event: float  # the time to the first event over that of the steps of the prefill

    def __str__(self):
        return (f"steps of {1e3 * self.step_s:.2f} ms; no step runs in {100 * self.outside:.2f} % of the "
                f"time; the front takes {100 * self.processor:.2f} % of the processor time; first event "
                f"after {self.first_event:.3f} times the prefill")


def cost_of(program: str, flags) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as stderr:
            server = subprocess.Popen(
                [program, "serve", flags.model, "-tp", "2", "--grpc-port", "0", "--port", "0", "--log-level",
                 "debug", "--max-num-seqs", str(flags.streams)], stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            ready = server.stdout.readline()
            return measure(flags, server, re.search(rf"{flags.front}=(\S+)", ready)[1], log)
        finally:
            server.terminate()
            server.wait()


def measure(flags, server, address: str, log: Path) -> Cost:
    stream = http_stream if flags.front == "http" else grpc_stream
    prompt = [5 + i % 90 for i in range(flags.prompt_tokens)]
    ratios = []
    for turn in range(9):
        before = len(steps(log))
        first = stream(address, [turn, *prompt], 1)
        time.sleep(0.1)
        ratios.append(first / sum(step[3] for step in steps(log)[before:]))
    before = len(steps(log))
    pids = [server.pid, *map(int, subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True,
                                                 text=True).stdout.split())]
    used = [processor_seconds(pid) for pid in pids]
    with ThreadPoolExecutor(flags.streams) as clients:  # the first error of one ends the bench
        list(clients.map(lambda i: stream(address, prompt[:8 + i % 8], flags.tokens), range(flags.streams)))
    time.sleep(0.2)
    used = [processor_seconds(pid) - seconds for pid, seconds in zip(pids, used)]
    full = [step for step in steps(log)[before:] if step[1] >= 3 * flags.streams // 4]
    if len(full) < 2:
        sys.exit(f"too few steps: {[step[1:] for step in steps(log)[before:]][:40]}")
    return Cost(statistics.median(step[3] for step in full),
                1 - sum(step[3] for step in full[1:]) / (full[-1][0] - full[0][0]),
                used[0] / sum(used), statistics.median(ratios))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--front", choices=["http", "grpc"], default="http")
    parser.add_argument("--before", metavar="PROGRAM", help="another build, which runs in turns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    flags = parser.parse_args()
    programs = {"after": SHOAL} | ({"before": flags.before} if flags.before else {})
    costs = {name: [] for name in programs}
    for turn in range(flags.rounds):
        for name in sorted(programs, reverse=turn % 2 == 0):
            costs[name].append(cost_of(programs[name], flags))
            print(f"{flags.front}, {flags.streams} streams, {name}: {costs[name][-1]}", flush=True)
    for what in ("outside", "processor", "first_event") if flags.before else ():
        ratios = [getattr(b, what) / getattr(a, what) for b, a in zip(costs["before"], costs["after"])]
        print(f"{what}: before / after {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
              f"{max(ratios):.3f}, {flags.rounds} rounds)")


if __name__ == "__main__":
    main()
