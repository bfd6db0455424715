"""What machine_code.py knows before the last call of a few instructions, as objdump writes them."""
import textwrap
import unittest

from machine_code import Argument, Constant, Value, parse_line, states_before


def known(code: str, register: str = "rsi") -> Value | None:
    """What a register holds before the last instruction. A line is "address: instruction"."""
    lines = textwrap.dedent(code).strip().splitlines()
    instructions = [parse_line("  " + line.replace(": ", ":\t", 1)) for line in lines]
    return states_before(instructions)[instructions[-1].address].get(register)


class Straight(unittest.TestCase):
    def test_constants_arguments_and_sums(self):
        for line, value in (("mov    $0x41402a8,%esi", Constant(0x41402A8)),
                            ("xor    %esi,%esi", Constant(0)),
                            ("mov    %rdx,%rsi", Argument(2)),
                            ("movslq %edx,%rsi", Argument(2)),
                            ("lea    0x4(%rdx),%rsi", Argument(2, 4)),
                            ("sub    $0x10,%rsi", Argument(1, -16)),
                            ("nop", Argument(1))):
            self.assertEqual(known(f"10: {line}\n20: call   90 <f>"), value, line)

    def test_what_cannot_be_known(self):
        for line in ("mov    0x8(%rdx),%rsi", "cmove  %rdx,%rsi", "mov    %dl,%sil",
                     "add    %rdx,%rsi", "lea    (%rdx,%rdx,2),%rsi", "imul   %rdx,%rsi",
                     "movzbl 0x8(%rbx),%esi", "call   80 <g>", "xchg   %rsi,%rdx",
                     "rep stos %rax,%es:(%rdi)", "lea    0x2f(%rip),%rsi        # 50 <text>"):
            self.assertIsNone(known(f"10: {line}\n20: call   90 <f>"), line)

    def test_registers_that_a_call_keeps(self):
        code = "10: mov    %rsi,%r15\n14: call   80 <g>\n20: mov    %r15,%rsi\n24: call   90 <f>"
        self.assertEqual(known(code), Argument(1))


class Stack(unittest.TestCase):
    BEGIN = "10: push   %rbx\n11: sub    $0x40,%rsp\n12: mov    %rdx,0x8(%rsp)\n"
    END = "\n40: call   80 <g>\n44: mov    0x8(%rsp),%rsi\n48: call   90 <f>"

    def test_a_slot_keeps_its_value_over_calls_and_moves_of_the_stack_pointer(self):
        self.assertEqual(known(self.BEGIN + "20: mov    %rdi,%rdi" + self.END), Argument(2))
        pushes = "20: push   %rax\n24: mov    %rcx,%rax\n28: pop    %rcx"
        self.assertEqual(known(self.BEGIN + pushes + self.END), Argument(2))

    def test_a_slot_whose_address_was_given_away_is_unknown(self):
        for offset, value in (("0x8", None), ("0x0", None), ("0x10", Argument(2))):
            line = f"20: lea    {offset}(%rsp),%rcx"
            self.assertEqual(known(self.BEGIN + line + self.END), value, offset)

    def test_a_slot_that_a_wider_store_overlaps_is_unknown(self):
        self.assertIsNone(known(self.BEGIN + "20: movups %xmm0,(%rsp)" + self.END))
        self.assertIsNone(known(self.BEGIN + "20: mov    %rcx,0x4(%rsp)" + self.END))
        self.assertEqual(known(self.BEGIN + "20: mov    %rcx,(%rsp)" + self.END), Argument(2))

    def test_without_the_stack_pointer_no_slot_is_known(self):
        self.assertIsNone(known(self.BEGIN + "20: and    $0xfffffffffffffff0,%rsp" + self.END))


class Ways(unittest.TestCase):
    def test_where_ways_meet_only_what_they_agree_on_is_known(self):
        for other, value in (("0x10", None), ("0x20", Constant(0x20))):
            code = f"""
                10: mov    $0x20,%esi
                14: test   %edi,%edi
                18: je     28 <f+0x28>
                20: mov    ${other},%esi
                28: call   90 <f>"""
            self.assertEqual(known(code), value)

    def test_a_loop_may_change_what_held_before_it(self):
        code = """
            10: mov    $0x20,%esi
            14: mov    $0x30,%edx
            18: test   %edi,%edi
            1c: je     30 <f+0x30>
            20: add    $0x1,%rsi
            24: jmp    18 <f+0x18>
            30: call   90 <f>"""
        self.assertIsNone(known(code))
        self.assertEqual(known(code, "rdx"), Constant(0x30))

    def test_what_fills_the_space_before_a_target_leads_nowhere(self):
        code = """
            10: mov    $0x20,%esi
            14: jmp    20 <f+0x20>
            18: {filler}
            20: call   90 <f>"""
        for filler in ("nopl   0x0(%rax,%rax,1)", "xchg   %ax,%ax", "cs nopw 0x0(%rax,%rax,1)"):
            self.assertEqual(known(code.format(filler=filler)), Constant(0x20), filler)
        # Only a table of addresses can lead there, and from it nothing is known.
        self.assertIsNone(known(code.format(filler="mov    $0x20,%edi")))

    def test_an_import_is_known_by_its_name(self):
        for name in ("fallocate@plt", "fallocate64@plt"):
            self.assertEqual(parse_line(f"  10:\tcall   9c8e0 <{name}>").callee, "fallocate")
        self.assertIsNone(parse_line("  10:\tcall   9c8e0 <fallocate_all>").callee)


if __name__ == "__main__":
    unittest.main()
