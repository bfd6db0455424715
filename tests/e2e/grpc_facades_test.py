"""Clients of other engines, unmodified, against the gRPC port: tritonclient and the gateway smg.

It runs with the Python of build/venv-clients, which scripts/get-clients makes.
"""
import asyncio
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import harness
from ports import free_ports

try:
    import grpc
    import numpy as np
    import openai
    import tritonclient.grpc as triton
    import tritonclient.grpc.aio as triton_aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
except ImportError as missing:
    print(f"skipped: {missing} (scripts/get-clients installs it)")
    sys.exit(harness.SKIPPED)

PROMPT = "In the beginning"
SETTINGS = {"max_tokens": 12, "seed": 7, "temperature": 0.8, "top_p": 0.9}
LONG, FAULT_AT = 400, 100  # tokens of a stream under which a rank dies, and in which step it does
SERVICES = ["", "openengine.v1.Inference", "inference.GRPCInferenceService",
            "vllm.grpc.engine.VllmEngine"]


def expected(*flags):
    return json.loads(harness.run(
        "generate", harness.DEMO, "--prompt", PROMPT, "--max-tokens", 12, "--seed", 7,
        "--temperature", 0.8, "--top-p", 0.9, "--logprobs", 2, "--json", *flags).stdout)


ENDED = "ended"


def found_by(process, port, count):
    """Whether the gateway has found this many healthy servers; ENDED if it does not run."""
    if process.poll() is not None:
        return ENDED
    time.sleep(0.1)
    without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with without_proxy.open(f"http://127.0.0.1:{port}/workers",
                                timeout=harness.GUARD) as answer:
            workers = json.load(answer)["workers"]
    except (OSError, ValueError, KeyError):
        return False
    return sum(worker["is_healthy"] for worker in workers) == count


def tensor(name, datatype, value):
    made = triton.InferInput(name, [1], datatype)
    made.set_data_from_numpy(np.array([value], dtype=object if datatype == "BYTES" else bool))
    return made


def inputs(stream, **settings):
    made = [tensor("text_input", "BYTES", PROMPT.encode()), tensor("stream", "BOOL", stream),
            tensor("sampling_parameters", "BYTES", json.dumps({**SETTINGS, **settings}).encode())]
    if not stream:
        made.append(tensor("exclude_input_in_output", "BOOL", True))
    return made


def text_of(result):
    values = result.as_numpy("text_output")
    return "" if values is None else values[0].decode()


class GrpcFacades(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.start_server()
        self.expected = expected()

    def start_server(self):
        self.server = self.serve(harness.DEMO, "-tp", 2)
        self.server.wait_ready()
        self.address = self.server.fields["grpc"]

    def stop(self, *servers):
        for server in servers or (self.server,):
            os.kill(server.pid, signal.SIGTERM)
            self.assertEqual(server.end(), 0, server.err.rest())

    def test_triton(self):
        client = triton.InferenceServerClient(self.address)
        self.assertTrue(client.is_server_live() and client.is_server_ready())
        self.assertTrue(client.is_model_ready("demo"))
        config = client.get_model_config("demo", as_json=True)["config"]
        self.assertTrue(config["model_transaction_policy"]["decoupled"])
        names = {i["name"] for i in client.get_model_metadata("demo", as_json=True)["inputs"]}
        self.assertEqual(names, {i["name"] for i in config["input"]})
        answer = client.infer("demo", inputs(False), request_id="one")
        self.assertEqual(answer.get_response().id, "one")
        self.assertEqual(text_of(answer), self.expected["text"])
        with self.assertRaisesRegex(triton.InferenceServerException, "INVALID_ARGUMENT.*top_p"):
            client.infer("demo", inputs(False, top_p=7))
        with self.assertRaisesRegex(triton.InferenceServerException, "NOT_FOUND"):
            client.infer("another", inputs(False))
        self.check_streams(client)
        client.close()
        asyncio.run(self.check_aio())
        self.stop()

    def check_streams(self, client):
        answers = queue.Queue()
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for number in range(8):
            client.async_stream_infer("demo", inputs(True), request_id=str(number))
        client.async_stream_infer("demo", inputs(True, temperature=-1), request_id="bad")
        texts, ended, errors = {}, 0, []
        while ended + len(errors) < 9:
            result, error = answers.get(timeout=harness.GUARD)
            if error:
                errors.append(str(error))
                continue
            response = result.get_response()
            texts[response.id] = texts.get(response.id, "") + text_of(result)
            ended += response.parameters["triton_final_response"].bool_param
        client.stop_stream()
        self.assertEqual(texts, {str(n): self.expected["text"] for n in range(8)})
        self.assertEqual(len(errors), 1)
        self.assertIn("temperature", errors[0])

    async def check_aio(self):
        async with triton_aio.InferenceServerClient(self.address) as client:
            whole = await asyncio.gather(*[client.infer("demo", inputs(False)) for _ in range(4)])
            self.assertEqual({text_of(answer) for answer in whole}, {self.expected["text"]})

            async def requests():
                yield {"model_name": "demo", "inputs": inputs(True)}

            text = ""
            async for result, error in client.stream_infer(requests()):
                self.assertIsNone(error)
                text += text_of(result)
            self.assertEqual(text, self.expected["text"])

    def test_vllm_stubs_and_health(self):
        with grpc.insecure_channel(self.address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for service in SERVICES:
                answer = health.Check(health_pb2.HealthCheckRequest(service=service))
                self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING, service)
            engine = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            ids = json.loads(harness.run(
                "tokenize", harness.DEMO, "--text", PROMPT, "--json").stdout)["ids"]
            request = vllm_engine_pb2.GenerateRequest(
                tokenized=vllm_engine_pb2.TokenizedInput(input_ids=ids),
                sampling_params=vllm_engine_pb2.SamplingParams(logprobs=2, **SETTINGS))
            whole = list(engine.Generate(request))
            self.assertEqual(len(whole), 1)
            self.assertEqual(list(whole[0].complete.output_ids), self.expected["token_ids"])
            logprobs = [token["logprob"] for token in self.expected["logprobs"]]
            got = whole[0].complete.output_logprobs.token_logprobs
            self.assertEqual([np.float32(x) for x in got], [np.float32(x) for x in logprobs])
            request.stream = True
            streamed = [i for message in engine.Generate(request) for i in message.chunk.token_ids]
            self.assertEqual(streamed, self.expected["token_ids"])
            request.sampling_params.json_schema = "{}"
            with self.assertRaises(grpc.RpcError) as refused:
                list(engine.Generate(request))
            self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.stop()

    def test_a_rank_dies_under_streams_of_every_front(self):
        """32 streams of five kinds: each gets what it would have got without the death."""
        self.sampling = {"max_tokens": LONG, "temperature": 0.0}
        kinds = [self.stream_of_completions, self.stream_of_chats, self.stream_of_openengine,
                 self.stream_of_triton, self.stream_of_vllm]
        alone = [kind() for kind in kinds]
        self.stop()
        # A stream takes LONG steps, so that in step FAULT_AT one has begun and none has ended.
        with harness.planted(f"1:step-{FAULT_AT}:stop"):
            self.start_server()
        answers = [None] * 32

        def ask(i):
            answers[i] = kinds[i % len(kinds)]()
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
        for thread in threads:
            thread.start()
        os.kill(harness.stopped_rank(self.server.pid), signal.SIGKILL)
        for thread in threads:
            thread.join()
        for i, answer in enumerate(answers):
            self.assertEqual(answer, alone[i % len(kinds)], kinds[i % len(kinds)].__name__)
        self.assertTrue(all(alone))
        metrics = self.get("/metrics")
        self.assertRegex(metrics, r"(?m)^shoal_restarts_total(\{[^}]*\})? 1(\.0)?$")
        recovered = re.search(r"(?m)^shoal_recovered_requests_total(?:\{[^}]*\})? (\S+)$", metrics)
        self.assertGreater(float(recovered[1]), 0)
        self.assertEqual(json.loads(self.get("/health"))["status"], "ready")
        self.stop()

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.server.fields['http']}{path}") as answer:
            return answer.read().decode()

    def openai(self):
        return openai.OpenAI(base_url=f"http://{self.server.fields['http']}/v1", api_key="none",
                             max_retries=0)

    def stream_of_completions(self):
        text = ""
        with self.openai() as client, client.completions.create(
                model="demo", prompt=PROMPT, stream=True, **self.sampling) as stream:
            for event in stream:
                text += event.choices[0].text
        return text

    def stream_of_chats(self):
        text = ""
        with self.openai() as client, client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": PROMPT}], stream=True,
                **self.sampling) as stream:
            for event in stream:
                text += event.choices[0].delta.content or ""
        return text

    def stream_of_triton(self):
        client = triton.InferenceServerClient(self.address)
        answers, text, last = queue.Queue(), "", False
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        client.async_stream_infer("demo", inputs(True, **self.sampling, top_p=1))
        while not last:
            result, error = answers.get(timeout=harness.GUARD)
            self.assertIsNone(error)
            text += text_of(result)
            last = result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
        client.close()
        return text

    def stream_of_vllm(self):
        request = vllm_engine_pb2.GenerateRequest(
            text=PROMPT, stream=True, sampling_params=vllm_engine_pb2.SamplingParams(**self.sampling))
        ids = []
        with grpc.insecure_channel(self.address) as channel:
            for message in vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(request):
                ids += message.chunk.token_ids
        return ids

    def stream_of_openengine(self):
        client = self.server.client("--prompt", PROMPT, "--max-tokens", LONG, "--temperature", 0)
        text = client.stdout.read()
        self.assertEqual(client.wait(), 0)
        client.stdout.close()
        client.stderr.close()
        return text

    def test_a_gateway_in_front_of_two_servers(self):
        other = self.serve(harness.DEMO, "-tp", 1)
        other.wait_ready()
        gateway = self.start_gateway(self.address, other.fields["grpc"])
        direct = openai.OpenAI(base_url=f"http://{self.server.fields['http']}/v1", api_key="none",
                               max_retries=0)
        ask = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}],
               "max_tokens": 8, "temperature": 0.0, "logprobs": True, "top_logprobs": 2}
        self.expect_same_chats(direct, gateway, ask)

        def served() -> list[int]:
            return [server.err.text().count("VllmEngine/Generate: status OK")
                    for server in (self.server, other)]
        harness.wait_until(lambda: sum(served()) >= 8, "the log of 8 calls")
        served = served()
        self.assertEqual(sum(served), 8)
        self.assertTrue(all(served), f"both servers get requests: {served}")
        gateway.close()
        direct.close()
        self.stop(self.server, other)

    def start_gateway(self, *addresses):
        """Starts smg in front of the servers. A port that was free may be another test's a moment
        later, therefore a gateway that ends early is started again with other ports.
        """
        for _ in range(3):
            process, port, log = self.launch_gateway(addresses)
            if harness.wait_until(lambda: found_by(process, port, len(addresses)),
                                  "the gateway to find both servers", log.text) != ENDED:
                return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none",
                                     max_retries=0)
        raise AssertionError("the gateway ended three times:\n" + log.text())

    def launch_gateway(self, addresses):
        smg = Path(sys.executable).parent / "smg"
        port, metrics_port = free_ports(2)
        process = subprocess.Popen(
            [smg, "launch", "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port),
             "--prometheus-port", str(metrics_port), "--worker-urls",
             *[f"grpc://{address}" for address in addresses]],
            env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        def end():
            process.terminate()
            process.wait(harness.GUARD)
        self.addCleanup(end)
        return process, port, harness.Reader(process.stdout)

    def expect_same_chats(self, direct, gateway, ask):
        whole = direct.chat.completions.create(**ask)
        for _ in range(4):
            answer = gateway.chat.completions.create(**ask)
            self.assertEqual(answer.choices[0].message.content, whole.choices[0].message.content)
            self.assertEqual(answer.choices[0].finish_reason, whole.choices[0].finish_reason)
            self.assertEqual(answer.choices[0].logprobs.content,
                             whole.choices[0].logprobs.content)
            self.assertEqual(answer.usage.completion_tokens, whole.usage.completion_tokens)
            self.assertEqual(answer.usage.prompt_tokens, whole.usage.prompt_tokens)
        for _ in range(4):
            text, usage = "", None
            with gateway.chat.completions.create(
                    **ask, stream=True, stream_options={"include_usage": True}) as stream:
                for event in stream:
                    text += "".join(c.delta.content or "" for c in event.choices)
                    usage = event.usage or usage
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)


if __name__ == "__main__":
    harness.main()
