"""gRPC reflection alone is enough to call every method, as grpcurl and Postman do.

Nothing here knows the .proto files: messages and methods come from what the server says.
"""
import grpc
import harness
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

# What a method needs to be answered, as JSON. The others are answered with nothing asked.
INFER = """{"model_name": "demo", "parameters": {"max_tokens": {"int64_param": 2}}, "inputs": [
    {"name": "text_input", "datatype": "BYTES", "shape": [1],
     "contents": {"bytes_contents": ["SW4="]}}]}"""
REQUESTS = {
    "openengine.v1.Inference/Generate": '{"prompt": "In", "stopping": {"max_tokens": 2}}',
    "openengine.v1.Control/Abort": '{"all_requests": {}}',
    "inference.GRPCInferenceService/ModelReady": '{"name": "demo"}',
    "inference.GRPCInferenceService/ModelMetadata": '{"name": "demo"}',
    "inference.GRPCInferenceService/ModelConfig": '{"name": "demo"}',
    "inference.GRPCInferenceService/ModelInfer": INFER,
    "inference.GRPCInferenceService/ModelStreamInfer": INFER,
    "vllm.grpc.engine.VllmEngine/Generate": '{"text": "In", "sampling_params": {"max_tokens": 2}}',
}
# The methods that are listed but that this server does not have, each with the reason that it gives.
REASONS = {name: "this server has no LoRA adapters" for name in ("LoadLora", "UnloadLora", "ListLoras")} | \
    {name: "this server publishes no KV events" for name in ("GetKvEventSources", "SubscribeKvEvents")}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def fields(data: bytes):
    """The length-delimited fields of a message, as (number, bytes)."""
    def varint(at):
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if byte < 0x80:
                return value, at

    at = 0
    while at < len(data):
        tag, at = varint(at)
        size, at = varint(at)
        if tag & 7 == 2:
            yield tag >> 3, data[at:at + size]
            at += size


class Reflector:
    """Calls the methods of a server of which nothing is known but its address."""

    def __init__(self, channel):
        self.channel = channel

    def ask(self, field: int, text: str) -> list[tuple[int, bytes]]:
        request = bytes([field << 3 | 2, len(text)]) + text.encode()
        stream = self.channel.stream_stream(REFLECTION)
        return list(fields(next(stream(iter([request]), timeout=harness.GUARD))))

    def services(self) -> list[str]:
        answers = [data for number, data in self.ask(7, "*") if number == 6]
        return [name.decode() for data in answers for number, service in fields(data)
                for name_number, name in fields(service) if number == name_number == 1]

    def service(self, name: str):
        answers = [data for number, data in self.ask(4, name) if number == 4]
        if not answers:
            raise AssertionError(f"{name} does not resolve: {self.ask(4, name)}")
        pool = descriptor_pool.DescriptorPool()
        files = [descriptor_pb2.FileDescriptorProto.FromString(data)
                 for answer in answers for number, data in fields(answer) if number == 1]
        while files:  # a file goes in after those that it imports
            known = {file.name for file in files}
            ready = next(file for file in files if not known & set(file.dependency))
            files.remove(ready)
            pool.Add(ready)
        return pool.FindServiceByName(name)

    def call(self, path: str, text: str = "{}", **values):
        """The answers of a method, "package.Service/Method", and its status code; see try_call."""
        answers, code, _ = self.try_call(path, text, **values)
        return answers, code

    def try_call(self, path: str, text: str = "{}", **values):
        """The answers of a method, its status code, and what it says of it. The request has the fields
        of `text`, which is JSON, and these values."""
        service, name = path.split("/")
        method = self.service(service).FindMethodByName(name)
        request_class, answer_class = (
            message_factory.MessageFactory(method.containing_service.file.pool).GetPrototype(kind)
            for kind in (method.input_type, method.output_type))
        proto = descriptor_pb2.ServiceDescriptorProto()
        method.containing_service.CopyToProto(proto)
        streams = next(one for one in proto.method if one.name == name)
        kind = ("stream" if streams.client_streaming else "unary") + \
            ("_stream" if streams.server_streaming else "_unary")
        stub = getattr(self.channel, kind)(
            "/" + path, request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer_class.FromString)
        request = json_format.Parse(text, request_class(**values))
        try:
            answer = stub(iter([request]) if streams.client_streaming else request,
                          timeout=harness.GUARD)
            if name == "Watch":  # which does not end
                first = next(answer)
                answer.cancel()
                return [first], grpc.StatusCode.OK, ""
            return (list(answer) if streams.server_streaming else [answer]), grpc.StatusCode.OK, ""
        except grpc.RpcError as error:
            return [], error.code(), error.details()


class Reflection(harness.TestCase):
    def setUp(self):
        server = harness.Server(harness.DEMO, "-tp", 2)
        self.addCleanup(server.kill)
        channel = grpc.insecure_channel(server.wait_ready()["grpc"])
        self.addCleanup(channel.close)
        self.reflector = Reflector(channel)

    def test_every_symbol_resolves_and_every_method_can_be_called(self):
        names = [name for name in self.reflector.services() if "reflection" not in name]
        self.assertGreaterEqual(set(names), {
            "openengine.v1.Inference", "openengine.v1.Control", "shoal.v1.Transport",
            "grpc.health.v1.Health", "inference.GRPCInferenceService"})
        paths = [f"{name}/{method.name}" for name in names
                 for method in self.reflector.service(name).methods]
        self.assertLessEqual(set(REQUESTS), set(paths))
        self.assertIn("grpc.health.v1.Health/Watch", paths)
        docs = (harness.ROOT / "docs" / "grpc.md").read_text()
        without = {}
        for path in paths:
            answers, code, why = self.reflector.try_call(path, REQUESTS.get(path, "{}"))
            if code == grpc.StatusCode.UNIMPLEMENTED:
                # gRPC's own answer to a method without a handler has no word of its name.
                method, _, reason = why.partition(": ")
                self.assertEqual(method, path.split("/")[1], why)
                without[method] = reason
                self.assertIn(f"`{method}`", docs)
            else:
                self.assertEqual(code, grpc.StatusCode.OK, f"{path}: {why}")
                self.assertTrue(answers, path)
        self.assertEqual(without, REASONS)

    def test_reflection_describes_itself(self):
        for name in self.reflector.services():
            self.assertTrue(self.reflector.service(name).methods, name)

    def test_a_whole_generation(self):
        generate = "openengine.v1.Inference/Generate"
        self.assertEqual(self.reflector.call(generate), ([], grpc.StatusCode.INVALID_ARGUMENT))
        answers, code = self.reflector.call(
            generate, prompt="In", sampling={"temperature": 0}, stopping={"max_tokens": 8})
        self.assertEqual(code, grpc.StatusCode.OK)
        text = harness.run("generate", harness.DEMO, "--prompt", "In", "--temperature", 0,
                           "--max-tokens", 8).stdout.decode()
        self.assertEqual("".join(answer.token.text for answer in answers), text.rstrip("\n"))
        (report,), code = self.reflector.call("shoal.v1.Transport/GetReport")
        self.assertEqual((report.rung, report.verdict), ("shm", "first"))


if __name__ == "__main__":
    harness.main()
