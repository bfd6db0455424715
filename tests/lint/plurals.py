"""Numbers in messages: "1 ranks" comes of a number beside a noun in the plural. counted()
(runtime/base/counted.h) writes both. The verb agrees with the number too: "1 rank fit into".
"""
import re

NOUNS = ("ranks", "blocks", "tokens", "conditions", "files", "GPUs", "connections", "requests",
         "lines", "entries", "values", "layers", "heads", "restarts", "channels", "inodes",
         "arguments")
ADJECTIVES = ("other", "open", "idle", "free", "own", "attention", "prompt", "KV")
# What stands in front of the comma is the number. A constant is none that may be 1, and "tokens/s"
# is a unit.
BESIDE = re.compile(r'(?P<number>[\w\].)]+),\s*" (?:(?:' + "|".join(ADJECTIVES) + r") )?(?P<noun>" +
                    "|".join(NOUNS) + r")\b(?!/)")
CONSTANT = re.compile(r"\bk[A-Z]\w*\)?$")
VERBS = ("are", "were", "have", "do", "fit", "need", "use")
# In front of the comma may be a name or counted(). A call may be anything, most often a size.
VERB = re.compile(r'(?P<number>[\w\]]+|\bcounted\((?:[^()]|\([^()]*\))*\)),\s*" (?P<noun>' +
                  "|".join(VERBS) + r")\b")
PLACES = ("kernels/", "models/", "runtime/", "server/")
# "path: noun" of numbers that may stand so, with the reason.
PLURALS = {
    "models/device_limits.cc: are": 'of two numbers: "5 heads and 1 KV head are"',
    "runtime/comm/slots/shm_communicator.cc: are": "bytes of a pool",
    "runtime/memory/shm_segment.cc: are": "bytes of a segment",
    "runtime/transport/needs/budget.cc: files": "a process that runs has three",
    "runtime/transport/needs/nccl_budget.cc: ranks": "settings that a test has made up",
    "runtime/transport/report_text.cc: use": "one rank has a sentence of its own",
    "runtime/transport/rungs/nccl_rungs.cc: ranks": "of those that share, which are two or more",
    "server/commands/fronts.cc: tokens": 'of two numbers: "5 + 12 tokens"',
    "server/commands/needs_table.cc: ranks": "of a list that begins at 2",
    "server/commands/request_lines.cc: are": "one that is wrong is named alone",
    "server/commands/secret_files.cc: have": "two files",
    "server/http/http_server.cc: fit": "bytes of an address",
    "server/http/routes.cc: are": "bytes of a body",
    "server/intake/request_log.cc: tokens": 'of two numbers: "5 + 12 tokens"',
    "server/serving/generation_request.cc: are": "characters for a whole model length",
    "server/serving/inference_loop.cc: tokens": "bench/mixed_load.py reads this line",
}


def numbers_beside_plurals(text: str) -> list[tuple[int, str]]:
    """(line, noun or verb) of each."""
    return [(text.count("\n", 0, match.start("noun")) + 1, match["noun"])
            for rule in (BESIDE, VERB) for match in rule.finditer(text)
            if not CONSTANT.search(match["number"])]


def check_plurals(path: str, text: str) -> list[str]:
    if not path.startswith(PLACES):
        return []
    return [f"line {line}: a number beside {noun!r} may be 1: use counted()"
            for line, noun in numbers_beside_plurals(text) if f"{path}: {noun}" not in PLURALS]


def stale_plurals(texts: dict[str, str]) -> list[str]:
    """Exceptions that are no longer needed. texts: path to text, for the files that exist."""
    return [f"tests/lint/plurals.py: {entry} is listed, and does not stand there"
            for entry in PLURALS
            if entry.split(": ")[1] not in
            {noun for _, noun in numbers_beside_plurals(texts.get(entry.split(": ")[0], ""))}]
