"""Four people who are new to Shoal, command by command.

`walks_test.py --show [WALK]` prints what each of them sees, for somebody to read. As a test it runs
the same commands and checks what is a contract: exit codes, the READY line, JSON by its schema,
JUnit, and that nothing waits for long.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

import breadth
import harness
import jsonschema
from doctor_test import namespaces_work

# Shell functions that the commands use. `place` runs a command with a tmpfs of this size at
# /dev/shm, as a container with --shm-size has one.
FUNCTIONS = """
place() { size=$1; shift
  unshare -rm sh -ec 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm; exec "$@"' "$size" "$@"; }
serve() { shoal serve "$@" --port 0 --grpc-port 0 --ready-file ready > serve.log 2>&1 &
  server=$!
  for i in $(seq 600); do [ -e ready ] && break; sleep 0.05; done; cat ready
  address=$(sed 's/.*grpc=\\([^ ]*\\).*/\\1/' ready)
  web=$(sed 's/.* http=\\([^ ]*\\).*/\\1/' ready); }
stop() { kill -TERM "$server"; wait "$server"; }
"""


class Step:
    """A command, the exit code that it must have, and what is a contract in its output."""

    def __init__(self, command: str, code: int = 0, *, says: str = "", schema: str = "",
                 junit: str = ""):
        self.command, self.code, self.says = command, code, says
        self.schema, self.junit = schema, junit


READY = (r"(?m)^READY grpc=\S+ http=\S+ model=\S+ tp=2 transport=\S+ kernels=\S+ "
         r"arithmetic=\S+ load_s=")

WALKS = {
    "developer": [
        Step("shoal", 64),
        Step("shoal --help"),
        Step("shoal serve --help"),
        Step("shoal -V", says=r"^shoal \d"),
        Step("shoal serve HuggingFaceTB/SmolLM2-135M-Instruct", 66,
             says="hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir"),
        Step("shoal generate $DEMO --prompt 'In the beginning' --max-tokens 12"),
        Step("echo 'In the beginning' | shoal generate $DEMO --max-tokens 12"),
        Step("serve $DEMO -tp 2; shoal client --server $address --prompt 'In the' --max-tokens 8; "
             "stop", says=READY),
        Step("serve $DEMO -tp 2 > /dev/null; curl -sS http://$web/v1/completions -H "
             "'Content-Type: application/json' -d '{\"prompt\": \"In the\", \"max_tokens\": 8}'; "
             "stop", says='"finish_reason"'),
        Step("shoal client --server 127.0.0.1:1 --prompt In", 69),
        Step("port=$(python3 -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); "
             "print(s.getsockname()[1])'); (sleep 1; exec shoal serve $DEMO --port -1 "
             "--grpc-port $port > /dev/null 2>&1) & timeout 45 shoal client --wait 60 "
             "--server 127.0.0.1:$port --prompt In --max-tokens 2; code=$?; kill %1; exit $code"),
        Step("shoal generate $DEMO --max-tokens 2 <&-", 64),
        Step("shoal client --server localhost --prompt In", 64),
        Step("shoal client 'hello there'", 64, says="--prompt"),
        Step("shoal generate $DEMO --prompt In --max-tokens abc", 64),
        Step("shoal serve $DEMO --tensor-parralel-size 2", 64, says="--tensor-parallel-size"),
        Step("shoal serve $DEMO --mem-fraction-static 0.9", 64, says="--kv-cache-memory"),
        Step("shoal generate --model $DEMO --dtype float --prompt In --max-tokens 2"),
        Step("mkdir lfs && cp $DEMO/*.json lfs && printf 'version "
             "https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > "
             "lfs/model.safetensors; shoal generate lfs --prompt In", 65,
             says="git lfs pull"),
    ],
    "operator": [
        Step("place 64m shoal doctor", says="^OK: 2 ranks use shm, the first choice"),
        Step("place 1m shoal doctor", says="^OK: 2 ranks use memfd, which is as good as shm"),
        Step("place 4k shoal doctor --transport shm,tcp", 1, says="^SLOWER: "),
        Step("place 4k shoal doctor --transport shm,tcp --min-transport tcp", says="^SLOWER: "),
        Step("place 1m shoal doctor --min-transport shm", 69, says="^NO: the policy "),
        Step("place 1m shoal doctor --transport shm", 69, says="^NO: no transport works"),
        Step("place 1m shoal doctor --json", schema="transport-report"),
        Step("shoal doctor --needs --json", schema="needs"),
        Step("prlimit --nofile=7 shoal doctor --json", 69, says="could not|cannot|ulimit",
             schema="transport-report"),
        Step("prlimit --nofile=7 shoal doctor", 69, says="^NO: 2 ranks could not be started: "),
        Step("shoal doctor --nccl-version 2.11", 64, says="2.12 or later"),
        Step("NCCL_P2P_DISABLE=0 shoal doctor --nccl-version 2.27", 1,
             says="^NO: 2 ranks of NCCL 2.27.7 cannot use nccl-shm: "),
        Step("place 1m sh -c 'touch \"$(printf \"/dev/shm/x\\nOK: forged\\033[31m\")\"; "
             "head -c 900000 /dev/zero | tee /dev/shm/x* > /dev/null; shoal doctor'",
             says=r"x\?OK: forged\?\[31m of user"),
        Step("place 64m shoal doctor --nccl-version 2.27 -tp 8", 1, says="export NCCL_"),
        Step("shoal doctor --nccl-version 2.27 -tp 2 --json", schema="nccl-plan"),
        Step("place 1m sh -c 'umask 077; head -c 700000 /dev/zero > /dev/shm/cache; shoal doctor'",
             says="the largest files in /dev/shm"),
        Step("place 16m sh -c 'umask 077; true > /dev/shm/nccl-AbCd01; "
             "head -c 9637892 /dev/zero > /dev/shm/nccl-AbCd02; "
             "echo mine > /dev/shm/nccl-backup; touch -d yesterday /dev/shm/*; "
             "shoal doctor --clean-stale; ls /dev/shm'", says="(?m)^removed .*nccl-AbCd02"),
        Step("serve $DEMO -tp 2; cat serve.log; stop", says=READY),
        Step("serve $DEMO -tp 2 > /dev/null; ps -o comm= --ppid $server | sort; stop",
             says="shoal-rank-0\nshoal-rank-1"),
        Step("serve $DEMO -tp 2 --served-model-name 'a b,c'; stop", says='model="a b" tp=2'),
        Step("mkdir 'my model' && cp $DEMO/* 'my model'; serve 'my model' -tp 2; stop",
             says='model="my model"'),
        Step("serve $DEMO -tp 2 > /dev/null; curl -sS http://$web/health; "
             "curl -sS http://$web/metrics | grep shoal_transport; stop", says='"status":"ready"'),
    ],
    "engine author": [
        Step("shoal shmtest true", 64, says="--"),
        Step("shoal shmtest --help"),
        Step("shoal shmtest -- false", 1, says="The control"),
        Step("shoal shmtest --matrix host,1m,missing -- true", says="3 passed, 0 failed"),
        Step("shoal shmtest --matrix full-after-2s -- true", 69, says="skip"),
        Step("shoal shmtest --matrix 1m,128m --accept error -- sh -c 'echo no room >&2; exit 1'"),
        Step("shoal shmtest --matrix 1m --json -- python3 -c 'import multiprocessing, os, signal\n"
             "child = multiprocessing.Process(target=lambda: os.kill(os.getpid(), signal.SIGBUS))\n"
             "child.start(); child.join(); raise SystemExit(child.exitcode != 0)'", 1,
             says='"sigbus": true', schema="shmtest"),
        Step("shoal shmtest --matrix 1m --accept error -- sh -c 'exit 255'"),
        Step("shoal shmtest --min-size -- sh -c 'head -c 3000000 /dev/zero > /dev/shm/x; "
             "code=$?; rm -f /dev/shm/x; exit $code'", says="The smallest /dev/shm"),
        Step("shoal shmtest --matrix host,1m --junit junit.xml -- true", junit="junit.xml"),
        # Builds with a sanitizer have no static programs.
        *([] if breadth.SANITIZED else
          [Step("shoal-shmtest --version; shoal-doctor | head -n 1", says="OK: 2 ranks use shm")]),
    ],
    "researcher": [
        Step("shoal tokenize $DEMO --text 'In the beginning'"),
        Step("shoal generate $DEMO --prompt-ids 1,2,3 --max-tokens 4 --json", says='"token_ids"'),
        Step("shoal logits $DEMO --prompt-ids 1,2,3 --out one.npy && "
             "shoal logits $DEMO -tp 3 --prompt-ids 1,2,3 --out three.npy && "
             "cmp one.npy three.npy"),
        Step("printf '{\"prompt\": \"In\", \"max_tokens\": 4}\\n"
             "{\"prompt\": \"On\", \"max_tokens\": 4}\\n' "
             "| shoal generate $DEMO --jsonl -"),
        Step("mkdir phi && cp $DEMO/* phi && sed -i 's/\"llama\"/\"phi3\"/' phi/config.json; "
             "shoal generate phi --prompt In", 65, says="phi3"),
        Step("mkdir awq && cp $DEMO/* awq && sed -i 's/^{/{\"quantization_config\": "
             "{\"quant_method\": \"awq\"},/' awq/config.json; shoal generate awq --prompt In", 65,
             says=r'\("awq"\) is not supported; .*hf download OWNER/NAME --local-dir DIR'),
        Step("mkdir short && cp $DEMO/* short && truncate -s 100000 short/model.safetensors; "
             "shoal generate short --prompt In", 65),
        Step("mkdir bin && cp $DEMO/*.json bin && touch bin/pytorch_model.bin; "
             "shoal generate bin --prompt In", 66, says="pytorch_model.bin"),
    ],
}


def run_walk(name: str, show=None) -> list[str]:
    """Runs the commands of a walk in a folder of its own, and returns what is wrong."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "programs"
        programs.mkdir()
        for program in (Path(harness.SHOAL), *Path(harness.SHOAL).parent.glob("shoal-*")):
            if os.access(program, os.X_OK) and program.is_file():
                (programs / program.name).symlink_to(program)
        environment = {**harness.environment(), "DEMO": str(harness.DEMO), "COLUMNS": "100",
                       "PATH": f"{programs}:{os.environ['PATH']}"}
        for step in WALKS[name]:
            began = time.monotonic()
            done = subprocess.run(["bash", "-c", FUNCTIONS + step.command], cwd=folder,
                                  env=environment, capture_output=True, text=True, timeout=120)
            seconds = time.monotonic() - began
            if show:
                show(f"$ {step.command}\n{done.stdout}{done.stderr}=> {done.returncode}, "
                     f"{seconds:.1f} s\n")
            wrong += [f"{step.command}: {what}\n{done.stdout}{done.stderr}"
                      for what in faults(step, done, Path(folder))]
    return wrong


def faults(step: Step, done: subprocess.CompletedProcess, folder: Path):
    if done.returncode != step.code:
        yield f"exit code {done.returncode}, not {step.code}"
    if step.says and not re.search(step.says, done.stdout + done.stderr):
        yield f"does not say {step.says}"
    if step.schema and done.returncode == step.code:
        schema = (harness.ROOT / "docs" / "schemas" / f"{step.schema}.schema.json").read_text()
        yield from (error.message for error in jsonschema.Draft202012Validator(
            json.loads(schema)).iter_errors(json.loads(done.stdout)))
    if step.junit and xml.etree.ElementTree.parse(folder / step.junit).find(".//testcase") is None:
        yield "no test case in the JUnit file"


@unittest.skipUnless(namespaces_work(), "this kernel forbids mount namespaces here")
class Walks(harness.TestCase):
    def test_developer(self):
        self.assertEqual(run_walk("developer"), [])

    def test_operator(self):
        self.assertEqual(run_walk("operator"), [])

    def test_engine_author(self):
        self.assertEqual(run_walk("engine author"), [])

    def test_researcher(self):
        self.assertEqual(run_walk("researcher"), [])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--show"]:
        for walk in sys.argv[2:] or WALKS:
            print(f"=== {walk} ===\n")
            run_walk(walk, print)
    else:
        harness.main()
