#!/usr/bin/env python3
"""Streams a completion from a running server: client.py HOST:PORT PROMPT (see README.md)."""
import sys

import grpc
from openengine.v1 import generate_pb2 as wire, services_pb2_grpc as services

address, prompt = sys.argv[1:]
request = wire.GenerateRequest(prompt=prompt, sampling=wire.SamplingParams(temperature=0.8, seed=5),
                               stopping=wire.StoppingOptions(max_tokens=60))
with grpc.insecure_channel(address) as channel:
    try:
        for event in services.InferenceStub(channel).Generate(request, timeout=60):
            print(event.token.text, end="", flush=True)  # an event that is not a token has no text
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
print(f"\n({event.usage.completion_tokens} tokens, "
      f"{wire.FinishReason.Name(event.finished.reason)})")
