#!/usr/bin/python3
"""Measures what a server does with ten times the requests that it can serve, for a minute.

    scripts/build release all
    /usr/bin/python3 bench/make_random_model.py DIR && bench/overload.py DIR [--record bench/overload]

One server of 2 ranks x 1 thread serves the 1.1 B shape, 8 requests at a time and 40 with those that
wait. First, 8 clients each send a request when their last one has ended. Then requests come at ten
times the rate at which these were served. Prompts have 16 to 64 tokens and answers 16 to 48. In the
end 400 requests are cancelled at random moments, and the queue must be empty.

The last line is JSON with ratios of figures of this run. A refusal says how long to wait before trying
again. That is compared with how long the last request that was taken before it waited for its first
token. RECORD.csv has every refusal.
"""
import argparse
import csv
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import mixed_load

ROOT = Path(__file__).resolve().parent.parent
SEATS, LIMIT = 8, 40


class Client:
    """Sends requests and notes what came of each."""

    def __init__(self, server: mixed_load.Server, rpc):
        self.server, self.rpc, self.draw = server, rpc, random.Random(1)
        self.lock, self.threads = threading.Lock(), []
        self.taken = []     # [time sent, time of the first token or None, tokens], in order
        self.refusals = []  # (time, reason, retry in seconds, number of the last one taken)
        self.others = Counter()

    def request(self):
        return self.draw.randrange(16, 65), self.draw.randrange(16, 49)

    def send(self, prompt: int, output: int):
        mine = [time.monotonic(), None, 0]
        call = self.server.start(prompt, output)
        # A refusal comes at once, and the first token of one that was taken later than this.
        watch = threading.Timer(0.1, self.note_taken, (mine,))
        watch.start()
        try:
            for message in call:
                tokens = len(self.server.pb.GenerateResponse.FromString(message).token.tokens)
                if tokens and mine[1] is None:
                    mine[1] = time.monotonic()
                mine[2] += tokens
        except grpc.RpcError as error:
            watch.cancel()
            with self.lock:
                if mine in self.taken:  # the refusal took longer than that
                    self.taken.remove(mine)
            self.note_refusal(error)
            return
        watch.join()
        if mine[2] != output:
            self.others[f"{mine[2]} of {output} tokens"] += 1

    def note_taken(self, mine):
        with self.lock:
            self.taken.append(mine)

    def note_refusal(self, error):
        try:
            status = self.rpc.Status.FromString(
                dict(error.trailing_metadata())["grpc-status-details-bin"])
            info, retry = self.rpc.ErrorInfo(), self.rpc.RetryInfo()
            well_formed = (error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                           and status.message == error.details()
                           and status.details[0].Unpack(info) and status.details[1].Unpack(retry))
        except (KeyError, IndexError):
            well_formed = False
        with self.lock:
            if not well_formed:
                self.others[f"{error.code()}: {error.details()}"] += 1
                return
            seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
            self.refusals.append((time.monotonic(), info.reason, seconds, len(self.taken) - 1))

    def start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self.threads.append(thread)

    def join(self):
        for thread in self.threads:
            thread.join()


def front_mib(server: mixed_load.Server) -> float:
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


def closed_loop(server, rpc, seconds: float):
    """Returns requests served per second, and the steps of that time."""
    client, end = Client(server, rpc), time.monotonic() + seconds

    def serve():
        while time.monotonic() < end:
            with client.lock:
                prompt, output = client.request()
            client.send(prompt, output)

    begin = time.time()
    for _ in range(SEATS):
        client.start(serve)
    client.join()
    took = time.time() - begin
    return len(client.taken) / took, server.steps.between(begin + 2, begin + seconds)


def overload(server, rpc, per_s: float, seconds: float):
    client = Client(server, rpc)
    memory, begin, began = [], time.time(), time.monotonic()
    number = 0
    while time.monotonic() - began < seconds:
        number += 1
        client.start(client.send, *client.request())
        if number % 50 == 0:
            memory.append(front_mib(server))
        time.sleep(max(0.0, began + number / per_s - time.monotonic()))
    steps = server.steps.between(begin, time.time())
    client.join()
    return client, number, steps, memory


def cancels(server, count: int) -> dict:
    """The server's load after this many cancels at random moments."""
    draw = random.Random(2)

    def cancel_some():
        for _ in range(count // 20):
            call = server.start(draw.randrange(1, 200), 100)
            time.sleep(draw.random() * draw.choice((0, 0.01, 0.2)))
            call.cancel()

    threads = [threading.Thread(target=cancel_some) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    from openengine.v1 import control_pb2
    get_load = server.channel.unary_unary("/openengine.v1.Control/GetLoad")
    until = time.monotonic() + 10
    while True:
        load = control_pb2.LoadInfo.FromString(get_load(b""))
        left = {"used KV blocks": load.used_kv_blocks,
                "queued bytes": load.attributes["queued_bytes"]}
        if not any(left.values()) or time.monotonic() > until:
            return left
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="of the overload (60)")
    parser.add_argument("--record", type=Path, default=ROOT / "build" / "overload")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from grpc_client_test import make_stubs
    folder = tempfile.TemporaryDirectory()
    make_stubs(folder.name)
    import google_rpc_pb2 as rpc
    model_folder = tempfile.TemporaryDirectory()
    model = mixed_load.served_folder(arguments.model, Path(model_folder.name))
    server = mixed_load.Server(model, "--max-num-seqs", str(SEATS), "--max-num-queued-reqs",
                               str(LIMIT))
    served_per_s, alone = closed_loop(server, rpc, 30)
    before_mib = front_mib(server)
    client, sent, steps, memory = overload(server, rpc, 10 * served_per_s, arguments.seconds)
    ratios = [retry / (client.taken[last][1] - client.taken[last][0])
              for _, _, retry, last in client.refusals if last >= 0 and client.taken[last][1]]
    with open(arguments.record.with_suffix(".csv"), "w", newline="") as file:
        csv.writer(file).writerows([("seconds", "reason", "retry_s", "waited_s"), *(
            (round(at - client.taken[0][0], 3), reason, retry,
             round(client.taken[last][1] - client.taken[last][0], 3)
             if last >= 0 and client.taken[last][1] else "")
            for at, reason, retry, last in client.refusals)])
    end = client.taken[0][0] + arguments.seconds
    in_time = sum(1 for _, first, _ in client.taken if first and first < end)
    gaps, gaps_alone = mixed_load.gaps(steps), mixed_load.gaps(alone)
    print(json.dumps({
        "sent": sent, "served": len(client.taken), "refused": len(client.refusals),
        "anything else": dict(client.others),
        "reasons": dict(Counter(reason for _, reason, _, _ in client.refusals)),
        "retry / wait of the last one taken: median": round(statistics.median(ratios), 2),
        "quartiles": [round(one, 2) for one in statistics.quantiles(ratios)[::2]],
        "p99 / p99 of the same batch unloaded": round(
            mixed_load.percentile(gaps, 0.99) / mixed_load.percentile(gaps_alone, 0.99), 2),
        "served per second / unloaded": round(in_time / arguments.seconds / served_per_s, 2),
        "requests per second unloaded": round(served_per_s, 2),
        "p99 unloaded, s": round(mixed_load.percentile(gaps_alone, 0.99), 3),
        "front MiB before and at most": [round(before_mib, 1), round(max(memory), 1)],
        "after 400 cancels": cancels(server, 400)}))
    server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
