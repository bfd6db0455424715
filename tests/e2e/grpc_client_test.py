"""A client in another language, with stubs of its own, against a running server.

usage: grpc_client_test.py [HOST:PORT MODEL]

Generates Python stubs from proto/ into a temporary folder (protoc and grpc_python_plugin of Debian)
and talks to the server as any user would. MODEL is the served name. Without arguments it starts a
server of the program under test over two ranks and the bundled model. The exit code is 77 (skipped)
if Python has no grpc.
"""

import glob
import os
import subprocess
import sys
import tempfile
import threading
import unittest

try:
    import grpc
except ImportError:
    print("skipped: this Python has no grpc (Debian: python3-grpcio)")
    sys.exit(77)

import harness

PROTO_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")
ADDRESS, MODEL = "", ""


def make_stubs(folder):
    protos = [os.path.relpath(path, PROTO_DIR)
              for path in glob.glob(os.path.join(PROTO_DIR, "openengine/v1/*.proto"))]
    subprocess.run(
        ["protoc", f"-I{PROTO_DIR}", f"--python_out={folder}", f"--grpc_out={folder}",
         "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin", "google_rpc.proto", *protos],
        check=True)
    sys.path.insert(0, folder)


class ClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from openengine.v1 import control_pb2, generate_pb2, services_pb2_grpc
        import google_rpc_pb2
        cls.control_pb2, cls.generate_pb2, cls.google_rpc = (control_pb2, generate_pb2,
                                                             google_rpc_pb2)
        cls.channel = grpc.insecure_channel(ADDRESS, options=[("grpc.enable_http_proxy", 0)])
        cls.inference = services_pb2_grpc.InferenceStub(cls.channel)
        cls.control = services_pb2_grpc.ControlStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()

    def request(self, **fields):
        request = self.generate_pb2.GenerateRequest(**fields)
        if not request.WhichOneof("input"):
            request.prompt = "Once upon a time"
        return request

    def limited(self, max_tokens, **fields):
        stopping = self.generate_pb2.StoppingOptions(max_tokens=max_tokens, ignore_eos=True)
        sampling = self.generate_pb2.SamplingParams(temperature=0)
        return self.request(stopping=stopping, sampling=sampling, **fields)

    def collect(self, request, **call):
        """Collects (ids, text, last event), and checks what every successful stream must fulfil."""
        events = list(self.inference.Generate(request, timeout=harness.GUARD, **call))
        ids, text = [], ""
        for event in events:
            last = event is events[-1]
            self.assertEqual(event.WhichOneof("event"), "finished" if last else "token")
            self.assertEqual(event.HasField("usage"), last)
            self.assertEqual(event.request_id, events[0].request_id)
            body = event.finished if last else event.token
            self.assertTrue(body.HasField("output_index"))
            if not last:
                ids += [token.token_id for token in event.token.tokens]
                text += event.token.text
        self.assertEqual(events[-1].usage.completion_tokens, len(ids))
        return ids, text, events[-1]

    def refused(self, request, code, **call):
        """The error of the call.

        Checks its code, that nothing was sent before it, and its details.
        """
        events = []
        with self.assertRaises(grpc.RpcError) as caught:
            for event in self.inference.Generate(request, timeout=harness.GUARD, **call):
                events.append(event)
        error = caught.exception
        self.assertEqual(error.code(), code, error.details())
        self.assertEqual(events, [])
        trailer = dict(error.trailing_metadata()).get("grpc-status-details-bin")
        self.assertIsNotNone(trailer)
        status = self.google_rpc.Status.FromString(trailer)
        self.assertEqual(status.message, error.details())
        return status

    def test_streams_text(self):
        ids, text, last = self.collect(self.limited(12))
        self.assertEqual(len(ids), 12)
        self.assertTrue(text)
        self.assertEqual(last.finished.reason, self.generate_pb2.FINISH_REASON_LENGTH)
        self.assertEqual(last.usage.total_tokens, last.usage.prompt_tokens + 12)

    def test_the_same_ids_give_the_same_answer(self):
        ids, _, _ = self.collect(self.limited(8))
        again, _, _ = self.collect(self.limited(8))
        self.assertEqual(ids, again)
        by_ids = self.limited(4, token_ids=self.generate_pb2.TokenIds(ids=ids))
        _, _, last = self.collect(by_ids)
        self.assertEqual(last.usage.prompt_tokens, len(ids))

    def test_requests_without_a_seed_differ(self):
        stopping = self.generate_pb2.StoppingOptions(max_tokens=24, ignore_eos=True)
        answers = [b"".join(event.SerializeToString() for event in self.inference.Generate(
            self.request(request_id="seedless", stopping=stopping,
                         sampling=self.generate_pb2.SamplingParams(temperature=1))))
                   for _ in range(2)]
        self.assertNotEqual(*answers)

    def test_a_stop_id_is_named(self):
        ids, _, _ = self.collect(self.limited(8))
        request = self.limited(8)
        request.stopping.conditions.add().stop_token_id = ids[3]
        stopped, _, last = self.collect(request)
        self.assertEqual(stopped, ids[:ids.index(ids[3]) + 1])
        self.assertEqual(last.finished.reason, self.generate_pb2.FINISH_REASON_STOP)
        self.assertEqual(last.finished.stop_match.stop_token_id, ids[3])

    def test_logprobs(self):
        request = self.limited(4)
        request.response.return_output_logprobs = True
        request.response.output_candidates.top_n = 3
        for event in self.inference.Generate(request, timeout=harness.GUARD):
            for token in event.token.tokens:
                self.assertLessEqual(token.logprob, 0)
                self.assertEqual(token.rank, 1, "greedy takes the most likely")
                self.assertEqual(len(token.candidates), 3)
                self.assertEqual(token.candidates[0].token_id, token.token_id)
                self.assertEqual(token.candidates[0].logprob, token.logprob)
                values = [candidate.logprob for candidate in token.candidates]
                self.assertEqual(values, sorted(values, reverse=True))

    def test_refusals(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        self.refused(self.request(model="no-such-model"), grpc.StatusCode.NOT_FOUND)
        self.refused(self.request(token_ids=self.generate_pb2.TokenIds(ids=[4000000000])), invalid)
        self.refused(self.request(token_ids=self.generate_pb2.TokenIds(ids=[])), invalid)
        self.refused(self.request(prompt="word " * 400000), invalid)
        self.refused(self.request(), invalid, metadata=[("openengine-priority", "high")])
        bad = self.request(sampling=self.generate_pb2.SamplingParams(temperature=-1))
        status = self.refused(bad, invalid)
        violations = self.google_rpc.BadRequest()
        self.assertTrue(any(detail.Unpack(violations) for detail in status.details))
        self.assertEqual(violations.field_violations[0].field, "sampling.temperature")

    def test_many_streams_at_once_equal_one_alone(self):
        alone, _, _ = self.collect(self.limited(16))
        results = [None] * 12

        def work(index):
            results[index] = self.collect(self.limited(16))[0]

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [alone] * len(results))

    def test_cancel_frees_the_blocks(self):
        call = self.inference.Generate(self.limited(1000000), timeout=harness.GUARD)
        next(call)
        call.cancel()

        def is_idle() -> bool:
            load = self.control.GetLoad(self.control_pb2.GetLoadRequest(), timeout=harness.GUARD)
            return load.running_requests == 0 and load.used_kv_blocks == 0
        harness.wait_until(is_idle, "an idle server")

    def test_abort(self):
        # If the machine stalls, the answer may be over before the abort comes. Then try again.
        for attempt in range(5):
            name = f"to-abort-{attempt}"
            call = self.inference.Generate(self.limited(1000000, request_id=name),
                                           timeout=harness.GUARD)
            next(call)
            done = self.control.Abort(self.control_pb2.AbortRequest(request_id=name),
                                      timeout=harness.GUARD)
            last = list(call)[-1]
            if done.status == self.control_pb2.ABORT_STATUS_ABORTED:
                break
        self.assertEqual((done.status, last.finished.reason),
                         (self.control_pb2.ABORT_STATUS_ABORTED,
                          self.generate_pb2.FINISH_REASON_CANCELLED))

    def test_control(self):
        info = self.control.GetServerInfo(self.control_pb2.GetServerInfoRequest(), timeout=harness.GUARD)
        self.assertEqual(info.engine_name, "shoal")
        self.assertEqual(list(info.supported_models), [MODEL])
        self.assertEqual(info.schema_revision, 1)
        model = self.control.GetModelInfo(self.control_pb2.GetModelInfoRequest(model=MODEL),
                                          timeout=harness.GUARD)
        self.assertEqual(model.served_model_name, MODEL)
        self.assertGreater(model.max_context_length, 1)
        health = self.control.Health(self.control_pb2.HealthRequest(include_inference_probe=True),
                                     timeout=harness.GUARD)
        self.assertEqual(health.state, self.control_pb2.HEALTH_STATE_READY, health)
        self.assertIn("inference_probe", [check.name for check in health.checks])

    def test_standard_health(self):
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check")  # works with raw bytes
        for service in (b"", b"openengine.v1.Inference", b"openengine.v1.Control"):
            request = b"\x0a" + bytes([len(service)]) + service
            status = check(request, timeout=harness.GUARD)
            self.assertEqual(status, b"\x08\x01", f"{service}: the status SERVING")
        with self.assertRaises(grpc.RpcError) as caught:
            check(b"\x0a\x04none", timeout=harness.GUARD)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection(self):
        info = self.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        answer = next(info(iter([b"\x3a\x00"]), timeout=harness.GUARD))  # the request list_services
        self.assertIn(b"openengine.v1.Inference", answer)
        self.assertIn(b"openengine.v1.Control", answer)


def run_tests(address, model):
    global ADDRESS, MODEL
    ADDRESS, MODEL = address, model
    with tempfile.TemporaryDirectory() as folder:
        make_stubs(folder)
        return unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result.wasSuccessful()


def run_with_own_server():
    server = harness.Server(harness.DEMO, "--tensor-parallel-size", 2)
    try:
        ready = server.wait_ready()
        return run_tests(ready["grpc"], ready["model"])
    finally:
        server.kill()


def main():
    if len(sys.argv) == 3:
        good = run_tests(*sys.argv[1:])
    elif len(sys.argv) == 1:
        good = run_with_own_server()
    else:
        sys.exit(__doc__)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
