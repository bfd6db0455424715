"""Wrong flags, wrong requests, broken models, busy ports: each gives one clear error and the
promised exit code, and nothing else.

Every error is under 2 kB, names the problem in its first line, and contains no help text.
"""
import json
import os
import shutil
import signal
import socket
import struct
import tempfile
from pathlib import Path

import harness
from harness import BAD_MODEL, NO_MODEL, UNAVAILABLE, USAGE

TINY = harness.ORACLE / "llama-nine-heads"
SHARDED = harness.ORACLE / "llama3-gqa-tied-sharded"


class ExitCodes(harness.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def refused(self, code: int, *args, says: tuple[str, ...] = ()) -> str:
        """Runs the program, which must fail. Returns the error text; stdout must stay empty."""
        result = harness.run(*args, code=code)
        text = result.stderr.decode()
        self.assertEqual(result.stdout, b"")
        self.assertTrue(0 < len(result.stderr) < 2048, f"{len(result.stderr)} bytes: {text}")
        self.assertNotIn("Usage", text)
        self.assertNotIn("terminate called", text)
        for part in says:
            self.assertIn(part, text)
        return text

    def generate(self, model, *flags):
        return ("generate", model, "--prompt-ids", "1,2", "--max-tokens", 2, *flags)

    def model(self, source: Path = TINY) -> Path:
        """A copy of the model that a test may damage."""
        copy = self.folder / "model"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy)
        return copy

    # --- 64: wrong flag or request ------------------------------------------

    def test_no_or_unknown_command_or_flag(self):
        self.refused(USAGE)
        self.refused(USAGE, "sreve", says=("sreve",))
        self.refused(USAGE, "serve", TINY, "--tensor-paralel-size", 2,
                     says=("--tensor-paralel-size", "--tensor-parallel-size"))
        self.refused(USAGE, "generate", TINY, says=("--prompt",))
        self.refused(USAGE, "generate", says=("MODEL",))
        self.refused(USAGE, "generate", TINY, "--prompt", "a", "--prompt-ids", "1")

    def test_flag_values(self):
        for flag, value in (("-tp", 0), ("-tp", "two"), ("-tp", 10), ("--kv-cache-memory", "12q"),
                            ("--kv-cache-memory", "1.5g"), ("--kv-cache-memory", "99999999999t"),
                            ("--kv-cache-memory", "-1"), ("--transport", "pigeon"),
                            ("--cpu-kernels", "mmx"), ("--dtype", "int8"), ("--max-num-seqs", 0),
                            ("--max-model-len", 0), ("--threads-per-rank", -3),
                            ("--max-model-len", 10**12), ("--kv-cache-memory", 1)):
            with self.subTest(flag=flag, value=value):
                self.refused(USAGE, *self.generate(TINY, flag, value), says=(str(value),))

    def test_unknown_transport_lists_the_known(self):
        self.refused(USAGE, *self.generate(TINY, "--transport", "shm,pigeon"),
                     says=("pigeon", "shm", "tcp"))

    def test_sampling_values(self):
        for flag, value in (("--temperature", -1), ("--temperature", "nan"), ("--top-p", 0),
                            ("--top-p", 1.5), ("--top-k", -2), ("--min-p", 2),
                            ("--repetition-penalty", 0), ("--presence-penalty", "inf"),
                            ("--logprobs", -2), ("--logprobs", 100000), ("--max-tokens", 0),
                            ("--seed", -1), ("--stop", "")):
            with self.subTest(flag=flag, value=value):
                self.refused(USAGE, "generate", TINY, "--prompt-ids", "1,2", flag, value)

    def test_prompts(self):
        vocab = json.loads((TINY / "config.json").read_text())["vocab_size"]
        self.refused(USAGE, "generate", TINY, "--prompt-ids", f"1,{vocab}", says=(str(vocab),))
        self.refused(USAGE, "generate", TINY, "--prompt-ids", "1,-1")
        self.refused(USAGE, "generate", TINY, "--prompt-ids", "1,x")
        self.refused(USAGE, "generate", TINY, "--prompt-ids", "")
        self.refused(USAGE, "generate", TINY, "--prompt-ids", harness.ids_flag([5] * 256),
                     says=("256",))
        self.refused(USAGE, "logits", TINY, "--prompt-ids", f"{vocab}", "--out",
                     self.folder / "x.npy", says=(str(vocab),))

    def test_what_would_have_no_effect(self):
        last = json.loads((TINY / "config.json").read_text())["vocab_size"] - 1
        harness.run("detokenize", TINY, "--ids", last)
        says = (f"token ids must be in [0, {last}], not {last + 1}",)
        self.refused(USAGE, "detokenize", TINY, "--ids", f"5,{last + 1}", says=says)
        file = self.folder / "ids.jsonl"
        file.write_text(f"[5]\n[{last + 1}]\n")
        self.refused(USAGE, "detokenize", TINY, "--jsonl", file, says=(*says, "line 2"))
        file = self.folder / "prompts.jsonl"
        file.write_text('{"prompt_ids":[1]}\n{"prompt_ids":[1,2]}\n')
        prompts = ((("--prompt-ids", "1,2", "--out", self.folder / "x.npy"), "a prompt of"),
                   (("--jsonl", file, "--out-dir", self.folder / "out"), "prompts of at most"))
        for prompt, of in prompts:
            self.refused(USAGE, "logits", TINY, *prompt, "--decode-from", 2,
                         says=(f"--decode-from must be in [0, 1] for {of} 2 tokens, not 2",))
            harness.run("logits", TINY, *prompt, "--decode-from", 1)

    def test_too_many_ranks_says_the_limit_and_why(self):
        text = self.refused(USAGE, *self.generate(TINY, "-tp", 10))
        self.assertIn("9", text)
        self.assertRegex(text, "head|leaves|leaf")

    def test_files_that_cannot_be_opened(self):
        nowhere = self.folder / "no" / "where"
        self.refused(USAGE, "logits", TINY, "--prompt-ids", 1, "--out", nowhere,
                     says=(str(nowhere), "No such file"))
        self.refused(USAGE, "logits", TINY, "--prompt-ids", 1,
                     "--out", self.folder, says=(str(self.folder),))
        self.refused(USAGE, "logits", TINY, "--prompt-ids", 1, "--out", "-",
                     says=("--out - is not stdout; name a file",))
        self.refused(USAGE, "logits", TINY, "--jsonl", "-", "--out-dir", "-",
                     says=("--out-dir - is not stdout; name a folder",))
        self.refused(USAGE, "generate", TINY, "--jsonl", nowhere, says=(str(nowhere),))
        self.refused(USAGE, "tokenize", TINY, "--file", nowhere, says=(str(nowhere),))
        self.refused(USAGE, "detokenize", TINY, "--jsonl", nowhere, says=(str(nowhere),))

    def test_a_bad_line_is_named_before_anything_is_generated(self):
        for line in ('{"prompt_ids":[1],"max_tokens":2', '{"prompt_ids":[1],"max_token":2}',
                     '{"max_tokens":2}', "[1]", '{"prompt_ids":"1"}',
                     '{"prompt_ids":[1],"temperature":-1}', '{"prompt_ids":[1],"prompt":"x"}',
                     '{"prompt_ids":[99999999]}', '{"prompt_ids":[1],"prompt_ids":[2]}'):
            with self.subTest(line=line):
                file = self.folder / "requests.jsonl"
                file.write_text('{"prompt_ids":[1],"max_tokens":2}\n' + line + "\n")
                self.refused(USAGE, "generate", TINY, "--jsonl", file, says=("2",))
        file = self.folder / "values.jsonl"
        file.write_text('"fine"\n[1,\n')
        harness.run("tokenize", TINY, "--jsonl", file, code=USAGE)

    # --- 66, 65: models -----------------------------------------------------

    def test_no_model(self):
        self.refused(NO_MODEL, *self.generate(self.folder / "absent"), says=("absent",))
        self.refused(NO_MODEL, "tokenize", self.folder / "absent", "--text", "x", says=("absent",))
        self.refused(NO_MODEL, *self.generate(self.folder), says=("config.json",))
        self.refused(NO_MODEL, "serve", self.folder / "absent", "--grpc-port", 0, says=("absent",))

    def test_an_incomplete_model(self):
        for file in ("config.json", "model.safetensors"):
            with self.subTest(file=file):
                model = self.model()
                (model / file).unlink()
                result = harness.start(*self.generate(model))
                _, err = result.communicate()
                self.assertIn(result.returncode, (NO_MODEL, BAD_MODEL), err)
                self.assertIn(b"model.safetensors" if file != "config.json" else b"config.json",
                              err)

    def test_truncated_weights(self):
        whole = (TINY / "model.safetensors").read_bytes()
        header = 8 + struct.unpack("<Q", whole[:8])[0]
        for length in (0, 1, 7, 8, 9, header - 1, header, header + 100, len(whole) - 1):
            with self.subTest(length=length):
                model = self.model()
                (model / "model.safetensors").write_bytes(whole[:length])
                self.refused(BAD_MODEL, *self.generate(model, "-tp", 2),
                             says=("model.safetensors",))

    def test_damaged_headers(self):
        whole = (TINY / "model.safetensors").read_bytes()
        size = struct.unpack("<Q", whole[:8])[0]
        header, data = whole[8 : 8 + size], whole[8 + size :]
        def file(text: bytes, length: int | None = None) -> bytes:
            return struct.pack("<Q", len(text) if length is None else length) + text + data
        cases = {
            "a length of 2^63": file(header, 2**63), "a length of 2^64-1": file(header, 2**64 - 1),
            "not JSON": file(b"\x00" * size),
            "a dtype nobody knows": file(header.replace(b'"BF16"', b'"BF99"')),
            "deep JSON": file(b"[" * 100000), "an empty object": file(b"{}"),
            "shapes that overflow": file(header.replace(b'"shape":[72]',
                                                        b'"shape":[9223372036854775807,72]')),
            "offsets past the end": file(header.replace(b'"data_offsets":[0,',
                                                        b'"data_offsets":[99999999999,')),
            "another type": file(b"[1,2,3]"),
        }
        for name, damaged in cases.items():
            with self.subTest(name):
                self.assertNotEqual(damaged, whole)
                model = self.model()
                (model / "model.safetensors").write_bytes(damaged)
                self.refused(BAD_MODEL, *self.generate(model, "-tp", 2), says=("safetensors",))

    def test_flipped_bits_of_the_header_never_crash(self):
        whole = bytearray((TINY / "model.safetensors").read_bytes())
        size = 8 + struct.unpack("<Q", whole[:8])[0]
        for k in range(24):
            damaged = bytearray(whole)
            damaged[(k * 7919) % size] ^= 1 << (k % 8)
            model = self.model()
            (model / "model.safetensors").write_bytes(damaged)
            process = harness.start(*self.generate(model))
            _, err = process.communicate()
            # A flipped bit may go unnoticed inside metadata, or inside a name that nobody asks for.
            self.assertIn(process.returncode, (0, BAD_MODEL), err)
            self.assertLess(len(err), 2048)

    def test_damaged_configs(self):
        config = json.loads((TINY / "config.json").read_text())
        for change in ({"model_type": "mamba"}, {"num_attention_heads": 0}, {"hidden_size": -1},
                       {"hidden_act": "gelu_new"},
                       {"num_key_value_heads": 4}, {"vocab_size": 2**40},
                       {"num_hidden_layers": 10**9}, {"rope_scaling": {"type": "longrope"}},
                       {"quantization_config": {"quant_method": "gptq"}},
                       {"intermediate_size": 201}, {"vocab_size": "many"}):
            with self.subTest(change=change):
                model = self.model()
                (model / "config.json").write_text(json.dumps({**config, **change}))
                self.refused(BAD_MODEL, *self.generate(model, "-tp", 2))
        for text in ("", "{", "[]", "null", "[" * 100000, '{"a":' * 50000):
            with self.subTest(text=text[:10]):
                model = self.model()
                (model / "config.json").write_text(text)
                self.refused(BAD_MODEL, *self.generate(model), says=("config.json",))

    def test_damaged_tokenizers(self):
        whole = (TINY / "tokenizer.json").read_text()
        state = json.loads(whole)
        state["model"]["type"] = "Unigram"
        for text, says in (("", "tokenizer.json"), (whole[: len(whole) // 2], "tokenizer.json"),
                           ("[" * 100000, "tokenizer.json"),
                           (json.dumps(state), "Unigram"), ("{}", "tokenizer.json")):
            with self.subTest(text=text[:20]):
                model = self.model()
                (model / "tokenizer.json").write_text(text)
                self.refused(BAD_MODEL, "tokenize", model, "--text", "x", says=(says,))
                self.refused(BAD_MODEL, "generate", model, "--prompt", "x", says=(says,))

    def test_damaged_shard_indexes(self):
        index = json.loads((SHARDED / "model.safetensors.index.json").read_text())
        first = sorted(index["weight_map"])[0]
        for target in ("absent.safetensors", "../../etc/passwd", "/etc/passwd", 7):
            with self.subTest(target=target):
                model = self.model(SHARDED)
                changed = {**index, "weight_map": {**index["weight_map"], first: target}}
                (model / "model.safetensors.index.json").write_text(json.dumps(changed))
                self.refused(BAD_MODEL, *self.generate(model, "-tp", 2))

    # --- 69: the port, the server -------------------------------------------

    def test_a_busy_port(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            port = listener.getsockname()[1]
            text = harness.run("serve", TINY, "--grpc-port", port, code=UNAVAILABLE).stderr.decode()
            self.assertIn(str(port), text)
            # What the tokenizer takes is there before clients are, so that it is no memory of theirs.
            model = self.model()
            (model / "tokenizer.json").write_text("{}")
            self.refused(BAD_MODEL, "serve", model, "--grpc-port", port, says=("tokenizer.json",))

    def test_two_servers_on_one_port(self):
        first = self.serve(TINY)
        port = first.wait_ready()["grpc"].rpartition(":")[2]
        harness.run("serve", TINY, "--grpc-port", port, code=UNAVAILABLE)
        first.process.terminate()
        self.assertEqual(first.end(), 0)

    def test_a_client_without_a_server(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            self.refused(UNAVAILABLE, "client", "--server", address, "--prompt", "x",
                         says=(address,))

    def test_a_client_with_a_bad_request(self):
        server = self.serve(TINY, "-tp", 2)
        address = server.wait_ready()["grpc"]
        self.refused(USAGE, "client", "--server", address, "--prompt-ids", "99999999",
                     says=("99999999",))
        self.refused(USAGE, "client", "--server", address, "--prompt", "x", "--temperature", "-1")
        self.refused(USAGE, "client", "--server", address, "--prompt", "x", "--model", "other",
                     says=("other",))
        os.killpg(server.pid, signal.SIGTERM)
        self.assertEqual(server.end(), 0)

    # --- 0 ------------------------------------------------------------------

    def test_help_and_version(self):
        self.assertRegex(harness.run("--version").stdout.decode(),
                         r"^shoal \d+\.\d+\.\d+\ncommit: ")
        for command in ("serve", "generate", "logits", "tokenize", "detokenize", "render",
                        "client", "bench"):
            with self.subTest(command=command):
                self.assertIn(command, harness.run(command, "--help").stdout.decode())

    def test_a_reader_that_leaves_is_no_crash(self):
        # The rank stands still in the answer, so that it cannot be over before the reader leaves.
        with harness.planted("0:step-20:stop"):
            process = harness.start("generate", harness.DEMO, "--prompt", "In the beginning",
                                    "--max-tokens", 300, "--ignore-eos", "--temperature", 0,
                                    "--step-timeout", 3600)
        process.stdout.read(1)
        rank = harness.stopped_rank(process.pid)
        process.stdout.close()
        os.kill(rank, signal.SIGCONT)
        self.assertEqual(process.wait(), -signal.SIGPIPE, "as every program ends")
        self.assertEqual(process.communicate()[1], b"")

    def test_a_server_goes_on_if_nobody_reads_that_it_is_ready(self):
        nobody, closed = os.pipe()
        os.close(nobody)
        full = os.open("/dev/full", os.O_WRONLY)
        for stdout, why in ((closed, "Broken pipe"), (full, "No space left on device")):
            with self.subTest(why):
                process = harness.start("serve", TINY, "--grpc-port", 0, stdout=stdout)
                os.close(stdout)
                log = harness.Reader(process.stderr)
                line = f"WARNING front [{process.pid}] ready, but nobody reads it: {why}\n"
                harness.wait_until(lambda: line in log.text(), line, log.text)
                process.terminate()
                self.assertEqual(process.wait(), 0, log.rest())

    # --- 74 -----------------------------------------------------------------

    def test_a_full_disk_is_not_a_wrong_request(self):
        server = self.serve(TINY)
        address = server.wait_ready()["grpc"]
        file = self.folder / "requests.jsonl"
        file.write_text('{"prompt_ids":[1],"max_tokens":2}\n')
        for args in (("--version",), ("--help",), ("doctor", "--needs"),
                     ("tokenize", TINY, "--text", "x"), self.generate(TINY, "--json"),
                     self.generate(TINY), ("generate", TINY, "--jsonl", file),
                     ("logits", TINY, "--prompt-ids", 1, "--out", "/dev/full"),
                     ("client", "--server", address, "--prompt-ids", "1,2", "--max-tokens", 2,
                      "--json")):
            with self.subTest(args=args[:2]), open("/dev/full", "wb") as full:
                process = harness.start(*args, stdout=full)
                err = process.communicate()[1].decode()
                self.assertEqual(process.returncode, harness.OUTPUT, err)
                self.assertIn("No space left", err)
        server.process.terminate()
        self.assertEqual(server.end(), 0)


if __name__ == "__main__":
    harness.main()
