#!/usr/bin/env python3
"""Asks Hugging Face tokenizers what small variants of tokenizer.json give on nasty texts.

    pip install tokenizers==0.23.*
    python3 tests/models/make_tokenizer_cases.py > tests/data/tokenizer/cases.json

The output is {"models": {name: model}, "texts": [...], "cases": [{"name", "model", "options",
"parts", "encode", "decode"}]}. A case's tokenizer.json is {**parts, "model": {**models[model],
**options}}. encode[i] is [ids with special, ids without] of texts[i], and decode is [[ids, text,
text without special], ...]; null means the same as the entry before it.
"""
import json
import random
import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

CORPUS = [
    "the quick brown fox jumps over the lazy dog, it's 12 345 times; the theme then there",
    "Hello world! hello  world?  I'll say: don't you've we're 2024-11-21 café naïve über",
    "日本語のテキスト 한국어 русский текст 👍🏽 aaaa bbbb  aaaa\n\n\tindent\r\n  end",
] * 3

TEXTS = [
    "", " ", "  ", "\n", "a", " a", "a ", "  a  b  ", "the quick", "Hello world", "hello  world",
    "\t\tx\n\n y\r\n",
    "it's I'LL don't", "12345 6789", "a1b22c333", "x²½Ⅷ٣①y", "日本語 한국어",
    "café cafe\u0301 e\u0323\u0301 ﬁ Å", "👍🏽👩‍👩‍👧",
    "<s>", "<s>hi</s>", "a<s>b", "a <s> b", "  <s>  x  </s>  ", "<s><s>", "<mask>", "a<mask>b",
    "a <mask> b", "[X]", "a[X]b",
    "a [X] b", "x  [X]  [X]  y", "Day day DAY", "yesterday Day", "a-b--c---d", "--a--", "-",
    "a, b; c.", "...?!", "▁a ▁▁b",
    "▁", "a▁b", "\u00a0x\u2003y\u3000z\u180ew\u200b", "İSTANBUL ßẞ ǅ ΑΣ", "\x00\x01\x7f",
    "<0x41> <0x0A>", "ab" * 20, "aaaaaaaa",
    "the\u2028theme\u0085then", "q\ufffdz", "<end of turn>", "a<end of turn>b <end  of turn>",
    "_w_ w_x é<mask>é ²<mask>",
    "don’t ‘x’ “y”", "0 1 22 333 4444 55555", "CamelCaseAndUPPER lower", "   lead", "trail   ",
    "\u0301x", "한국",
]

BYTE_SPLIT = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train(pre, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre
    alphabet = (pre_tokenizers.ByteLevel.alphabet()
                if isinstance(pre, pre_tokenizers.ByteLevel) else [])
    return tokenizer, alphabet


def byte_model():
    tokenizer, alphabet = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, special_tokens=["<s>", "</s>"],
                                    initial_alphabet=alphabet, show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def character_model():
    """Pieces with the metaspace, most characters of Latin text, and bytes for the rest."""
    tokenizer, _ = train(pre_tokenizers.Metaspace(prepend_scheme="never"))
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokenizer.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(
        vocab_size=len(specials) + 90, special_tokens=specials, show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    model["unk_token"] = "<unk>"
    return model


def few_bytes(model):
    """Has the bytes up to 0xC3 only.

    Characters with other bytes become unk, but é can be written in bytes.
    """
    vocab = {piece: i for i, piece in enumerate(
        p for p, _ in sorted(model["vocab"].items(), key=lambda e: e[1])
        if not (len(p) == 6 and p[:3] == "<0x" and p > "<0xC3>"))}
    return {**model, "vocab": vocab}


def added(content, **flags):
    token = {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    return {**token, **flags}


S = [added("<s>"), added("</s>")]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True}
BYTES_ONLY = {**BYTE_LEVEL, "use_regex": False}
LLAMA_DECODER = {"type": "Sequence",
                 "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                              {"type": "ByteFallback"}, {"type": "Fuse"},
                              {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
LLAMA_NORMALIZER = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
SPACES_TO_META = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def metaspace(scheme, do_split=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": do_split}


def template(*parts):
    single = [{"Sequence": {"id": "A", "type_id": 0}} if p == "$"
              else {"SpecialToken": {"id": p, "type_id": 0}} for p in parts]
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {
        t: {"id": t, "ids": [i], "tokens": [t]} for i, t in enumerate(["<s>", "</s>"])}}


def variants():
    byte = lambda name, pre, **more: (name, "byte", more.pop("options", {}),
                                      {"added_tokens": S, "normalizer": None, "pre_tokenizer": pre,
                                       "post_processor": None, "decoder": BYTE_LEVEL, **more})
    char = lambda name, model="character", **more: (
        name, model, more.pop("options", {"byte_fallback": True, "fuse_unk": True}),
        {"added_tokens": [added("<unk>"), *S], "normalizer": None, "pre_tokenizer": None,
         "post_processor": None, "decoder": LLAMA_DECODER, **more})

    yield byte("byte-level", BYTE_LEVEL)
    yield byte("prefix-space", {**BYTE_LEVEL, "add_prefix_space": True})
    yield byte("no-regex", BYTES_ONLY)
    yield byte("ignore-merges", BYTE_LEVEL, options={"ignore_merges": True})
    yield byte("digits", sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL))
    yield byte("digit-runs", sequence({"type": "Digits", "individual_digits": False},
                                      {**BYTE_LEVEL, "add_prefix_space": True}))
    for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        yield byte(f"split-string-{behavior}",
                   sequence(split({"String": "-"}, behavior), BYTES_ONLY))
        yield byte(f"split-regex-{behavior}-inverted",
                   sequence(split({"Regex": r"\w+"}, behavior, True), BYTES_ONLY))
    yield byte("split-gpt2-like", sequence(split({"Regex": BYTE_SPLIT}, "Isolated"), BYTES_ONLY))
    yield byte("split-possessive",
               sequence(split({"Regex": r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
                                        r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s+$|\s++"},
                              "Isolated"), BYTES_ONLY))
    yield byte("split-o200k-like", sequence(split({
        "Regex": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                 r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
                 r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"}, "Isolated"), BYTES_ONLY))
    yield byte("split-han",
               sequence(split({"Regex": r"[\p{Han}\p{Hiragana}ァ-ヿ]+|[[:upper:]]|\bthe\b|\h{2}"},
                              "Isolated"), BYTES_ONLY))
    yield byte("split-empty-matches",
               sequence(split({"Regex": r"x*|(?=[A-Z])"}, "Isolated"), BYTES_ONLY))
    yield byte("split-lines",
               sequence(split({"Regex": r"^.|.$|(?m:d.)"}, "MergedWithNext"), BYTES_ONLY))
    yield byte("punctuation", sequence({"type": "Punctuation", "behavior": "Isolated"}, BYTES_ONLY))
    yield byte("whitespace", sequence({"type": "Whitespace"}, BYTES_ONLY))
    yield byte("whitespace-split", sequence({"type": "WhitespaceSplit"}, BYTES_ONLY))
    yield byte("nfc", BYTE_LEVEL, normalizer={"type": "NFC"})
    yield byte("nfkc-lowercase", BYTE_LEVEL,
               normalizer={"type": "Sequence",
                           "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]})
    yield byte("nfd-strip", BYTE_LEVEL, normalizer={"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "Strip", "strip_left": True, "strip_right": True}]})
    yield byte("nfkd", BYTE_LEVEL, normalizer={"type": "NFKD"})
    yield byte("replace-regex", BYTE_LEVEL,
               normalizer={"type": "Replace", "pattern": {"Regex": r"\s{2,}|[aeiou]"},
                           "content": "_"})
    yield byte("bos", BYTE_LEVEL, post_processor=template("<s>", "$"))
    yield byte("bos-eos", BYTE_LEVEL,
               post_processor={"type": "Sequence",
                               "processors": [BYTE_LEVEL, template("<s>", "$", "</s>")]})
    yield byte("roberta", BYTE_LEVEL,
               post_processor={"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0],
                               "trim_offsets": True, "add_prefix_space": True})
    tokens = [*S, added("<mask>", lstrip=True), added("[X]", lstrip=True, rstrip=True),
              added("day", single_word=True),
              added("<end of turn>", special=False), added("  ", special=False)]
    yield byte("added-raw", BYTE_LEVEL, added_tokens=tokens)
    tokens = [*S, added("<mask>", rstrip=True),
              added("[X]", single_word=True, normalized=True, special=False),
              added("Day", normalized=True, special=False),
              added("cafe\u0301", normalized=True, special=False),
              added("yester", normalized=True, special=True)]
    yield byte("added-normalized", BYTE_LEVEL, added_tokens=tokens,
               normalizer={"type": "Sequence",
                           "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]})
    tokens = [*S, added("<mask>", single_word=True), added("w", single_word=True, lstrip=True),
              added("\n", rstrip=True, lstrip=True), added(" a", special=False), added("aa"),
              added("aaa")]
    yield byte("added-overlapping", BYTE_LEVEL, added_tokens=tokens)
    yield byte("no-decoder", BYTE_LEVEL, decoder=None)

    yield char("llama", normalizer=LLAMA_NORMALIZER, post_processor=template("<s>", "$"))
    yield char("fallback-no-fuse", normalizer=LLAMA_NORMALIZER,
               options={"byte_fallback": True, "fuse_unk": False})
    yield char("unk", normalizer=LLAMA_NORMALIZER,
               options={"byte_fallback": False, "fuse_unk": False})
    yield char("unk-fused", normalizer=LLAMA_NORMALIZER,
               options={"byte_fallback": False, "fuse_unk": True})
    yield char("no-unk", normalizer=LLAMA_NORMALIZER,
               options={"byte_fallback": False, "fuse_unk": False, "unk_token": None})
    yield char("few-bytes", "few-bytes", normalizer=LLAMA_NORMALIZER)
    yield char("few-bytes-no-fuse", "few-bytes", normalizer=LLAMA_NORMALIZER,
               options={"byte_fallback": True, "fuse_unk": False})
    tokens = [added("<unk>"), added("<s>", normalized=True),
              added("</s>", normalized=True, special=True),
              added("<mask>", normalized=True, lstrip=True, special=False)]
    yield char("llama-normalized-specials", normalizer=LLAMA_NORMALIZER, added_tokens=tokens)
    for scheme in ["always", "first", "never"]:
        for do_split in [True, False]:
            pre = metaspace(scheme, do_split)
            yield char(f"metaspace-{scheme}-{do_split}", pre_tokenizer=pre, decoder=pre)
    yield char("metaspace-first-strip", pre_tokenizer=metaspace("first"),
               normalizer={"type": "Strip", "strip_left": True, "strip_right": False})
    yield char("metaspace-first-replace", pre_tokenizer=metaspace("first"),
               normalizer={"type": "Replace", "pattern": {"Regex": "^(a|th)"}, "content": "x"})
    yield char("gemma-like", normalizer=SPACES_TO_META,
               pre_tokenizer=split({"String": " "}, "MergedWithPrevious"),
               decoder={"type": "Sequence", "decoders": LLAMA_DECODER["decoders"][:3]})
    yield char("strip-end", decoder={"type": "Sequence", "decoders": [
        LLAMA_DECODER["decoders"][0], {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": "e", "start": 2, "stop": 1}]}, normalizer=LLAMA_NORMALIZER)
    yield char("strip-each",
               decoder={"type": "Sequence",
                        "decoders": [{"type": "Strip", "content": "▁", "start": 1, "stop": 0},
                                     {"type": "ByteFallback"}]}, normalizer=LLAMA_NORMALIZER)
    yield char("replace-after-fuse", decoder={"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Replace", "pattern": {"String": "▁th"}, "content": "[TH]"},
        {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}]},
               normalizer=LLAMA_NORMALIZER)
    yield char("byte-level-after-fallback", decoder={"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, BYTE_LEVEL,
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]})
    yield char("replace-each-regex", decoder={"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"Regex": "^▁|e$"}, "content": "."},
        {"type": "ByteFallback"}]}, normalizer=LLAMA_NORMALIZER)


def answer(name, model, options, parts, known, rng):
    full = {"version": "1.0", "truncation": None, "padding": None, **parts,
            "model": {**known[model], **options}}
    tokenizer = Tokenizer.from_str(json.dumps(full))
    size = tokenizer.get_vocab_size()
    # The ids that the library assigns. The ids in the file are checked against these.
    tokens = []
    for token in parts["added_tokens"]:
        tokens.append({**token, "id": tokenizer.token_to_id(token["content"])})
    encode, decode = [], []
    def pair(whole, bare):
        return [whole, None if bare == whole else bare]

    for text in TEXTS:
        encode.append(pair(tokenizer.encode(text).ids,
                           tokenizer.encode(text, add_special_tokens=False).ids))
    for _ in range(14):
        ids = [rng.randrange(size + 2) for _ in range(rng.choice([1, 3, 9]))]
        if rng.random() < 0.5:
            ids = [rng.randrange(3, 261) for _ in ids]
        if rng.random() < 0.3:
            text = rng.choice(TEXTS)
            ids = tokenizer.encode(text).ids
        decode.append([ids, *pair(tokenizer.decode(ids, skip_special_tokens=False),
                                  tokenizer.decode(ids, skip_special_tokens=True))])
    return {"name": name, "model": model, "options": options,
            "parts": {**parts, "added_tokens": tokens}, "encode": encode, "decode": decode}


def main():
    rng = random.Random(20261121)
    character = character_model()
    known = {"byte": byte_model(), "character": character, "few-bytes": few_bytes(character)}
    cases = []
    for variant in variants():
        try:
            cases.append(answer(*variant, known, rng))
        except BaseException as error:  # the library panics if a Rust index is out of range
            print(f"{variant[0]}: left out: {error}", file=sys.stderr)
    json.dump({"models": known, "texts": TEXTS, "cases": cases},
              sys.stdout, ensure_ascii=True, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
