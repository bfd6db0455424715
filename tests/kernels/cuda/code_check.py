"""What nvcc makes of the kernels, for which no GPU is needed: code_check.py [--print] NVCC TABLE -- OPTION...

NVCC is the compiler, TABLE the file with the number of matrix products and fused multiply-adds of every
kernel, and the OPTIONs are those with which the module is compiled. --print writes the file instead of
comparing with it.

- Every instruction in the PTX is one of ALLOWED, for sm_80 and for sm_90. None is an approximation, none
  calls a function, and every operation on floats says how it rounds, so no toolkit decides a bit.
- For sm_90, every kernel of a source that starts kernels early waits for those before it.
- A kernel has as many mma.sync and fma as TABLE says. A sum of 0 fma shows that nothing was contracted.
  Another toolkit may unroll loops in another way; then a number that is not 0 only has to stay so.
- For every architecture, products and attention keep everything in registers: no stack frame, no spill,
  and at most 255 registers.
"""
import argparse
import re
import resource
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("arithmetic", "attention", "elementwise", "norms", "peer", "product", "push_all_reduce", "qkv", "tree_sum")
WITHOUT_SPILLS = ("attention", "product")
EARLY = ("attention", "elementwise", "norms", "product", "qkv")
ARCHITECTURES = (80, 90, 100, 120)
MOST_REGISTERS = 255
INTEGER = r"(?:[su](?:16|32|64))"
BITS = r"(?:b(?:16|32|64)|pred)"
MOVED = r"(?:\.v[24])?\.(?:[usbf](?:8|16|32|64))"
ALLOWED = re.compile("|".join((
    # floats: rounded to nearest, or without rounding
    r"(?:add|mul|div|sqrt|fma)\.rn\.ftz\.f32", r"neg\.ftz\.f32",
    r"setp\.(?:eq|ne|lt|le|gt|ge|leu|ltu|geu|gtu|equ|neu)\.ftz\.f32", r"selp\.f32", r"mov\.f32", r"max\.ftz\.f32",
    r"cvt\.f32\.f16", r"cvt\.rn\.f16\.f32", r"cvt\.rn\.bf16x2\.f32", r"cvt\.rn\.f32\.s32", r"cvt\.rna\.tf32\.f32",
    r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32",
    r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32",
    # integers and predicates
    rf"(?:add|sub|div|rem|min|max|neg|abs)\.{INTEGER}", rf"(?:mul|mad)\.(?:lo|hi|wide)\.{INTEGER}",
    rf"(?:and|or|xor|not|mov|selp)\.(?:{BITS}|{INTEGER})", rf"(?:shl|shr)\.(?:{BITS}|{INTEGER})",
    rf"setp\.(?:eq|ne|lt|le|gt|ge)\.(?:{BITS}|{INTEGER})", rf"cvt\.{INTEGER}\.{INTEGER}", rf"bfi\.{BITS}",
    # memory
    rf"(?:ld|st)\.(?:global|shared|param|volatile\.global|global\.cg){MOVED}",
    r"cvta\.to\.(?:global|shared)\.u64", r"ld\.acquire\.sys\.global\.u64", r"st\.release\.sys\.global\.u64",
    r"atom\.global\.add\.u32", r"membar\.(?:gl|sys)",
    r"cp\.async\.(?:cg\.shared\.global|commit_group|wait_group)",
    r"ldmatrix\.sync\.aligned\.m8n8\.x[24](?:\.trans)?\.shared\.b16",
    # order of the lanes
    r"bar\.(?:sync|warp\.sync|red\.or\.pred)", r"shfl\.sync\.bfly\.b32", r"bra(?:\.uni)?", r"ret",
    r"nanosleep\.u32", r"griddepcontrol\.(?:wait|launch_dependents)")))
ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\}\n", re.DOTALL)
INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)[ \t;]", re.MULTILINE)
COUNTED = {"mma.sync": r"^mma\.sync", "fma": r"^fma\."}


@dataclass(frozen=True)
class Compiler:
    nvcc: str
    options: list[str]

    def run(self, source: str, *words: str) -> subprocess.CompletedProcess:
        command = [self.nvcc, "-std=c++17", f"-I{ROOT}", '-DSHOAL_BUILD_ID="check"',
                   '-DSHOAL_CUDA_ARCHITECTURES="check"', *self.options, *words,
                   str(ROOT / "kernels" / "cuda" / f"{source}.cu")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}:\n{done.stderr}")
        return done

    def version(self) -> str:
        shown = subprocess.run([self.nvcc, "--version"], capture_output=True, text=True, check=True)
        return re.search(r"release ([\d.]+)", shown.stdout)[1]

    def ptx(self, source: str, architecture=80) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "code.ptx"
            self.run(source, "-ptx", f"-arch=compute_{architecture}", "-o", str(path))
            return path.read_text()

    def resources(self, source: str, architecture: int) -> str:
        """What ptxas says of every kernel."""
        return self.run(source, "-cubin", f"-arch=sm_{architecture}", "-Xptxas", "-v", "-o",
                        "/dev/null").stderr


def plain_name(mangled: str) -> str:
    """leaf_kernel<Tile<Bf16Format, 4, 1, 1, 8, 3>>"""
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    name = re.sub(r"shoal::cuda::|\(anonymous namespace\)::|^void ", "", name)
    return re.sub(r"\([^()]*\)$", "", name).replace("> >", ">>")


def instructions(body: str) -> list[str]:
    """The instructions of a kernel in PTX. Declarations, which begin with a dot, and labels, which
    begin with a dollar, are not among them."""
    return INSTRUCTION.findall(body)


def counts_of(ptx: dict[str, str]) -> dict[str, dict[str, int]]:
    """Kernel -> what is counted -> how often."""
    return {plain_name(entry[1]): {what: sum(1 for one in instructions(entry[0]) if re.match(pattern, one))
                                   for what, pattern in COUNTED.items()}
            for text in ptx.values() for entry in ENTRY.finditer(text)}


def table_of(version: str, counts: dict[str, dict[str, int]]) -> str:
    rows = [f"{found['mma.sync']:5} {found['fma']:5}  {kernel}" for kernel, found in sorted(counts.items())]
    return "\n".join([f"# nvcc {version}: mma.sync, fma, kernel (code_check.py --print makes this file)", *rows, ""])


class Code(unittest.TestCase):
    compiler: Compiler
    table: Path

    @classmethod
    def setUpClass(cls):
        cls.ptx = {source: cls.compiler.ptx(source) for source in SOURCES}
        cls.ptx_of_90 = {source: cls.compiler.ptx(source, 90) for source in SOURCES}

    def test_only_known_instructions(self):
        for source, text in (*self.ptx.items(), *self.ptx_of_90.items()):
            entries = list(ENTRY.finditer(text))
            self.assertTrue(entries, source)
            for entry in entries:
                strange = {one for one in instructions(entry[0]) if not ALLOWED.fullmatch(one)}
                self.assertFalse(strange, f"{source}.cu: {plain_name(entry[1])}")

    def test_kernels_that_are_started_early_wait(self):
        for source, text in self.ptx_of_90.items():
            for entry in ENTRY.finditer(text):
                waits = "griddepcontrol.wait" in instructions(entry[0])
                self.assertEqual(waits, source in EARLY, f"{source}.cu: {plain_name(entry[1])}")

    def test_products_and_fused_operations_are_counted(self):
        header, *rows = self.table.read_text().splitlines()
        expected = {row[13:]: {"mma.sync": int(row[:5]), "fma": int(row[5:11])} for row in rows}
        found = counts_of(self.ptx)
        if f"nvcc {self.compiler.version()}:" not in header:
            expected, found = ({kernel: {what: n > 0 for what, n in counts.items()}
                                for kernel, counts in one.items()} for one in (expected, found))
        self.assertEqual(found, expected)

    def test_products_and_attention_stay_in_registers(self):
        for source in WITHOUT_SPILLS:
            for architecture in ARCHITECTURES:
                said = self.compiler.resources(source, architecture)
                frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
                registers = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
                with self.subTest(source=source, architecture=architecture):
                    self.assertEqual(len(registers), len(ENTRY.findall(self.ptx[source])), said)
                    self.assertEqual(set(frames), {("0", "0", "0")}, said)
                    self.assertLessEqual(max(registers), MOST_REGISTERS)


def main():
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser()
    parser.add_argument("nvcc")
    parser.add_argument("table", type=Path)
    parser.add_argument("--print", action="store_true")
    arguments = parser.parse_args(words[:at])
    Code.compiler = Compiler(arguments.nvcc, words[at + 1:])
    Code.table = arguments.table
    if arguments.print:
        ptx = {source: Code.compiler.ptx(source) for source in SOURCES}
        arguments.table.write_text(table_of(Code.compiler.version(), counts_of(ptx)))
        return
    outcome = unittest.main(argv=sys.argv[:1], exit=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of processor time in nvcc")
    sys.exit(0 if outcome.result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
