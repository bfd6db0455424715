"""One cell of the matrix, run by shoal shmtest inside its condition: matrix_check.py RANKS RUNGS
SECONDS TOKENS.

Generates over RANKS ranks with the default ladder. Exit code 0: one of the comma-separated RUNGS
was used, the tokens are the expected ones (comma-separated), it took less than SECONDS, and nothing
is left.
"""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOAL = os.environ.get("SHOAL", "shoal")
TOO_SLOW = "started too slowly"
REQUEST = ("--prompt-ids", "0,1151,262,2088", "--max-tokens", "12", "--ignore-eos", "--temperature",
           "0", "--json")


def generate(ranks: int) -> subprocess.CompletedProcess:
    return subprocess.run([SHOAL, "generate", ROOT / "models" / "demo", "-tp", str(ranks),
                           *REQUEST], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def main() -> None:
    ranks, rungs, seconds, tokens = (int(sys.argv[1]), sys.argv[2].split(","), float(sys.argv[3]),
                                     sys.argv[4])
    began = time.monotonic()
    done = generate(ranks)
    took = time.monotonic() - began
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {done.stderr}")
    answer = json.loads(done.stdout)
    if answer["transport"] not in rungs:
        sys.exit(f"transport {answer['transport']}, not {rungs}: {done.stderr}")
    if ",".join(map(str, answer["token_ids"])) != tokens:
        sys.exit(f"other tokens: {answer['token_ids']}")
    if took > seconds:
        sys.exit(f"{TOO_SLOW}: took {took:.1f} s, more than {seconds:.1f} s: {done.stderr}")


if __name__ == "__main__":
    main()
