"""Checks that one_decides.py finds clocks and random numbers where ranks compute, and nothing else.
"""
import tempfile
import unittest
from pathlib import Path

import one_decides
from one_decides import CLOCK, RANDOM


class OneDecidesRules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, path: str, text: str):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def problems(self, exceptions=None) -> list[str]:
        return one_decides.problems(self.root, exceptions or {})

    def test_a_planted_file_is_found_in_each_folder_and_below_it(self):
        for folder in ("models", "models/tokenizer", "kernels/cpu", "kernels/cuda",
                       "runtime/engine", "runtime/worker"):
            for name in ("planted.h", "planted.cc", "planted.cu", "planted.cuh"):
                path = f"{folder}/{name}"
                with self.subTest(path):
                    self.write(path, '#pragma once\n#include "runtime/base/deadline.h"\n')
                    (problem,) = self.problems()
                    self.assertIn(f'{path}:2: "runtime/base/deadline.h" is a clock', problem)
                    (self.root / path).unlink()

    def test_other_folders_may_have_clocks(self):
        for path in ("runtime/rank/a.cc", "runtime/base/a.h", "server/a.cc", "modelsx/a.cc",
                     "runtime/supervisor/a.cc"):
            self.write(path, "#include <chrono>\n#include <random>\n")
        self.write("models/README.md", "#include <chrono>\n")
        self.assertEqual(self.problems(), [])

    def test_the_message_says_what_to_do_instead(self):
        self.write("runtime/engine/a.cc", "#include <chrono>\n#include <random>\n")
        clock, random = self.problems()
        self.assertIn("runtime/engine/a.cc:1: <chrono> is a clock", clock)
        self.assertIn("let the front measure and pass the time in", clock)
        self.assertIn("runtime/engine/a.cc:2: <random> is random numbers", random)
        self.assertIn("let the front draw and send a seed", random)

    def kinds(self, line: str) -> set[str]:
        return {kind for _, _, kind in one_decides.found_in(line + "\n")}

    def test_what_is_a_clock(self):
        for line in ("#include <chrono>", "#include <ctime>", "#include <time.h>",
                     "#  include <sys/time.h>", "#include <sys/timerfd.h>",
                     "#include <boost/chrono.hpp>", "#include <cuda/std/chrono>",
                     '#include "runtime/base/running_clock.h"',
                     "clock_gettime(CLOCK_MONOTONIC, &now);", "gettimeofday(&now, nullptr);",
                     "const auto now = std::time(nullptr);", "if (::time(nullptr) > 5) {}",
                     "time_t now = time(NULL);", "time(&now);", "auto a = std::clock();",
                     "clock_t a = clock();", "auto a = Clock::now();",
                     "std::chrono::steady_clock::now()", "RunningClock::time_point began;",
                     "log_debug(cat(seconds_since(began)));", "if (deadline.passed()) return {};",
                     "until->seconds_left()", "auto a = __rdtsc();", "auto a = _rdtsc();",
                     "__builtin_ia32_rdtscp(&cpu)", 'asm volatile("rdtsc" : "=a"(low));',
                     'asm("mrs %0, cntvct_el0" : "=r"(now));', "auto a = clock64();",
                     'asm volatile("mov.u64 %0, %%clock64;" : "=l"(now));'):
            self.assertEqual(self.kinds(line), {CLOCK}, line)

    def test_what_is_random(self):
        for line in ("#include <random>", "#include <sys/random.h>", "#include <curand_kernel.h>",
                     "getrandom(&seed, sizeof seed, 0);", "std::random_device seed;",
                     "std::mt19937_64 engine(7);", "int a = rand();", "int a = std::rand() % 6;",
                     "srand(7);", "long a = random();", "rand_r(&state)", "drand48()",
                     "lrand48()", "arc4random_uniform(6)", '::open("/dev/urandom", O_RDONLY);',
                     "_rdrand64_step(&seed);", "__builtin_ia32_rdseed_di_step(&seed)"):
            self.assertEqual(self.kinds(line), {RANDOM}, line)

    def test_what_is_neither(self):
        for line in ("// Clock::now() and rand() are forbidden", "/* std::time(nullptr)\n rand() */",
                     "#include <algorithm>", "#include <immintrin.h>",
                     '#include "runtime/base/cpu_budget.h"', '#include "models/random.h.inc"',
                     "longest = std::max(*longest, time(rates, wanted));",
                     "operand(args);", "expand(rows);", "is_random(seed);", "sampling.seed = seed;",
                     "device.wait(event, Deadline::after_ms(timeout_ms), look);",
                     'refuse("random numbers make encoding random");', "if (cpu_.spent()) return;",
                     "step.seconds", "double time = 0;", "strftime(text, 9, format, &time);",
                     "__nanosleep(1000);", "bool passed(int a);", "runs.clock(7);"):
            self.assertEqual(one_decides.found_in(line + "\n"), [], line)

    def test_lines_are_counted_behind_comments(self):
        text = "/* one\n two */ // three\n#include <algorithm>\nint a = rand();\n"
        self.assertEqual(one_decides.found_in(text), [(4, "rand(", RANDOM)])

    def test_an_exception_is_for_one_thing_in_one_file(self):
        allowed = {("models/a.cc", "<ctime>"): "it lays out"}
        self.write("models/a.cc", "#include <ctime>\n")
        self.assertEqual(self.problems(allowed), [])
        self.write("models/b.cc", "#include <ctime>\n")
        self.write("models/a.cc", "#include <ctime>\nauto a = std::time(nullptr);\n")
        self.assertEqual([problem.split(" is ")[0] for problem in self.problems(allowed)],
                         ["models/a.cc:2: std::time(", "models/b.cc:1: <ctime>"])

    def test_an_exception_that_nothing_needs(self):
        self.write("models/a.cc", "int a;\n")
        self.assertEqual(self.problems({("models/a.cc", "<ctime>"): "it lays out"}),
                         ["models/a.cc: <ctime> is an exception (EXCEPTIONS), and is not there"])


if __name__ == "__main__":
    unittest.main()
