#!/usr/bin/env python3
"""Writes a checkpoint of random bf16 weights in a known shape, for speed measurements only.

    bench/make_random_model.py OUT_DIR [--shape tinyllama-1.1b]

It needs numpy (Debian: python3-numpy). Only the number of bytes matters, because decoding one token
reads every weight once. Weights are small normals, so that activations stay finite through all
layers. There is no tokenizer, because benches take token ids.
"""
import argparse
import json
import struct
from pathlib import Path

import numpy as np

SHAPES = {
    # hidden, layers, heads, kv heads, intermediate, vocabulary, context
    "tinyllama-1.1b": (2048, 22, 32, 4, 5632, 32000, 2048),
    "llama3-8b": (4096, 32, 32, 8, 14336, 128256, 8192),
    "smollm2-135m": (576, 30, 9, 3, 1536, 49152, 2048),
    "llama-tiny": (256, 4, 8, 4, 704, 4096, 512),
    "wide-vocabulary": (32, 1, 2, 1, 64, 131072, 512),
}


def tensors(hidden, layers, heads, kv_heads, intermediate, vocab):
    """(name, shape) of every tensor, in file order."""
    head = hidden // heads
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (hidden,)
        yield p + "self_attn.q_proj.weight", (heads * head, hidden)
        yield p + "self_attn.k_proj.weight", (kv_heads * head, hidden)
        yield p + "self_attn.v_proj.weight", (kv_heads * head, hidden)
        yield p + "self_attn.o_proj.weight", (hidden, heads * head)
        yield p + "post_attention_layernorm.weight", (hidden,)
        yield p + "mlp.gate_proj.weight", (intermediate, hidden)
        yield p + "mlp.up_proj.weight", (intermediate, hidden)
        yield p + "mlp.down_proj.weight", (hidden, intermediate)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tinyllama-1.1b")
    args = parser.parse_args()
    hidden, layers, heads, kv_heads, intermediate, vocab, context = SHAPES[args.shape]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
         "torch_dtype": "bfloat16",
         "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
         "num_key_value_heads": kv_heads, "intermediate_size": intermediate, "vocab_size": vocab,
         "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}, indent=2) + "\n")

    header, offset = {}, 0
    for name, shape in tensors(hidden, layers, heads, kv_heads, intermediate, vocab):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    rng = np.random.default_rng(1)
    # One pool of normals is reused from random positions, because drawing
    # 10^9 of them would take longer than the bench.
    pool = rng.standard_normal(1 << 22, dtype=np.float32)
    with (args.out / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(hidden, layers, heads, kv_heads, intermediate, vocab):
            count = int(np.prod(shape))
            if len(shape) == 1:
                file.write(bf16(np.ones(count)).tobytes())
                continue
            scaled = bf16(pool / np.sqrt(shape[1]))
            while count > 0:
                begin = int(rng.integers(0, len(scaled) // 2))
                part = scaled[begin:begin + min(count, len(scaled) - begin)]
                file.write(part.tobytes())
                count -= len(part)
    print(f"{args.out}: {args.shape}, {offset / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
