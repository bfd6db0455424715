"""One cell of the matrix, run by shoal shmtest inside its condition: matrix_check.py RANKS RUNGS
TOKENS.

Generates over RANKS ranks with the default ladder. Exit code 0: one of the comma-separated RUNGS
was used, the tokens are the expected ones (comma-separated), no start waited for a deadline, and
nothing is left.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOAL = os.environ.get("SHOAL", "shoal")
REQUEST = ("--prompt-ids", "0,1151,262,2088", "--max-tokens", "12", "--ignore-eos", "--temperature",
           "0", "--json")


def generate(ranks: int) -> subprocess.CompletedProcess:
    return subprocess.run([SHOAL, "generate", ROOT / "models" / "demo", "-tp", str(ranks),
                           "--log-level", "info", *REQUEST], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def main() -> None:
    ranks, rungs, tokens = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
    done = generate(ranks)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}: {done.stderr}")
    answer = json.loads(done.stdout)
    if answer["transport"] not in rungs:
        sys.exit(f"transport {answer['transport']}, not {rungs}: {done.stderr}")
    if ",".join(map(str, answer["token_ids"])) != tokens:
        sys.exit(f"other tokens: {answer['token_ids']}")
    if "no answer" in done.stderr:
        sys.exit(f"a start waited for a deadline: {done.stderr}")


if __name__ == "__main__":
    main()
