#!/usr/bin/python3
"""Measures what running streams and waiting prompts cost each other.

    scripts/build release all
    /usr/bin/python3 bench/make_random_model.py DIR && bench/mixed_load.py DIR [--record bench/mixed_load]

One server of 2 ranks x 1 thread serves the 1.1 B shape. In turn it has: one stream alone; prompts of
3,000 tokens alone; both; a prompt of 16 tokens alone; and the same behind two of 3,000. Steps are
timed by the server, which logs each one at --log-level debug, and first tokens by the client. Then
another server, whose KV cache has room for 20 of them, gets 64 streams at once.

The last line is JSON with ratios of figures of this run. RECORD.csv has every step of the mixed part,
with --decode-stretch 0 as well, and RECORD.svg shows both (matplotlib, in build/venv-bench).
"""
import argparse
import csv
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

import pictures

try:
    import grpc
except ImportError:  # the interpreter that draws has matplotlib instead
    grpc = None

ROOT = Path(__file__).resolve().parent.parent

STEP = re.compile(r"^(\S+) DEBUG .*step \d+: (\d+) decodes, (\d+) tokens of prompts, (\d+) us")
LONG, SHORT, CONTEXT = 3000, 16, 4096


class Steps(threading.Thread):
    """The steps of a server, from its log: (time of the end in seconds, decodes, prompt tokens,
    seconds)."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        self.pipe, self.all = pipe, []
        self.start()

    def run(self):
        for line in self.pipe:
            if found := STEP.match(line):
                end = datetime.fromisoformat(found[1].replace("Z", "+00:00")).timestamp()
                self.all.append((end, int(found[2]), int(found[3]), int(found[4]) / 1e6))

    def between(self, begin: float, end: float) -> list[tuple]:
        return [step for step in self.all if begin <= step[0] <= end]


class Server:
    def __init__(self, model: Path, *flags):
        self.process = subprocess.Popen(
            [os.environ.get("SHOAL", ROOT / "build" / "release" / "shoal"), "serve", model,
             "--grpc-port", "0", "-tp", "2", "--threads-per-rank", "1", "--log-level", "debug",
             *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.steps = Steps(self.process.stderr)
        ready = self.process.stdout.readline()
        if not ready.startswith("READY "):
            sys.exit("mixed_load: the server did not start")
        from openengine.v1 import generate_pb2
        self.pb = generate_pb2
        self.channel = grpc.insecure_channel(ready.split("grpc=")[1].split()[0],
                                             options=[("grpc.enable_http_proxy", 0)])
        self.generate = self.channel.unary_stream("/openengine.v1.Inference/Generate")

    def start(self, prompt_tokens: int, max_tokens: int):
        ids = [(7919 * i + prompt_tokens) % 30000 + 3 for i in range(prompt_tokens)]
        return self.generate(self.pb.GenerateRequest(
            token_ids=self.pb.TokenIds(ids=ids),
            sampling=self.pb.SamplingParams(temperature=0),
            stopping=self.pb.StoppingOptions(max_tokens=max_tokens, ignore_eos=True)
        ).SerializeToString())

    def first_token_s(self, prompt_tokens: int) -> float:
        began = time.monotonic()
        call = self.start(prompt_tokens, 2)
        next(call)
        took = time.monotonic() - began
        call.cancel()
        return took

    def close(self):
        self.channel.close()
        self.process.terminate()
        self.process.wait()


def served_folder(model: Path, folder: Path) -> Path:
    """The random checkpoint with a longer context and the demo model's tokenizer, because a server
    wants one."""
    for file in (ROOT / "models" / "demo").glob("*token*"):
        (folder / file.name).symlink_to(file)
    for file in model.glob("*.safetensors"):
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    return folder


class LongPrompts:
    """Sends prompts of LONG tokens from two clients until it is closed."""

    def __init__(self, server: Server):
        self.server, self.stop, self.calls = server, False, [None, None]
        self.threads = [threading.Thread(target=self.send, args=(i,)) for i in range(2)]

    def send(self, number: int):
        while not self.stop:
            self.calls[number] = self.server.start(LONG, 1)
            try:
                list(self.calls[number])
            except grpc.RpcError:
                return

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        time.sleep(1)
        return self

    def __exit__(self, *_):
        self.stop = True
        for call in self.calls:
            call.cancel()
        for thread in self.threads:
            thread.join()


def gaps(steps: list[tuple]) -> list[float]:
    """Between two tokens of a stream, in seconds."""
    ends = [step[0] for step in steps if step[1] > 0]
    return [b - a for a, b in zip(ends, ends[1:])]


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def rate(steps: list[tuple]) -> float:
    """Tokens of prompts per second."""
    return sum(step[2] for step in steps[1:]) / (steps[-1][0] - steps[0][0])


def during(server: Server, seconds: float) -> list[tuple]:
    begin = time.time()
    time.sleep(seconds)
    return server.steps.between(begin, time.time())


def drain(call):
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.CANCELLED:
            raise


def streams_and_prompts(server: Server, seconds: float) -> dict:
    stream = server.start(SHORT, 4000)
    threading.Thread(target=drain, args=(stream,), daemon=True).start()
    time.sleep(2)
    alone = during(server, seconds)
    with LongPrompts(server):
        during(server, 3)  # the pace finds out how long steps take
        mixed = during(server, 2 * seconds)
    stream.cancel()
    time.sleep(1)
    with LongPrompts(server):
        during(server, 3)
        prompts = during(server, seconds)
    return {"alone": gaps(alone), "mixed": gaps(mixed), "mixed_rate": rate(mixed),
            "prompt_rate": rate(prompts), "steps": mixed,
            "longest_prompt_step_s": max(step[3] for step in prompts)}


def first_tokens(server: Server, rounds: int) -> dict:
    alone, behind = [], []
    for _ in range(rounds):
        server.first_token_s(1)  # waits for the end of a step that was begun for the prompts
        alone.append(server.first_token_s(SHORT))
        with LongPrompts(server):
            time.sleep(1)
            behind.append(server.first_token_s(SHORT))
        time.sleep(1)
    return {"alone": statistics.median(alone), "behind": statistics.median(behind)}


def crowd(model: Path, prompt: int, output: int) -> float:
    """Tokens computed for each one that is needed by 64 streams in a KV cache for 20."""
    config = json.loads((model / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token_bytes = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * head
    server = Server(model, "--kv-cache-memory", str(20 * (prompt + output) * token_bytes))
    calls = [server.start(prompt, output) for _ in range(64)]
    for call in calls:
        list(call)
    computed = sum(step[1] + step[2] for step in server.steps.all)
    server.close()
    return computed / (64 * (prompt + output - 1))


def draw(path: Path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    plt.rcParams["svg.hashsalt"] = "shoal"
    rows = list(csv.DictReader(open(path, newline="")))
    figure, axes = plt.subplots(2, 1, sharex=True, sharey=True, figsize=(8, 5))
    for axis, stretch, title in zip(axes, ("0", "2"), (
            "--decode-stretch 0: a step takes as many tokens of prompts as it can",
            "--decode-stretch 2: a step takes twice as long as without prompts")):
        points = [(float(row["seconds"]), 1000 * float(row["gap"])) for row in rows
                  if row["stretch"] == stretch]
        axis.plot([p[0] for p in points], [p[1] for p in points], ".", markersize=2)
        axis.set_title(title, fontsize=9)
        axis.set_ylabel("ms between tokens")
        axis.set_yscale("log")
    axes[1].set_xlabel("seconds, beside two clients that send prompts of 3,000 tokens")
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=30, help="of each part (30)")
    parser.add_argument("--record", type=Path, default=ROOT / "build" / "mixed_load")
    parser.add_argument("--draw", type=Path, help="only draw this .csv again")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(arguments.draw)
        return 0
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from grpc_client_test import make_stubs
    folder = tempfile.TemporaryDirectory()
    make_stubs(folder.name)
    model_folder = tempfile.TemporaryDirectory()
    model = served_folder(arguments.model, Path(model_folder.name))
    parts, rows = {}, []
    for stretch in ("0", "2"):
        # Without the stretch and the limit of a step, as it was before there were either.
        flags = ("--max-step-ms", "60000") if stretch == "0" else ()
        server = Server(model, "--decode-stretch", stretch, *flags)
        parts[stretch] = streams_and_prompts(server, arguments.seconds)
        parts[stretch]["first"] = first_tokens(server, 3)
        server.close()
        steps = [step for step in parts[stretch].pop("steps") if step[1] > 0]
        rows += [(stretch, round(b[0] - steps[0][0], 4), round(b[0] - a[0], 6), b[2])
                 for a, b in zip(steps, steps[1:])]
    with open(arguments.record.with_suffix(".csv"), "w", newline="") as file:
        csv.writer(file).writerows([("stretch", "seconds", "gap", "prompt_tokens"), *rows])
    result = {}
    for stretch, part in parts.items():
        alone, mixed = part["alone"], part["mixed"]
        result[f"stretch {stretch}"] = {name: round(value, 3) for name, value in {
            "p99 / p99 alone": percentile(mixed, 0.99) / percentile(alone, 0.99),
            "p99 / median alone": percentile(mixed, 0.99) / statistics.median(alone),
            "prefill rate / rate alone": part["mixed_rate"] / part["prompt_rate"],
            "first token behind / alone": part["first"]["behind"] / part["first"]["alone"],
            "longest step of prompts, s": part["longest_prompt_step_s"],
            "median alone, s": statistics.median(alone), "prompt tokens/s": part["prompt_rate"],
            "first token alone, s": part["first"]["alone"]}.items()}
    result["computed / needed, 64 streams in room for 20"] = round(
        crowd(model, 64, 64), 3)
    print(json.dumps(result))
    pictures.draw(__file__, arguments.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
