"""The rules by which one source of the kernels runs on a device and on the emulated one: cuda_rules.py [ROOT].
Prints every violation, and exits with 1 if there is one.

- Launches, block memory and PTX stand in machine.cuh alone, because the emulated device replaces that
  file: no <<<>>>, no cudaLaunchKernel, no __shared__ and no asm elsewhere. machine.cuh has at most 200
  lines of asm.
- No header of CUDA's with instructions of its own (cuda_bf16.h, cuda_fp16.h, cooperative_groups.h,
  mma.h): bf16 and float16 are uint16_t.
- No function of a math library and no approximation (expf, fmaxf, std::sqrt, __expf, __fdividef): they
  round, and treat NaN and zeros, as they like, so the bits would depend on the toolkit. arithmetic.cuh
  has what is allowed, and machine.cuh has greater().
- Both machine.cuh have the same functions in the same order.
"""
import re
import sys
from pathlib import Path

KERNELS = "kernels/cuda"
MACHINE = f"{KERNELS}/machine.cuh"
EMULATED = "tests/emulator/kernels/cuda/machine.cuh"
MOST_ASM_LINES = 200
LIBM = ("exp|exp2|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|hypot|sin|cos|sincos|tan|tanh|sinh|cosh|asin|acos|"
        "asinh|acosh|atanh|atan|atan2|erf|erfc|tgamma|lgamma|fma|fmax|fmin|fdim|fabs|fmod|remainder|remquo|"
        "rint|nearbyint|lrint|llrint|round|lround|llround|floor|ceil|trunc|modf|copysign|nextafter|frexp|"
        "ldexp|scalbn|logb|ilogb|exp10|isnan|isinf|isfinite|signbit")
APPROXIMATE = r"__(?:exp|exp10|log|log2|log10|sin|cos|tan|tanh|pow|sincos)f|__fdividef|rsqrtf?|__frsqrt_rn"
# pattern -> what to do instead
ONLY_IN_MACHINE = {
    r"<<<|\bcu(?:da)?Launch(?:Cooperative)?Kernel": "launch with launch() of machine.cuh",
    r"\b__shared__\b": "take block memory from block_memory() of machine.cuh",
    r"\basm\b": "put the instruction into a function of machine.cuh",
}
NO_LIBM = "no function of a math library: arithmetic.cuh has what is allowed"
NOWHERE = {
    r"\bcooperative_groups::|#\s*include\s*[<\"](?:cuda_bf16|cuda_fp16|cuda_fp8|mma|cooperative_groups)(?:\.h|/)":
        "this header cannot be emulated: bf16 and float16 are uint16_t",
    r"#\s*include\s*[<\"](?:cmath|math\.h|math_functions\.h)": NO_LIBM,
    rf"(?<![\w.>])(?:std::|::|__builtin_)?(?:{LIBM})[fl]?\(": NO_LIBM,
    rf"\b(?:{APPROXIMATE})\(": "an approximation, whose bits depend on the toolkit: arithmetic.cuh has what is allowed",
}
COMMENT = re.compile(r"//[^\n]*")
FUNCTION = re.compile(r"^(?:__device__ )?(?:inline )?\w[\w: ]*[ *&]+(\w+)\([^;{]*\) \{$", re.MULTILINE)


def code_of(text: str) -> str:
    """The text without comments, line by line as it was."""
    return COMMENT.sub("", text)


def asm_lines(code: str) -> int:
    """The number of lines of all asm statements."""
    return sum(match[0].count("\n") + 1 for match in re.finditer(r"\basm\b.*?\);", code, re.DOTALL))


def functions(text: str) -> list[str]:
    """The names of the functions in order; overloads that follow each other count once."""
    names = FUNCTION.findall(code_of(text))
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def check_source(path: str, text: str) -> list[str]:
    rules = NOWHERE if path == MACHINE else {**NOWHERE, **ONLY_IN_MACHINE}
    found = []
    for number, line in enumerate(code_of(text).split("\n"), 1):
        found += [f"{path}:{number}: {why}" for pattern, why in rules.items() if re.search(pattern, line)]
    return found


def check_machines(real: str, emulated: str) -> list[str]:
    found = []
    if (lines := asm_lines(code_of(real))) > MOST_ASM_LINES:
        found.append(f"{MACHINE}: {lines} lines of asm, at most {MOST_ASM_LINES}")
    ours, twins = functions(real), functions(emulated)
    for at, name in enumerate(ours):
        if at >= len(twins) or twins[at] != name:
            twin = twins[at] if at < len(twins) else "nothing"
            return [*found, f"{EMULATED}: {twin} stands where {MACHINE} has {name}"]
    return found + [f"{EMULATED}: {name} is not in {MACHINE}" for name in twins[len(ours):]]


def check(root: Path) -> list[str]:
    found = []
    for file in sorted((root / KERNELS).iterdir()):
        if file.suffix in (".cu", ".cuh", ".h"):
            found += check_source(file.relative_to(root).as_posix(), file.read_text())
    return found + check_machines((root / MACHINE).read_text(), (root / EMULATED).read_text())


def main(arguments: list[str]) -> int:
    found = check(Path(arguments[0] if arguments else "."))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
