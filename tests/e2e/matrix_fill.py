"""Run by shoal shmtest inside a condition: matrix_fill.py RANKS. Generates over the first rung, and
fills /dev/shm once this has its memory. Exit code 0: the answer came nevertheless."""
import json
import sys
from pathlib import Path

import harness
import matrix_check


def main() -> None:
    process = harness.start("generate", harness.DEMO, "-tp", sys.argv[1], "--log-level", "info",
                            *matrix_check.REQUEST)
    out, err = harness.Reader(process.stdout), harness.Reader(process.stderr)
    harness.wait_until(lambda: "verified in" in err.text() or process.poll() is not None,
                       "a transport", err.text)
    neighbour = Path("/dev/shm/neighbour")
    try:
        with open(neighbour, "wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
    except OSError:  # full
        pass
    code = process.wait()
    neighbour.unlink()
    if code != 0 or json.loads(out.rest())["transport"] != "shm":
        sys.exit(f"exit code {code}: {err.rest()}")


if __name__ == "__main__":
    main()
