#!/usr/bin/env python3
"""Writes tests/data/rope/cases.json: rotary frequencies and angles as transformers computes them.

    python3 -m venv build/venv && build/venv/bin/pip install torch==2.6.0 transformers==4.57.1 numpy
    build/venv/bin/python tests/models/make_rope_cases.py

Each case holds a config.json, the inverse frequencies, the attention factor, and cos and sin at
some positions, all as float32 values written exactly.
"""
import json
import pathlib

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)

# name, head_dim, rope_theta, max_position_embeddings, rope_scaling
CASES = [
    ("llama-2-7b", 128, 10000.0, 4096, None),
    ("smollm2-135m", 64, 100000, 8192, None),
    ("mistral-7b-v0.3", 128, 1e6, 32768, None),
    ("head-dim-6", 6, 10000.0, 128, None),
    ("linear", 64, 10000.0, 8192, dict(rope_type="linear", factor=2.5)),
    ("llama-3.1-8b", 128, 500000.0, 131072, LLAMA3),
    ("llama-3.2-1b", 64, 500000.0, 131072, LLAMA3 | dict(factor=32.0)),
    ("qwen2.5-yarn", 128, 1e6, 32768, YARN),
    ("yarn-no-truncation", 64, 150000.0, 131072,
     YARN | dict(factor=32.0, original_max_position_embeddings=4096,
                 beta_fast=32.0, beta_slow=1.0, truncate=False)),
    ("yarn-mscale", 64, 10000.0, 163840,
     YARN | dict(factor=40.0, original_max_position_embeddings=4096, mscale=1.0,
                 mscale_all_dim=0.707, beta_fast=24.0, beta_slow=2.0)),
    ("yarn-attention-factor", 32, 1e6, 32768, YARN | dict(attention_factor=1.25)),
    ("yarn-original-from-maximum", 80, 1e6, 32768, dict(rope_type="yarn", factor=2.0)),
    ("yarn-one-point-range", 8, 10000.0, 16,
     dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=8)),
]
POSITIONS = [1, 4095, 131071]


def floats(tensor):
    # The shortest decimal that reads back as the same float32.
    return [float(str(value)) for value in tensor.to(torch.float32).flatten().numpy()]


def make_case(name, head_dim, theta, max_positions, scaling):
    heads = 4
    fields = dict(hidden_size=heads * head_dim, num_attention_heads=heads,
                  num_key_value_heads=heads, rope_theta=theta,
                  max_position_embeddings=max_positions, rope_scaling=scaling)
    rope = LlamaRotaryEmbedding(LlamaConfig(**fields))
    half = head_dim // 2
    cos, sin = rope(torch.zeros(1, dtype=torch.float32), torch.tensor([POSITIONS]))
    return dict(name=name, config=dict(model_type="llama", **fields), head_dim=head_dim,
                inv_freq=floats(rope.inv_freq),
                attention_factor=float(torch.tensor(rope.attention_scaling)),
                angles=[dict(position=position, cos=floats(cos[0, i, :half]),
                             sin=floats(sin[0, i, :half])) for i, position in enumerate(POSITIONS)])


def main():
    target = pathlib.Path(__file__).resolve().parent.parent / "data" / "rope" / "cases.json"
    cases = [json.dumps(make_case(*case)) for case in CASES]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("[\n" + ",\n".join(cases) + "\n]\n")


main()
