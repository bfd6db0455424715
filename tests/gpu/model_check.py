#!/usr/bin/env python3
"""Checks whole models on the devices of this machine, through the program itself:

  model_check.py model PROGRAM [FLAG...]   logits of the small models in tests/data/oracle, and of
                                           MODEL (a variable) if it is set: the same bits for 1 to 4
                                           ranks and over every rung, each with each for the first
                                           model, and for the small models those that the emulated
                                           device gives (expected_logits.json); and answers to 32
                                           requests, the same together and one by one
  model_check.py serve PROGRAM [FLAG...]   a stream of two ranks, one of which is killed in it
  model_check.py hashes PROGRAM [FLAG...]  whether expected_logits.json is what the emulated device
                                           gives
  model_check.py expect PROGRAM [FLAG...]  prints it anew

ONLY=NAME,... (a variable) leaves out the other small models. It needs only Python's standard
library, because a machine with a GPU may have nothing else. The FLAGs, such as --cuda-module, go to
every command. All ranks share one device. Exit code 77: there is no device.
"""
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ORACLES = ROOT / "tests" / "data" / "oracle"
EXPECTED = Path(__file__).with_name("expected_logits.json")
NAMES = ["llama3-gqa-tied-sharded", "llama-nine-heads", "qwen2-bias-uneven", "qwen3-norm-yarn",
         "mistral-window", "llama-linear-bias-f32", "llama2-mha-f16"]
RUNGS = ["cuda-ipc", "host-memfd", "tcp", "nccl-p2p", "nccl-socket"]
NO_DEVICE = 77
PART, PROGRAM, FLAGS = sys.argv[1], sys.argv[2], sys.argv[3:]
DEVICE = ["--device", "cuda", *FLAGS]


def run(*words, code=0) -> subprocess.CompletedProcess:
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, timeout=500)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(map(str, words))[:300]}: exit code {done.returncode}\n"
                         f"{done.stderr.decode(errors='replace')[-2000:]}")
    return done


def devices() -> list[dict]:
    done = subprocess.run([PROGRAM, "doctor", *DEVICE, "-tp", "1", "--json"], capture_output=True,
                          timeout=100)
    return json.loads(done.stdout)["facts"]["gpu"]["devices"]


def arithmetic(found: list[dict]) -> str:
    return "sm90" if int(found[0]["compute_capability"].split(".")[0]) >= 9 else "sm80"


def logits_hash(model: Path, ids: list[int], *flags) -> str:
    with tempfile.NamedTemporaryFile(suffix=".npy") as out:
        run("logits", model, "--prompt-ids", ",".join(map(str, ids)), "--out", out.name, *DEVICE,
            *flags)
        return hashlib.sha256(Path(out.name).read_bytes()).hexdigest()[:16]


def usable_rungs(ranks: int, rungs: list[str]) -> list[str]:
    """Those that work here between ranks that share a device. Prints why the others do not."""
    usable = []
    for rung in rungs:
        done = subprocess.run([PROGRAM, "doctor", *DEVICE, "-tp", str(ranks), "--ranks-per-gpu",
                               str(ranks), "--transport", rung, "--json"],
                              capture_output=True, timeout=200)
        report = json.loads(done.stdout)
        if report["rung"] == rung:
            usable.append(rung)
        else:
            print(f"      {ranks} ranks without {rung}: {report['refusals'][0]['reason'][:200]}")
    return usable


def small_models() -> dict[str, list[int]]:
    return {name: json.loads((ORACLES / name / "expected.json").read_text())["prompts"][1]["ids"]
            for name in os.environ.get("ONLY", ",".join(NAMES)).split(",")}


def usable_pairs() -> list[tuple[int, str]]:
    """Numbers of ranks and rungs that work here. More ranks are not tried where two do not work."""
    two = usable_rungs(2, RUNGS)
    return [(2, rung) for rung in two] + [(ranks, rung) for ranks in (3, 4)
                                          for rung in usable_rungs(ranks, two)]


def each_once(pairs: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Fewer of them, which still have every rung and, if there are enough, every number of ranks."""
    rungs = dict.fromkeys(rung for _, rung in pairs)
    some = [[pair for pair in pairs if pair[1] == rung] for rung in rungs]
    return [one[turn % len(one)] for turn, one in enumerate(some)]


def check_model(name: str, model: Path, ids: list[int], expected: str | None,
                pairs: list[tuple[int, str]]):
    """All ways give the hash of one rank, and that is the expected one."""
    one = logits_hash(model, ids)
    wrong = [] if expected in (None, one) else [f"the emulated device gives {expected}"]
    ways = [(ranks, rung, ()) for ranks, rung in pairs]
    ways += [(1, None, ("--chunk", 13)), (1, None, ("--decode-from", len(ids) - 5))]
    for ranks, rung, flags in ways:
        sharing = ("-tp", ranks, "--ranks-per-gpu", ranks, "--transport", rung) if rung else ()
        if logits_hash(model, ids, *sharing, *flags) != one:
            wrong.append(f"other bits with {' '.join(map(str, (*sharing, *flags)))}")
    print(f"{'FAIL' if wrong else 'ok'}    {name:28} {one}  {len(ways) + 1} ways  "
          f"{'; '.join(wrong)}", flush=True)
    return not wrong


def answers(model: Path, sequences: int) -> list[str]:
    """The answers to 32 requests of different lengths, with the logprobs of their tokens. A step
    computes at most `sequences` of the requests."""
    requests = [{"id": i, "prompt_ids": [(17 * i + 5 * k) % 500 + 3 for k in range(1 + i % 7)],
                 "max_tokens": 2, "ignore_eos": True, "temperature": 0, "logprobs": 4}
                for i in range(32)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(request) + "\n" for request in requests)
        file.flush()
        done = run("generate", model, "--jsonl", file.name, "--max-num-seqs", sequences,
                   "--kv-cache-memory", "64m", *DEVICE)
    return done.stdout.decode().splitlines()


def check_batches(name: str, model: Path) -> bool:
    together, alone = answers(model, 32), answers(model, 1)
    good = together == alone and len(together) == 32
    print(f"{'ok' if good else 'FAIL'}    {name:28} {len(together)} answers, "
          f"{'the same' if good else 'NOT the same'} together and one by one", flush=True)
    return good


def step_model(found: list[dict]) -> int:
    expected = json.loads(EXPECTED.read_text())[arithmetic(found)]
    print(f"{found[0]['name']}, compute capability {found[0]['compute_capability']}: the bits of "
          f"{arithmetic(found)} are expected")
    pairs = usable_pairs()
    # The first model takes every pair, which shows that the pair works. What differs between models
    # is seen with fewer.
    good = [check_model(name, ORACLES / name, ids, expected[name], each_once(pairs) if turn else pairs)
            for turn, (name, ids) in enumerate(small_models().items())]
    of_batches = "llama-nine-heads"
    good.append(check_batches(of_batches, ORACLES / of_batches))
    if model := os.environ.get("MODEL"):
        ids = [(17 * i + 3) % 1000 + 3 for i in range(200)]
        good.append(check_model(Path(model).name, Path(model), ids, None, each_once(pairs)))
    return 0 if all(good) else 1


def children(pid: int) -> list[int]:
    """The children that any thread of the process has started."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children")
            for child in file.read_text().split()]


def stopped_child(pid: int) -> int:
    """The rank that stops itself in a step, because SHOAL_TEST_FAULT says so."""
    for _ in range(3000):
        for child in children(pid):
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return child
        time.sleep(0.02)
    raise SystemExit("no rank has stopped itself in a step")


def step_serve(_: list[dict]) -> int:
    model = os.environ.get("MODEL") or ORACLES / "llama-nine-heads"
    request = ["--prompt-ids", "5,6,7,8", "--max-tokens", "60", "--ignore-eos", "--temperature",
               "0", "--json"]
    wanted = json.loads(run("generate", model, *request, *DEVICE).stdout)["token_ids"]
    server = subprocess.Popen([PROGRAM, "serve", str(model), "--grpc-port", "0", "--port", "-1",
                               *DEVICE, "-tp", "2", "--ranks-per-gpu", "2", "--transport",
                               "cuda-ipc,host-memfd,tcp", "--kv-cache-memory", "64m"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, "SHOAL_TEST_FAULT": "1:step-20:stop"})
    try:
        ready = server.stdout.readline().decode()
        address = re.search(r"grpc=(\S+)", ready)[1]
        print(ready.strip())
        client = subprocess.Popen([PROGRAM, "client", "--server", address, *request],
                                  stdout=subprocess.PIPE)
        os.kill(stopped_child(server.pid), signal.SIGKILL)
        got = json.loads(client.communicate(timeout=300)[0])["token_ids"]
    finally:
        server.terminate()
        _, log = server.communicate(timeout=100)
    restarted = b"the ranks run again" in log
    good = got == wanted and restarted and server.returncode == 0
    same = "the same" if got == wanted else "NOT the same"
    killed = "a rank was killed" if restarted else "NO rank was lost"
    print(f"{'ok' if good else 'FAIL'}    {len(got)} tokens, {same} as without a fault; {killed} in "
          f"the stream; exit code {server.returncode}")
    return 0 if good else 1


def emulated_hashes() -> dict[str, dict[str, str]]:
    """With the emulated device only, whose capability a variable sets."""
    all_hashes = {}
    for name, capability in (("sm80", "8.0"), ("sm90", "9.0")):
        os.environ["EMULATED_GPU_CAPABILITY"] = capability
        all_hashes[name] = {model: logits_hash(ORACLES / model, ids)
                            for model, ids in small_models().items()}
    return all_hashes


def step_hashes(_: list[dict]) -> int:
    got, expected = emulated_hashes(), json.loads(EXPECTED.read_text())
    for arithmetic_, hashes in got.items():
        for model, hash_ in hashes.items():
            good = hash_ == expected[arithmetic_][model]
            print(f"{'ok' if good else 'FAIL'}    {arithmetic_} {model:28} {hash_}")
    return 0 if got == expected else 1


def main() -> int:
    if PART == "expect":
        print(json.dumps(emulated_hashes(), indent=1))
        return 0
    found = devices()
    if not found:
        print("no device")
        return NO_DEVICE
    return {"model": step_model, "serve": step_serve, "hashes": step_hashes}[PART](found)


if __name__ == "__main__":
    sys.exit(main())
