"""What ranks must agree on, one decides: one_decides.py [ROOT]. Prints every clock and every source
of random numbers in the code that computes a step or plans one, and exits with 1 if there is one.

Two ranks never read the same time, and never draw the same number. A rank that does something
else because of either waits in another collective than its peers, or sums other bits. The front
measures and draws: the scheduler gets times as arguments, and ranks get seeds and limits in their
messages (RankStart, ModelStart, StepPlan).

Forbidden are the headers of clocks and random numbers, and the names that read one. What a header
of another folder includes is not followed. A Deadline or a CpuBudget may be handed on, because the
end of either is the end of a request or of the whole group, and never another result; only
looking at one is forbidden here.
"""
import re
import sys
from pathlib import Path

import budgets

FOLDERS = ("kernels", "models", "runtime/engine", "runtime/worker")
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
CLOCK = "a clock"
RANDOM = "random numbers"
INSTEAD = {
    CLOCK: "let the front measure and pass the time in (an argument of the scheduler, a field of "
           "RankStart, ModelStart or StepPlan), or measure in runtime/rank, for people only",
    RANDOM: "let the front draw and send a seed (SamplingParams::seed, RankStart::self_test_seed)",
}
HEADERS = {
    CLOCK: r"(?:\w+/)*(?:chrono(?:\.hpp)?|ctime|time\.h|timeb\.h|timex\.h|timerfd\.h)"
           r"|runtime/base/(?:deadline|running_clock)\.h",
    RANDOM: r"(?:\w+/)*(?:random(?:\.hpp|\.h)?|curand\w*\.(?:h|cuh))",
}
# Strings count too, because assembler is written in them. Comments do not.
NAMES = {
    CLOCK: r"\b(?:clock_gettime|gettimeofday|timespec_get|clock64|globaltimer\w*|cntvct_el0)\b"
           r"|\b(?:_*|__builtin_(?:ia32_)?)(?:rdtscp?|readcyclecounter|rdpmc)\b"
           r"|(?:\bstd|(?<![\w>]))::(?:time|clock)\s*\(|(?<![\w.>:])time\s*\(\s*(?:nullptr|NULL|0|&)"
           r"|(?<![\w.>:])clock\s*\(\s*\)|%%?clock(?:64)?\b"
           r"|\bchrono\b|\b\w*[Cc]lock::now\b|\bRunningClock\b|\bseconds_since\b"
           r"|(?:\.|->)(?:seconds_left|remaining_ms|passed)\s*\(",
    RANDOM: r"\b(?:getrandom|getentropy|arc4random\w*|random_device|mt19937(?:_64)?|minstd_rand0?"
            r"|default_random_engine|ranlux\w+|knuth_b|RAND_bytes|curand\w*)\b"
            r"|(?<![\w.>])s?rand(?:_r|om|om_r)?\s*\(|(?<![\w.>])s?random(?:_r)?\s*\("
            r"|\b[delmn]?(?:rand48|[djlmnp]rand48)(?:_r)?\b"
            r"|/dev/u?random\b|\w*rd(?:rand|seed)\w*",
}
# (file, what is found there): why it decides nothing that ranks must agree on.
EXCEPTIONS = {
    ("models/chat_template/functions.cc", "<ctime>"):
        "strftime lays out a time that the caller gives",
    ("kernels/cuda/machine.cuh", "globaltimer"):
        "ends a kernel's wait for a peer that is gone, and with it the group",
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def without_comments(text: str) -> str:
    """The text, with blanks in place of comments and each part on its original line."""
    def keep(match: re.Match) -> str:
        return re.sub(r"[^\n]", " ", match[0]) if match[0].startswith(("//", "/*")) else match[0]
    return budgets.NO_CODE.sub(keep, text)


def found_in(text: str) -> list[tuple[int, str, str]]:
    """The line of each thing that is forbidden, the thing, and its kind."""
    code = without_comments(text)
    found = []
    for match in INCLUDE.finditer(code):
        for kind, headers in HEADERS.items():
            if re.fullmatch(headers, match[2]):
                end = ">" if match[1] == "<" else '"'
                found.append((match.start(2), f"{match[1]}{match[2]}{end}", kind))
    code = INCLUDE.sub(lambda include: " " * len(include[0]), code)
    for kind, names in NAMES.items():
        found += [(match.start(), match[0], kind) for match in re.finditer(names, code)]
    return [(code.count("\n", 0, at) + 1, what, kind) for at, what, kind in sorted(found)]


def sources(root: Path) -> list[Path]:
    return sorted(file for folder in FOLDERS for file in (root / folder).rglob("*")
                  if file.suffix in SUFFIXES)


def problems(root: Path, exceptions: dict[tuple[str, str], str]) -> list[str]:
    said, used = [], set()
    for file in sources(root):
        path = file.relative_to(root).as_posix()
        for line, what, kind in found_in(file.read_text(errors="replace")):
            if (path, what) in exceptions:
                used.add((path, what))
                continue
            said.append(f"{path}:{line}: {what} is {kind}, and no two ranks see the same: "
                        f"{INSTEAD[kind]}")
    said += [f"{path}: {what} is an exception (EXCEPTIONS), and is not there"
             for path, what in exceptions if (path, what) not in used]
    return said


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    said = problems(root, EXCEPTIONS)
    print("\n".join(said) if said else f"{len(sources(root))} files have neither")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
