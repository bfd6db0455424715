"""Four people who are new to Shoal, command by command: an application developer, an operator, the
author of another engine, and a researcher.

`walks_test.py --show [WALK]` prints what each of them sees. Whether the words help somebody new, no
test can say: read all of them before a release, and after a change of many messages, and write into
tests/WALKS.md what you found. As a test it runs the same commands and checks what is a contract:
exit codes, the READY line, JSON by its schema, JUnit, the names that a message must have, and that
nothing waits for long.

What the walks leave to other tests: clients in Python (reflection, openai_client), terminals with
colours and widths (command_line), checkpoints of other tools (oracle), the transports in another
tree (lift), and manifests (deploy). Open MPI has been run in shmtest by hand (docs/shmtest.md). In
the place of DataLoader stands a child of multiprocessing that dies of SIGBUS.
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
  unshare -rm bash -ec 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm; exec "$@"' "$size" "$@"; }
serve() { rm -f ready
  shoal serve "$@" --port 0 --grpc-port 0 --ready-file ready > serve.log 2>&1 &
  server=$!
  for i in $(seq 600); do [ -e ready ] && break; sleep 0.05; done; cat ready
  address=$(sed 's/.*grpc=\\([^ ]*\\).*/\\1/' ready)
  web=$(sed 's/.* http=\\([^ ]*\\).*/\\1/' ready); }
stop() { kill -TERM "$server"; wait "$server"; }
lives() { kill -0 "$1" 2> /dev/null; }
# A server that gets no further than to its weights, because its rank stands still there.
loading() { read -r port web_port < <(free_ports 2)
  address=127.0.0.1:$port web=127.0.0.1:$web_port
  SHOAL_TEST_FAULT=0:load:stop shoal serve "$@" --grpc-port "$port" --port "$web_port" \\
    --step-timeout 600 > serve.log 2>&1 &
  server=$!
  until ps -o stat= --ppid "$server" | grep -q ^T || ! lives "$server"; do sleep 0.05; done; }
free_ports() { python3 -c 'import socket, sys
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in held))' "$1"; }
# A client whose answer has begun. Where bash makes it, it would ignore Ctrl-C.
stream() { rm -f answer
  env --default-signal=INT shoal client --server "$address" --prompt In --ignore-eos \\
    --max-tokens 400 > answer 2> client.log &
  client=$!
  until [ -s answer ] || ! lives "$client"; do sleep 0.05; done; }
# The first remedy for the mount that doctor has for these flags.
remedy() { shoal doctor "$@" --json | python3 -c 'import json, sys; print(next(
  one["text"] for one in json.load(sys.stdin)["remedies"] if one["kind"] == "mount"))'; }
export -f serve stop remedy
"""


class Step:
    """A command, the exit code that it must have, and what is a contract in its output. one_thread:
    it works only in a process of one thread, and ThreadSanitizer adds one."""

    def __init__(self, command: str, code: int = 0, *, says: str = "", schema: str = "",
                 junit: str = "", one_thread: bool = False):
        self.command, self.code, self.says = command, code, says
        self.schema, self.junit = schema, junit
        self.left_out = one_thread and "SHOAL_TEST_SANITIZED" in os.environ


READY = (r"(?m)^READY grpc=\S+ http=\S+ model=\S+ tp=2 transport=\S+ kernels=\S+ "
         r"arithmetic=\S+ load_s=")

WALKS = {
    "developer": [
        Step("shoal", 64),
        Step("shoal --help", says=r"nccl-shm\s+does\s+not\s+fit\s+\(with\s+--nccl-version\)"),
        Step("shoal serve --help", says=r"(?s)Usage: .*Examples:.*Flags below: Model, Server, HTTP, "
             r".*A value in parentheses, such as \(64\), is the default\.\n\nModel:"
             r".*\bup\s+to\s+that\s+longer\s+one\b.*\bwhile\s+a\s+rank\s+is\s+busy\s+with\s+one\s+long\s+"),
        Step("shoal -V", says=r"^shoal \d"),
        Step("shoal help --completion bash | head -n 3; shoal help --man | head -n 3"),
        Step("$ROOT/scripts/get-model", 64, says="(?s)NAME is missing.*smollm2"),
        Step("$ROOT/scripts/get-model --help", says="smollm2"),
        Step("$ROOT/scripts/get-model llama", 64,
             says=r'(?s)unknown model "llama".*any other model .*hf download OWNER/NAME .*shoal serve '),
        Step("shoal serve HuggingFaceTB/SmolLM2-135M-Instruct", 66,
             says=r'\n  scripts/get-model smollm2 && shoal serve models/smollm2\nWith hf, .*\n'
                  r'  hf download HuggingFaceTB/SmolLM2-135M-Instruct '
                  r'--exclude "\*/\*" '
                  r"--local-dir SmolLM2-135M-Instruct && shoal serve SmolLM2-135M-Instruct\s*$"),
        Step("shoal generate $DEMO --prompt 'In the beginning' --max-tokens 12",
             says="finish reason length: the answer stopped at --max-tokens 12"),
        Step("echo 'In the beginning' | shoal generate $DEMO --max-tokens 12"),
        Step("serve $DEMO -tp 2; shoal client --server $address --prompt 'In the' --max-tokens 8; "
             "stop", says=READY),
        Step("serve $DEMO > /dev/null; echo 'In the' | shoal client --server $address --prompt - "
             "--ignore-eos --max-tokens 4; stop",
             says=r"(?s)4 tokens after a prompt of .*the request has no seed.*--seed N"),
        Step("serve $DEMO -tp 2 > /dev/null; curl -sS http://$web/v1/completions -H "
             "'Content-Type: application/json' -d '{\"prompt\": \"In the\", \"max_tokens\": 8}'; "
             "stop", says='"finish_reason"'),
        # A model that ends its answer to a bare prompt at once, as many models for chats do.
        Step("mkdir chat && cp $DEMO/* chat && id=$(shoal generate $DEMO --prompt 'In the' "
             "--temperature 0 --max-tokens 1 --json | "
             "sed 's/.*\"token_ids\":.\\([0-9]*\\).*/\\1/') && "
             "echo \"{\\\"eos_token_id\\\": $id}\" > chat/generation_config.json; "
             "shoal generate chat --prompt 'In the' --temperature 0",
             says="end-of-sequence token .* ask it with --chat, or with --messages"),
        Step("printf 'Who was the king?\\nAnd then?\\n' | shoal generate $DEMO --chat "
             "--max-tokens 12",
             says=r"(?s)\A.*\w.*\n.*sampling from .*finish reason length: the answer stopped at "
                  "--max-tokens 12"),
        Step("serve chat > /dev/null; shoal client --server $address --prompt 'In the' "
             "--temperature 0; echo 'Who was the king?' | shoal client --server $web --chat "
             "--max-tokens 12; stop",
             says="end-of-sequence token .* Ask its HTTP port with --chat or --messages"),
        Step("serve $DEMO > /dev/null; curl -sS http://$web/v1/chat/completions -H "
             "'Content-Type: application/json' -d '{\"messages\": [{\"role\": \"user\", "
             "\"content\": \"Who was the king?\"}], \"max_tokens\": 8}'; stop", says='"assistant"'),
        # A rank stands still in the middle of the answer, so that it cannot be over too soon.
        Step("SHOAL_TEST_FAULT=0:step-20:stop serve $DEMO -tp 2 --step-timeout 600 > /dev/null; "
             "stream; kill -INT $client; wait $client; code=$?; cat client.log; kill -9 $server; "
             "exit $code", 130, says=r"(?m)^shoal: interrupted after \d+ tokens? of the answer"),
        Step("loading $DEMO; shoal client --server $address --prompt In; "
             "echo '[{\"role\": \"user\", \"content\": \"Who?\"}]' | "
             "shoal client --server $web --messages -; code=$?; kill -9 $server; exit $code", 69,
             says=r"(?s)is loading.* --wait SECONDS .*is loading.* --wait SECONDS "),
        Step("shoal client --server 127.0.0.1:1 --prompt In", 69,
             says=r"start one with .* or give --server the address after grpc= in the READY line"),
        Step("port=$(free_ports 1); (sleep 1; exec shoal serve $DEMO --port -1 "
             "--grpc-port $port > /dev/null 2>&1) & timeout 45 shoal client --wait 60 "
             "--server 127.0.0.1:$port --prompt In --max-tokens 2; code=$?; kill %1; exit $code"),
        Step("shoal generate $DEMO --max-tokens 2 <&-", 64),
        Step("shoal client --server localhost --prompt In", 64,
             says=r"use --server localhost:50051 \(gRPC\) for a prompt, or "),
        Step("shoal client --server http://localhost --prompt In", 64,
             says=r"use --server localhost:50051 \(gRPC\) for a prompt, or "),
        Step("shoal client --server http://localhost --chat", 64,
             says=r"use --server localhost:8000 \(HTTP\) for --chat and "),
        Step("shoal client 'hello there'", 64, says="--prompt"),
        Step("shoal generate $DEMO --prompt In --max-tokens abc", 64),
        Step("shoal serve $DEMO --tensor-parralel-size 2", 64, says="--tensor-parallel-size"),
        Step("shoal serve $DEMO --mem-fraction-static 0.9", 64, says="--kv-cache-memory"),
        Step("for type in float bf16; do shoal generate --model $DEMO --dtype $type "
             "--prompt In --max-tokens 2 || exit; done"),
        Step("shoal generate --model $DEMO --dtype half --prompt In", 64,
             says="--dtype float16: the checkpoint is bfloat16"),
        Step("shoal bench --help", says=r"(?s)--tokens N.*bench collectives.*Examples:\n  shoal bench"),
        Step("mkdir lfs && cp $DEMO/*.json lfs && printf 'version "
             "https://git-lfs.github.com/spec/v1\\noid sha256:0\\nsize 1\\n' > "
             "lfs/model.safetensors; shoal generate lfs --prompt In", 65,
             says=r'git lfs pull; .* hf download OWNER/NAME --exclude "\*/\*" --local-dir DIR'),
    ],
    "operator": [
        Step("place 64m shoal doctor", says="(?s)^OK: 2 ranks use shm, the first choice.*"
             r" in /dev/shm, which count as memory\n.*"
             r"\nthis /dev/shm is enough as it is, with \d+ B \(6\d\.\d MiB\) free\n"),
        Step("place 1m shoal doctor", says="(?s)^OK: 2 ranks use memfd, which is as good as shm.*"
             r"\nto use shm instead \(optional, \S+\): /dev/shm would have to be larger: "),
        Step("place 4k shoal doctor", says="^OK: 2 ranks use memfd, which is as good as shm"),
        Step("place 64m,ro shoal doctor", says="remount,rw"),
        # Root without the capability to write where the mode forbids it.
        Step("place 64m,mode=0555 setpriv --bounding-set=-dac_override shoal doctor",
             says="chmod 1777 /dev/shm"),
        Step("place 1m bash -c 'eval \"$(remedy --min-transport shm)\"; "
             "shoal doctor --min-transport shm'", says="^OK: 2 ranks use shm"),
        Step("place 64m,ro bash -c 'eval \"$(remedy --min-transport shm)\"; "
             "shoal doctor --min-transport shm'", says="^OK: 2 ranks use shm"),
        Step("place 1m shoal doctor --on-shm-shortage fail", 69, says=r"(?s)^NO: .*the policy .*\nremedy \(flags\): "),
        Step("shoal doctor --device cuda", 69,
             says=r"^NO: 2 ranks could not be started: .*\n2 ranks unless -tp says otherwise \(serve starts 1\)"),
        Step("shoal serve $DEMO --device cuda --port 0 --grpc-port 0", 69, says="(?i)cuda"),
        Step("place 4k shoal doctor --transport shm,tcp", 1,
             says=r"(?s)^SLOWER: .*remedy \(flags\): leave out --transport shm,tcp: memfd may work"),
        Step("place 4k shoal doctor --transport shm,tcp --min-transport tcp",
             says="^SLOWER: .*; --min-transport tcp allows it"),
        Step("place 1m shoal doctor --min-transport shm", 69, says=r"(?s)^NO: .*the policy .*\nremedy \(flags\): "),
        Step("KUBERNETES_SERVICE_HOST=10.96.0.1 place 1m shoal doctor --min-transport shm", 69,
             says=r"(?s)remedy \(kubernetes\): .* volumeMounts:.* emptyDir:\n +medium: Memory\n +sizeLimit: "),
        Step("place 1m shoal doctor --min-transport shm -tp 4", 69,
             says="(?s)^NO: .*the policy .* is too small for 4 ranks: .* -o remount"),
        Step("place 1m shoal doctor --transport shm", 69,
             says="^NO: none of --transport shm works for 2 ranks; without it, memfd may work"),
        Step("place 1m shoal doctor --json", schema="transport-report"),
        Step("shoal doctor --needs --json", schema="needs"),
        Step("prlimit --nofile=7 shoal doctor --json", 69, says="could not|cannot|ulimit",
             schema="transport-report"),
        Step("prlimit --nofile=7 shoal doctor", 69,
             says="^NO: 2 ranks could not be started: the program .* could not be kept open; "
             r"a process may have only 7 open files \(ulimit -n\): "),
        Step("shoal doctor --nccl-version 2.11", 64, says="2.12 or later"),
        Step("NCCL_P2P_DISABLE=0 place 64m shoal doctor --nccl-version 2.27",
             says="(?s)^OK: .*\nnote: NCCL_P2P_DISABLE=0 of the environment: Shoal's own ranks need "),
        Step("NCCL_SHM_DISABLE=1 shoal doctor --nccl-version 2.27", 1,
             says="^NO: 2 ranks of NCCL 2.27.7 \\(2.27: its last known patch\\) cannot use nccl-shm: .*\nnccl-p2p fits, but only for "),
        Step("place 1m sh -c 'touch \"$(printf \"/dev/shm/x\\nOK: forged\\033[31m\")\"; "
             "head -c 900000 /dev/zero | tee /dev/shm/x* > /dev/null; shoal doctor'",
             says=r"x\?OK: forged\?\[31m of user"),
        Step("place 64m shoal doctor --nccl-version 2.27 -tp 8", 1,
             says=r"(?s)^SLOWER: .*the settings of nccl-shm-lean.*  export NCCL_BUFFSIZE="),
        Step("shoal doctor --nccl-version 2.27 -tp 2 --json", schema="nccl-plan"),
        Step("place 1m sh -c 'umask 077; head -c 700000 /dev/zero > /dev/shm/cache; shoal doctor'",
             says=r"(?s)the largest files in /dev/shm.*: with the \d+ B .* in it, "),
        Step("place 16m sh -c 'umask 077; true > /dev/shm/nccl-AbCd01; "
             "head -c 9637892 /dev/zero > /dev/shm/nccl-AbCd02; "
             "echo mine > /dev/shm/nccl-backup; touch -d yesterday /dev/shm/*; "
             "shoal doctor --clean-stale; ls /dev/shm'", says="(?m)^removed .*nccl-AbCd02"),
        Step("place 10m sh -c 'umask 077; head -c 9637892 /dev/zero > /dev/shm/nccl-AbCd02; "
             "touch -d yesterday /dev/shm/*; shoal doctor'",
             says=r"\nto use shm instead \(optional\): killed runs left"),
        Step("serve $DEMO -tp 2; cat serve.log; stop", says=READY),
        Step("place 4k bash -c 'serve $DEMO -tp 2; curl -sS http://$web/health; stop'",
             says=r"READY .* transport=memfd .*refused=shm"),
        Step("SHOAL_TEST_FAULT=1:step-20:stop serve $DEMO -tp 2 --step-timeout 600 > /dev/null; "
             "stream; kill -9 $(pgrep -P $server -x shoal-rank-1); wait $client; code=$?; "
             "cat client.log; grep -v READY serve.log; stop; exit $code",
             says="(?s)400 tokens after .*rank 1 .*was killed by signal 9"),
        Step("serve $DEMO -tp 2 > /dev/null; stream; stop; code=$?; "
             "wait $client && cat client.log; tail -n 3 serve.log; exit $code", says="400 tokens"),
        Step("loading $DEMO; for path in health health/live; do curl -sS -w ' %{http_code}\n' "
             "http://$web/$path; done; kill -9 $server", says=r"(?s) 503\n.* 200\n"),
        Step("serve $DEMO -tp 2 --log-format json > /dev/null; shoal client --server $address "
             "--prompt In --ignore-eos --max-tokens 2 > /dev/null 2>&1; stop; "
             "grep -v READY serve.log | tee /dev/stderr | python3 -c 'import json, sys; "
             "[json.loads(line) for line in sys.stdin]'", says=r'"level".* \+ 2 tokens'),
        Step("serve $DEMO -tp 2 > /dev/null; ps -o comm= --ppid $server | sort; stop",
             says="shoal-rank-0\nshoal-rank-1"),
        Step("serve $DEMO -tp 2 --served-model-name 'a b,c'; stop", says='model="a b" tp=2'),
        Step("mkdir 'my model' && cp $DEMO/* 'my model'; serve 'my model' -tp 2; stop",
             says='model="my model"'),
        Step("serve $DEMO -tp 2 > /dev/null; curl -sS http://$web/health; "
             "curl -sS http://$web/metrics | grep shoal_transport; stop", says='"status":"ready"'),
    ],
    "engine author": [
        Step("shoal shmtest true", 64, says=r"before the command: shoal shmtest -- true\n"),
        Step("shoal shmtest --help",
             says=r"(?s)A condition passes if .*must\s+end\s+by\s+itself: .*69 nothing was\s+tested "
             r"\(no\s+namespaces.*may\s+refuse\s+to\s+start.*\+\s+joins\s+several\s+into\s+one.*"
             r", to\s+1/32\s+of\s+it.*may\s+then\s+be\s+missed"),
        Step("shoal shmtest -- false", 1, says="The control"),
        Step("shoal shmtest --matrix host,1m,missing -- true",
             says=r"3 passed, 0 failed.*\nNo use of /dev/shm was seen in any condition: the command needs none, or found none "),
        Step("shoal shmtest --matrix full-after-2s -- true", 69,
             says="Nothing was tested, because every condition was skipped: exit code 69"),
        Step("shoal shmtest --matrix host,1m,64m -- python3 $ROOT/tests/e2e/peers/"
             "python_shared_memory.py", 1, says=r"(?s)SIGBUS killed process \d+ of its namespace \(python3\)"
             r".*posix_fallocate\(\) reserves.* --min-size finds "),
        Step("unshare --user --map-user=1000 --map-group=1000 "
             "shoal shmtest --matrix host,1m -- true", says="2 passed", one_thread=True),
        Step("unshare -r sh -c 'echo 0 > /proc/sys/user/max_user_namespaces; "
             "exec setpriv --bounding-set=-sys_admin shoal shmtest -- true'", 69,
             says=r"(?s)user\.max_user_namespaces is 0: user namespaces are .*"
             r"user\.max_user_namespaces=65536\n.*for tests alone\): add --cap-add SYS_ADMIN",
             one_thread=True),
        Step("shoal shmtest --matrix 1m,128m --accept error -- sh -c 'echo no room >&2; exit 1'", 1,
             says=r"(?s)exit code 1; host must exit with 0 even with --accept error.*"
             r"The control \(host\) failed.*: 2 other conditions were not run.*"
             r"shmtest: host was added in front as the control.*\n.*\[1/3\] host "),
        Step("shoal shmtest --matrix 1m,128m --accept error -- sh -c "
             "'[ $SHOAL_SHMTEST_CONDITION != 1m ]'", says="(?s)exit code 1, accepted.*3 passed"),
        Step("shoal shmtest --matrix 1m --json -- python3 -c 'import multiprocessing, os, signal\n"
             "child = multiprocessing.Process(target=lambda: os.kill(os.getpid(), signal.SIGBUS))\n"
             "child.start(); child.join(); raise SystemExit(child.exitcode != 0)'", 1,
             says='"sigbus": true', schema="shmtest"),
        Step("shoal shmtest --matrix 1m --accept error -- sh -c 'exit 255'", 1, says="The control"),
        Step("shoal shmtest --matrix 1m,64m -- false", 1, says="add the control, --matrix host,"),
        Step("shoal shmtest --matrix 1m --timeout 1 -- sleep 987", 1, says="start the server, ask it, stop it"),
        Step("shoal shmtest --min-size -- sh -c 'head -c 3000000 /dev/zero > /dev/shm/x; "
             "code=$?; rm -f /dev/shm/x; exit $code'",
             says=r"The smallest /dev/shm that passed here: .* so leave room: --shm-size=4m\n"),
        Step("shoal shmtest --matrix host,1m --junit junit.xml -- true", junit="junit.xml"),
        # Builds with a sanitizer have no static programs.
        *([] if breadth.SANITIZED else
          [Step("shoal-shmtest --version; place 4k shoal-doctor",
                says=r"OK: 2 of Shoal's ranks use memfd, which is as good as shm\.\n2 ranks unless -tp says "
                     r"otherwise\nthis says nothing about another engine: ")]),
    ],
    "researcher": [
        Step("shoal tokenize $DEMO --text 'In the beginning'"),
        Step("shoal tokenize $DEMO --text 'In the beginning' --no-special | shoal detokenize $DEMO "
             "--ids -", says="^In the beginning$"),
        Step("shoal generate $DEMO --prompt-ids 1,2,3 --max-tokens 4 --json", says='"token_ids"'),
        Step("shoal logits $DEMO --prompt-ids 1,2,3 --out one.npy && "
             "shoal logits $DEMO -tp 3 --prompt-ids 1,2,3 --out three.npy && "
             "cmp one.npy three.npy", says=r'float32 \[3, \d+\]: raw logits; row i .*numpy.load\("one.npy"\)'),
        Step("shoal logits $DEMO --prompt 'In the beginning' --out text.npy && printf '{\"id\": 7, "
             "\"prompt\": \"In the beginning\"}\\n{\"prompt_ids\": [1, 2]}\\n' | "
             "shoal logits $DEMO --jsonl - --out-dir all && cmp text.npy all/1.npy", says='"id":7'),
        Step("printf '{\"prompt\": \"In\", \"max_tokens\": 4}\\n"
             "{\"messages\": [{\"role\": \"user\", \"content\": \"Who?\"}], \"max_tokens\": 4}\\n' "
             "| shoal generate $DEMO --jsonl -", says=r'seed 0 for each line that has no "seed" of its own; (?s:.)*'
             r"generate: 2 requests, .* s \(without the start\)"),
        Step("printf '{\"id\": \"a\", \"prompt\": \"In\", \"max_tokens\": 4}\\n{\"id\": \"b\", "
             "\"prompt\": \"In\", \"temprature\": 1}\\n{\"messages\": []}\\n' > lines; "
             "shoal generate $DEMO --jsonl lines", 64,
             says=r"(?s)2 of 3 lines.*did you mean.*messages: must be a list of at least one message"),
        Step("echo nonsense | shoal generate $DEMO --jsonl -", 64,
             says=r"line 1: not JSON at byte 2: invalid literal; a line must be a JSON object such as "
                  r".*\nnothing was run\s*$"),
        Step("shoal generate $DEMO --jsonl lines --keep-going --log-level info", 1,
             says=r'(?s)"id":"a","line":1,.*3 requests \(1 done, 2 failed\), '),
        Step("mkdir phi && cp $DEMO/* phi && sed -i 's/\"llama\"/\"phi3\"/' phi/config.json; "
             "shoal generate phi --prompt In", 65, says="phi3"),
        Step("for type in gemma2 mixtral gpt2; do mkdir $type && cp $DEMO/* $type && sed -i "
             "s/llama/$type/ $type/config.json; shoal generate $type --prompt In; done", 65,
             says='(?s)"gemma2" is not supported;.*"mixtral" is not.*"gpt2" is not'),
        Step("mkdir rope && cp $DEMO/* rope && sed -i 's/\"default\"/\"longrope\"/' "
             "rope/config.json; shoal generate rope --prompt In", 65,
             says='rope type "longrope" is not supported'),
        Step("mkdir awq && cp $DEMO/* awq && sed -i 's/^{/{\"quantization_config\": "
             "{\"quant_method\": \"awq\"},/' awq/config.json; shoal generate awq --prompt In", 65,
             says=r'\("awq"\) is not supported; .*hf download OWNER/NAME --exclude'),
        Step("mkdir short && cp $DEMO/* short && truncate -s 100000 short/model.safetensors; "
             "shoal generate short --prompt In", 65, says=r": the file ends too early: .* of data, unless its header is wrong; download it again"),
        Step("mkdir shape && cp $DEMO/* shape && sed -i 's/\"intermediate_size\": [0-9]*/"
             "\"intermediate_size\": 64/' shape/config.json; shoal generate shape --prompt In", 65,
             says=r"the model cannot be loaded\n.* has shape .*; config.json asks for .*: config.json and the "
                  r"weights do not belong together; download both again"),
        Step("mkdir bin && cp $DEMO/*.json bin && touch bin/pytorch_model.bin; "
             "shoal generate bin --prompt In", 65, says="pytorch_model.bin.* Look for a safetensors version first; "
             ".*trust where it comes from.*\n  python3 -m venv venv && "),
        Step("mkdir ids && cp $DEMO/[cgm]* ids; shoal logits ids --prompt-ids 1,2 --out ids.npy"),
        Step("shoal bench decode $DEMO --tokens 8", says=r" read at [\d.]+ [kMGT]?B/s, "),
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
                (programs / program.name).symlink_to(program.resolve())
        environment = {**harness.environment(), "COLUMNS": "100", "CUDA_VISIBLE_DEVICES": "",
                       "DEMO": str(harness.DEMO), "ROOT": str(harness.ROOT),
                       "PATH": f"{programs}:{os.environ['PATH']}"}
        for step in WALKS[name]:
            if step.left_out:
                continue
            began = time.monotonic()
            done = subprocess.run(["bash", "-c", FUNCTIONS + step.command], cwd=folder,
                                  env=environment, capture_output=True, text=True, timeout=2 * harness.GUARD)
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
