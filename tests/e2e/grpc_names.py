"""What a server's gRPC port serves, as gRPC's reflection tells it, for tests that must miss nothing."""
import grpc
from google.protobuf import descriptor_pb2

import harness

# gRPC has this service built in and does not describe it.
HEALTH = {"/grpc.health.v1.Health/Check": (False, False), "/grpc.health.v1.Health/Watch": (False, True)}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def fields(data: bytes):
    """The fields of a message with lengths: (number, bytes). Those of other kinds are left out."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        if key & 7 == 2:
            size = varint()
            yield key >> 3, data[at:at + size]
            at += size
        else:
            varint()


def inside(data: bytes, *path: int) -> list[bytes]:
    """The values at the path of field numbers."""
    for number in path[:1]:
        return [end for found, value in fields(data) if found == number
                for end in inside(value, *path[1:])]
    return [data]


def methods(channel: grpc.Channel) -> dict[str, tuple[bool, bool]]:
    """"/package.Service/Method" of all that there is, and whether client and server stream."""
    ask = channel.stream_stream(REFLECTION)

    def reflect(request: bytes) -> bytes:
        return next(ask(iter([request]), timeout=harness.GUARD))
    found = dict(HEALTH)
    for name in inside(reflect(b"\x3a\x00"), 6, 1, 1):
        for file in inside(reflect(b"\x22" + bytes([len(name)]) + name), 4, 1):
            described = descriptor_pb2.FileDescriptorProto.FromString(file)
            for service in described.service:
                if f"{described.package}.{service.name}" == name.decode():
                    found |= {f"/{name.decode()}/{method.name}":
                              (method.client_streaming, method.server_streaming)
                              for method in service.method}
        assert any(one.startswith(f"/{name.decode()}/") for one in found), f"{name} is not described"
    return found


def invoke(channel: grpc.Channel, name: str, streams: tuple[bool, bool],
           metadata=()) -> grpc.StatusCode:
    """Calls a method with an empty message, and returns the status."""
    kind = "_".join("stream" if one else "unary" for one in streams)
    method = getattr(channel, kind)(name)
    try:
        answer = method(iter([b""]) if streams[0] else b"", timeout=harness.GUARD,
                        metadata=metadata)
        if streams[1]:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK
