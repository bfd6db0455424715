"""A rank whose processor computes wrongly is refused before it answers anything."""
import os
import re

import grpc

import harness
from reflection_test import Reflector

WRONG = "SHOAL_TEST_WRONG_KERNEL"


class Arithmetic(harness.TestCase):
    def refused(self, wrong: str, *flags) -> str:
        os.environ[WRONG] = wrong
        self.addCleanup(os.environ.pop, WRONG, None)
        process = harness.start("serve", harness.DEMO, "--grpc-port", 0, *flags)
        out, err = process.communicate()
        self.assertEqual((process.returncode, out), (harness.INTERNAL, b""), err.decode())
        self.check_nothing_left()
        return err.decode()

    def values(self, text: str, pattern: str) -> list[str]:
        found = re.search(pattern, text)
        self.assertTrue(found, text)
        return list(found.groups())

    def test_one_wrong_rank_is_named_with_its_kernel_and_both_values(self):
        text = self.refused("1:silu_mul", "-tp", 3)
        self.assertIn("[rank 1]", text)
        here, built, other0, other2 = self.values(
            text, r"silu_mul \(kernel set \S+\) gives (\w{16}), but this version of Shoal must give "
                  r"(\w{16}), rank 0 has (\w{16}), rank 2 has (\w{16})\.")
        self.assertEqual({other0, other2}, {built})
        self.assertNotEqual(here, built)

    def test_ranks_that_are_all_wrong_alike_are_refused_too(self):
        here, built, other = self.values(
            self.refused("all:matmul", "-tp", 2),
            r"matmul_f32 \(kernel set \S+\) gives (\w{16}), but this version of Shoal must give "
            r"(\w{16}), rank \d has (\w{16})\.")
        self.assertEqual(here, other)
        self.assertNotEqual(here, built)

    def test_a_single_rank_is_checked(self):
        self.values(self.refused("all:attention", "-tp", 1, "--cpu-kernels", "reference"),
                    r"(attention) \(kernel set reference\) gives")

    def test_a_server_shows_it(self):
        shown = set()
        for kernels in harness.kernel_sets():
            server = self.serve(harness.DEMO, "-tp", 2, "--cpu-kernels", kernels)
            ready = server.wait_ready()
            self.assertEqual(ready["kernels"], kernels)
            self.assertRegex(ready["arithmetic"], r"^[0-9a-f]{16}$")
            shown.add(ready["arithmetic"])
            with grpc.insecure_channel(ready["grpc"]) as channel:
                info = Reflector(channel).call("openengine.v1.Control/GetServerInfo")[0][0]
            self.assertEqual((info.extra.fields["kernels"].string_value,
                              info.extra.fields["arithmetic"].string_value),
                             (kernels, ready["arithmetic"]))
            server.process.terminate()
            self.assertEqual(server.end(), 0)
        self.assertEqual(len(shown), 1)
        self.assertIn(shown.pop(), harness.run("--version").stdout.decode())


if __name__ == "__main__":
    harness.main()
