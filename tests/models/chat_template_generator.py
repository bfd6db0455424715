"""Random templates over the variables of chat_template_constructs.py."""
import random

NAMES = ["t", "u", "sp", "e", "q", "n", "z", "f", "yes", "no", "nil", "xs", "words", "es", "nested",
         "d", "ed", "ms", "markup", "lines", "missing", "a", "b"]
FILTERS = ["trim", "upper", "lower", "length", "string", "list", "join", "join(', ')", "tojson",
           "default('D')", "default('D', true)", "first", "last", "replace('a', 'X')", "unique|list",
           "sort", "map('string')|list", "select|list", "reject('none')|list", "int", "indent(2)",
           "tojson(indent=2)", "reverse|list", "min", "max", "capitalize", "title", "safe", "items|list",
           "dictsort", "abs", "float", "map(attribute='role')|list", "selectattr('k')|list",
           "trim('ab')"]
TESTS = ["defined", "none", "string", "number", "mapping", "iterable", "sequence", "boolean", "true",
         "in [1, 'a', none]", "odd", "eq 7", "integer", "undefined"]
METHODS = ["upper()", "strip()", "split()", "split('o', 1)", "startswith('H')", "items()", "get('a')",
           "keys()", "replace('l', '')", "rstrip('d')", "title()", "find('o')", "lstrip()",
           "splitlines()", "format(1)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "and", "or", "in", "not in"]
CONSTANTS = ["0", "1", "-2", "3.5", "'x'", "'a b'", "''", "none", "true", "[1, 'a']", "{'k': 1}", "(1, 2)",
             "[]", "'é<'"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def expression(self, depth):
        pick = self.random.choice
        if depth <= 0:
            return pick(NAMES + CONSTANTS)
        inner = self.expression(depth - 1)
        return self.random.choice([
            lambda: inner,
            lambda: f"{inner}|{pick(FILTERS)}",
            lambda: f"({inner} is {pick(['', 'not '])}{pick(TESTS)})",
            lambda: f"({inner}).{pick(METHODS)}",
            lambda: f"({inner} {pick(OPERATORS)} {self.expression(depth - 1)})",
            lambda: f"({inner} if {self.expression(depth - 1)} else {self.expression(depth - 1)})",
            lambda: f"({inner})[{pick(['0', '-1', repr('a'), repr('role')])}]",
            # Not of a constant: Jinja2 computes that when it compiles, by other rules.
            lambda: f"{pick(NAMES)}[{pick(['1:', ':2', '::-1', '::2'])}]",
            lambda: f"({inner}).{pick(['a', 'role', 'k', 'content'])}",
            lambda: f"(not {inner})",
            lambda: f"[{inner}, {self.expression(depth - 1)}]",
            lambda: f"{{'a': {inner}}}",
            lambda: "'%s|%r' % (" + inner + ", " + self.expression(depth - 1) + ")",
        ])()

    def tag(self, text):
        return ("{%" + self.random.choice(["", "", "-"]) + " " + text + " " +
                self.random.choice(["", "", "-"]) + "%}")

    def statement(self, depth):
        if depth <= 0:
            return self.random.choice(["text", " \n ", "{{ " + self.expression(1 + self.random.randint(0, 1)) + " }}",
                                       "{{- " + self.expression(1) + " -}}", "  \n"])
        body = self.statements(depth - 1)
        value = self.expression(1)
        return self.random.choice([
            lambda: self.tag(f"if {value}") + body + self.tag("else") + self.statements(depth - 1)
            + self.tag("endif"),
            lambda: self.tag(f"for x in {value}") + "{{ loop.index }}{{ x }}" + body
            + self.tag("endfor"),
            lambda: self.tag(f"for x in xs if {value}") + body + "{{ loop.last }}"
            + self.tag("endfor"),
            lambda: self.tag(f"set {self.random.choice('ab')} = {value}"),
            lambda: self.tag("set a") + body + self.tag("endset"),
            lambda: self.tag("filter trim") + body + self.tag("endfilter"),
            lambda: self.tag("macro m(a, b=1)") + body + self.tag("endmacro")
            + "{{ m(" + value + ") }}",
            lambda: "{# " + "comment" + " #}" + body,
            lambda: "{% set ns = namespace(v=1) %}" + self.tag("for x in words")
            + "{% set ns.v = ns.v ~ x %}" + self.tag("endfor") + "{{ ns.v }}",
            lambda: body,
        ])()

    def statements(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 3)))


def templates(seed, count):
    generator = Generator(seed)
    # So that a name that a macro reads is known in the whole template from its beginning on.
    return ["{% set a = 'A' %}{% set b = 'B' %}" + generator.statements(2) for _ in range(count)]
