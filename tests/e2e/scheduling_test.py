"""However the steps are shared, every answer has the same bits.

One server per number of ranks, with a KV cache for a few of the requests that come at once and with
priorities that contradict the order in which they come, so that requests overtake and preempt each
other. A rank is killed in the middle. Every answer must be the one that the request gets alone,
with its logprobs to the bit.
"""
import os
import random
import signal
import struct
import sys
import tempfile
import threading

import breadth
import harness

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(harness.SKIPPED)

from grpc_client_test import make_stubs

MODEL_LEN, ROOM_TOKENS = 256, 480
KV_BYTES = 3072  # of a token in the demo model: 2 of 6 layers x 4 heads x 32 bfloat16
SETTINGS = (("--decode-stretch", "2", "--max-step-ms", "500"),
            ("--decode-stretch", "1.05", "--max-step-ms", "1"),
            ("--decode-stretch", "0", "--max-step-ms", "60000"))


def requests(draw: random.Random) -> list[dict]:
    """Prompts and lengths of all kinds. The first ones stop at their first token, so that the
    server expects short answers and has to preempt."""
    short = {"prompt_ids": [5], "max_tokens": 100, "temperature": 0, "logprobs": 1}
    first_token = harness.generate_jsonl(harness.DEMO, [short | {"max_tokens": 1}])[0]["logprobs"]
    made = [short | {"stop_token_ids": [first_token[0]["token_id"]]}] * 64
    for number in range(24):
        request = {"prompt_ids": [draw.randrange(4, 4096) for _ in range(draw.randrange(1, 120))],
                   "max_tokens": draw.randrange(20, 120), "ignore_eos": True, "logprobs": 2}
        made.append(request | ({"temperature": 0.9, "seed": number, "top_p": 0.95} if number % 2
                               else {"temperature": 0}))
    return made


def float32(number: float) -> float:
    return struct.unpack("f", struct.pack("f", number))[0]


class Scheduling(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        make_stubs(cls.folder.name)
        from openengine.v1 import control_pb2, generate_pb2, services_pb2_grpc
        cls.control_pb2, cls.pb, cls.services = control_pb2, generate_pb2, services_pb2_grpc
        cls.requests = requests(random.Random(breadth.day()))
        cls.alone = [cls.told(answer) for answer in harness.generate_jsonl(
            harness.DEMO, cls.requests, "--max-num-seqs", 1)]

    @staticmethod
    def told(answer: dict):
        """Token, logprob and candidates. JSON has the shortest text that is the same float."""
        return [(entry["token_id"], float32(entry["logprob"]),
                 [(token, float32(logprob)) for token, logprob in entry["top"]])
                for entry in answer["logprobs"]]

    def message(self, request: dict):
        pb = self.pb
        sampling = pb.SamplingParams(temperature=request["temperature"])
        for name in ("seed", "top_p"):
            if name in request:
                setattr(sampling, name, request[name])
        stops = [pb.StopCondition(stop_token_id=stop) for stop in request.get("stop_token_ids", [])]
        response = pb.ResponseOptions(
            return_output_logprobs=True,
            output_candidates=pb.CandidateTokenSelection(top_n=request["logprobs"]))
        return pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=request["prompt_ids"]), sampling=sampling,
            stopping=pb.StoppingOptions(max_tokens=request["max_tokens"], ignore_eos=True,
                                        conditions=stops),
            response=response)

    def answer(self, stub, number: int, answers: dict, tokens: list):
        got = []
        priority = (("openengine-priority", str(number % 5 - 2)),)
        for event in stub.Generate(self.message(self.requests[number]), timeout=5 * harness.GUARD,
                                   metadata=priority):
            for token in event.token.tokens:
                got.append(token)
                tokens.append(token.token_id)
        answers[number] = got

    def serve_all(self, ranks: int, policy: str, settings: tuple, kill: bool) -> int:
        """Returns how often the server preempted."""
        copies = 2 if ranks == 3 else 1  # of heads that two ranks share
        server = self.serve(harness.DEMO, "-tp", ranks, "--scheduling-policy", policy, *settings,
                            "--max-model-len", MODEL_LEN, "--max-num-batched-tokens", 64,
                            "--kv-cache-memory", copies * KV_BYTES * ROOM_TOKENS)
        channel = grpc.insecure_channel(server.wait_ready()["grpc"],
                                        options=[("grpc.enable_http_proxy", 0)])
        self.addCleanup(channel.close)
        inference = self.services.InferenceStub(channel)
        control = self.services.ControlStub(channel)
        info = control.GetModelInfo(self.control_pb2.GetModelInfoRequest())
        self.assertEqual(info.generation.supports_priority, policy == "priority")
        answers, tokens = {}, []
        for first, end in ((0, 64), (64, len(self.requests))):
            clients = [threading.Thread(target=self.answer,
                                        args=(inference, number, answers, tokens))
                       for number in range(first, end)]
            for client in clients:
                client.start()
            if kill and first:
                harness.wait_until(lambda: len(tokens) > 300, "some tokens")
                os.kill(server.workers(ranks)[-1], signal.SIGKILL)
            for client in clients:
                client.join()
        for number, alone in enumerate(self.alone):
            with self.subTest(ranks=ranks, settings=settings, request=self.requests[number]):
                self.compare(answers.get(number), alone)

        def empty():
            load = control.GetLoad(self.control_pb2.GetLoadRequest())
            return (load.used_kv_blocks, load.queued_requests) == (0, 0) and load
        load = harness.wait_until(empty, "an empty server")
        server.process.terminate()
        self.assertEqual(server.end(), 0)
        return int(load.attributes["preemptions"])

    def compare(self, got, alone):
        self.assertIsNotNone(got, "no answer")
        self.assertEqual([token.token_id for token in got], [told[0] for told in alone])
        for token, (_, logprob, top) in zip(got, alone):
            self.assertEqual(token.logprob, logprob)
            self.assertEqual([(one.token_id, one.logprob) for one in token.candidates], top)

    def test_the_order_changes_no_bit(self):
        preemptions = 0
        for number, ranks in enumerate((2, 3) if breadth.NARROW else (1, 2, 3)):
            settings = SETTINGS[(number + breadth.day()) % len(SETTINGS)]
            preemptions += self.serve_all(ranks, "priority", settings, kill=ranks == 2)
        preemptions += self.serve_all(2, "fcfs", SETTINGS[1], kill=False)
        self.assertGreater(preemptions, 0)


if __name__ == "__main__":
    harness.main()
