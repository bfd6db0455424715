"""Templates for each construct of the language, which chat_template_diff_test.py renders with VARIABLES.

Each line of TEMPLATES is a template; \\n in it is written as such. Some of them have to be refused.
"""

VARIABLES = {
    "t": "Hello, World", "u": "äÖß ΑΣ ﬁ İ 日本 😀", "sp": "  two words \n", "e": "", "q": "it's \"q\"",
    "n": 7, "z": 0, "neg": -3, "f": 2.5, "big": 1e22, "small": 1e-7, "yes": True, "no": False,
    "nil": None, "xs": [3, 1, 2], "words": ["b", "A", "c", "a"], "es": [], "nested": [[1, 2], [3]],
    "d": {"b": 1, "a": {"x": [1, {"y": None}]}, "items": "own"}, "ed": {},
    "ms": [{"role": "user", "content": "hi", "k": 2}, {"role": "tool", "content": None, "k": 1},
           {"role": "user", "content": ["p", "q"]}],
    "markup": "<b>&\"'", "lines": "one\ntwo\r\nthree\n\nfive", "js": "{\"b\": [1, 2.0], \"a\": null}",
    "ctl": "tab\t nul\x00 del\x7f nbsp\xa0 line\u2028",
}

OUTPUT = r"""
plain text
{{ t }}{{ n }}{{ f }}{{ yes }}{{ nil }}{{ missing }}
{{ xs }} {{ d }} {{ words }} {{ q }} {{ [q, t] }} {{ (1,) }} {{ () }} {{ (1, "a") }} {{ {} }}
{{ big }} {{ small }} {{ 1.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 123456789012345680.0 }} {{ -0.0 }}
{{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ 1.5e3 }}
{{ [ctl] }} {{ [u] }} {{ ['\\', '\'', "\""] }}
{{ 'a' 'b' "c" }} {{ '\n\t\x41\u00e9\101\q' }}
{{ true }}{{ True }}{{ none }}{{ None }}{{ false }}
{{ t, n }}
{{ }}
{{ t
{{ t }
{{ 1 2 }}
{% unknown %}
{% if %}x{% endif %}
{{ 'open }}
{{ (1 }}
{{ 1) }}
{{ $ }}
""".strip("\n").split("\n")

SPACES = [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n", "a  {%- if yes -%}  b  {%- endif -%}  c",
    "  {% if yes %}x{% endif %}\n  {{ t }}\n", "a {%+ if yes %} b{% endif +%}\nc", "  {%+ if yes %}x{% endif %}",
    "x\n\n{{- t }}\n\n{{ t -}}\n\ny", "{# c #}\nx{#- c -#}\n y\n  {# c #}  z", "\n\nx\n\n", "x\n", "x\r\ny\rz\r\n",
    "{% raw %}{{ t }}{% endraw %}", "a {%- raw -%} {{ t }} {%- endraw -%} b", "  {% raw %}\n x {% endraw %}\n y",
    "{% set a = 1 %}\n  {% set b = 2 %}  \n{{ a }}", "x {% set a %}\n  y\n{% endset %}\n[{{ a }}]",
    "{{ '{{' }} {{ '%}' }}", "a\t{% if yes %}\tb{% endif %}", "x {{ '-' -}} y", "{%if yes%}1{%endif%}",
    "{{-t-}}", "{# unclosed", "{% raw %}x", "{% for x in xs -%}\n {{ x }}\n{%- endfor %}\n.",
    "\u2003{%- if yes %}y{% endif %}", "a\u2003\n \u2003{% if yes %}y{% endif %}", "a {#+ c +#}\n b", "{%- raw %}\n  x\n{% endraw -%} z",
    "{{ d['a'] }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a':{}}}}",
]

OPERATORS = r"""
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 3 ** 2 }} {{ 2 ** -1 }}
{{ -2 ** 2 }} {{ (-2) ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 + "a" }}
{{ "a" + 1 }}
{{ "a" * 3 }} {{ 2 * [1] }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ "a" * -1 }}
{{ [1] + (2,) }}
{{ t ~ n ~ nil ~ missing ~ xs }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ "1" == 1 }}
{{ 1 < "a" }}
{{ nil < 1 }}
{{ missing < 1 }}
{{ missing == missing2 }} {{ missing == nil }} {{ missing != 1 }}
{{ "ell" in t }} {{ 1 in xs }} {{ "a" in d }} {{ 9 not in xs }} {{ 1 in missing }} {{ nil in [nil] }}
{{ 1 in t }}
{{ 1 in n }}
{{ not yes }} {{ not not e }} {{ yes and n }} {{ e or "x" }} {{ z or nil }} {{ yes and no or n }}
{{ "a" if yes else "b" }} {{ "a" if no }} {{ "a" if no else "b" if no else "c" }}
{{ ("a" if no).x }}
{{ +n }} {{ -f }} {{ - -n }}
{{ -t }}
{{ missing + 1 }}
{{ t + missing }}
{{ n.foo }} {{ nil.foo }} {{ t.foo }} {{ xs.foo }} {{ d.zzz }}
{{ missing.foo }}
{{ d.zzz.foo }}
{{ missing.foo is defined }}
{{ d.a.x[1].y }} {{ d["a"]["x"][0] }} {{ xs[0] }} {{ xs[-1] }} {{ xs[9] }} {{ xs.0 }} {{ t[0] }} {{ t[-1] }} {{ u[5] }} {{ t[99] }}
{{ d["items"] }} {{ d.get("items") }} {{ xs["foo"] }} {{ t["foo"] }} {{ d[xs] }} {{ xs[1.0] }} {{ xs[true] }}
{{ t[1:4] }} {{ t[:-3] }} {{ t[::2] }} {{ t[::-1] }} {{ u[2:6] }} {{ u[::-1] }} {{ xs[1:] }} {{ xs[::-1] }} {{ xs[5:] }} {{ xs[-2:] }} {{ (1,2,3)[1:] }} {{ xs[2:0:-1] }} {{ t[5:2] }} {{ xs[-9:9] }}
{{ xs[::0] }}
{{ nil[1:] }}
{{ missing[1:] }}
{{ d[1:] }}
{{ xs["a":] }}
{{ "%s is %d and %r" % ("x", 3, "y") }} {{ "%5.2f|%-5s|%05d|%x|%%" % (2.345, "a", 42, 255) }} {{ "%s" % t }} {{ "%(a)s" % {"a": 1} }}
{{ "%s %s" % ("x",) }}
{{ "%s" % ("x", "y") }}
{{ "a" % missing }} {{ "%s" % missing }} {{ "a" % [1] }} {{ "a" % {} }}
{{ "%(a)s" % missing }}
{{ "%d" % "x" }}
{{ 7 % 4 }}
{{ t() }}
{{ missing() }}
{{ n.x() }}
{{ xs.append(1) }}
{{ xs.append is defined }} {{ d.pop is defined }} {{ d.update }}
{{ d.pop("a") }}
{{ d.__class__ }} {{ t.__class__ is defined }}
{{ t.__class__.x }}
{{ 9223372036854775807 }} {{ 1.5 == 1.5 }} {{ 10 ** 15 }}
{{ [nil, yes, 1.0] == [nil, true, 1] }} {{ {"a": 1, "b": 2} == {"b": 2, "a": 1} }} {{ (1, 2) == [1, 2] }}
{{ {1: "a", none: "b", 2.5: "c", (1, 2): "d"} }} {{ {1: "a"}[true] }} {{ {"a": 1, "a": 2} }}
{{ {[1]: 2} }}
{{ nested[0][1] }} {{ nested[1].0 }}
{{ (1 if yes else 2) + 3 }} {{ t is string and n is number }} {{ not t is none }} {{ 1 is not none }}
{{ xs | length > 2 }} {{ -n | abs }} {{ (n | string) ~ "x" }} {{ "a" ~ "b" | upper }} {{ 1 + xs | length }}
""".strip("\n").split("\n")

STATEMENTS = r"""
{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if missing %}x{% endif %}{% if xs %}y{% endif %}{% if es %}z{% endif %}
{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for x in es %}a{% else %}none{% endfor %}{% for x in missing %}a{% else %}none{% endfor %}
{% for x in nil %}{% endfor %}
{% for x in n %}{% endfor %}
{% for c in u %}{{ c }}.{% endfor %}{% for k in d %}{{ k }},{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for a, b in [(1, 2), "xy"] %}{{ a }}{{ b }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in xs if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% else %}no{% endfor %}{% for x in xs if x > 9 %}{% else %}no{% endfor %}
{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}
{% for x in xs %}{% for y in words %}{{ loop.index }}{% if y == "A" %}{% break %}{% endif %}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in xs %}{{ loop.cycle("a", "b") }}{{ loop.changed(x > 1) }}{% endfor %}
{% break %}
{% for x in xs %}{{ x }}
{% endfor %}
{% set a = 1 %}{% for x in xs %}{% set a = a + x %}{{ a }}{% endfor %}{{ a }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set (a, b) = [3, 4] %}{{ a }}{{ b }}
{% set a %}x{{ t }}{% endset %}{{ a }}{% set b | upper | trim %} y {% endset %}{{ b }}
{% set ns = namespace(a=1, b="x") %}{% for x in xs %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns }}
{% set ns = namespace({"k": 1}) %}{{ ns.k }}{{ ns["k"] }}{% set ns.z %}block{% endset %}{{ ns.z }}
{% set d.x = 1 %}
{% set missing.x = 1 %}
{% set ns = namespace(_x=1) %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set true = 1 %}
{% set 1 = 1 %}
{% macro m(a, b=2, c="x" ~ b) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}{{ m.name }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, "a", k=2) }}
{% macro m(a=1, b) %}{% endmacro %}
{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(4) }}
{% macro m() %}{{ late }}{{ t }}{% endmacro %}{% set late = "L" %}{{ m() }}
{% macro m() %}{% set t = "inner" %}{{ t }}{% endmacro %}{{ m() }}{{ t }}{{ m()|length }}{{ m() is string }}
{% for x in xs %}{% macro m() %}{{ x }}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ t }}{% endcall %}
{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}in{% endcall %}
{% filter upper %}abc {{ t }}{% endfilter %}{% filter trim | replace("a", "b") %} aa {% endfilter %}
{% with a = 1, b = t %}{{ a }}{{ b }}{% set a = 2 %}{{ a }}{% endwith %}{{ a }}
{% generation %}{{ t }}{% set t = 1 %}{% endgeneration %}{{ t }}
{% for x in xs %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}
{% if yes %}{% set inner = 1 %}{% endif %}{{ inner }}
{{ raise_exception("no: " ~ t) }}
before{% if n == 7 %}{{ raise_exception("stop") }}{% endif %}
{{ raise_exception() }}
{{ strftime_now("%Y-%m-%d %H:%M %d %b %B %A %j %%") }}
{{ range(3) }}{{ range(3) | list }}{{ range(1, 7, 2) | list }}{{ range(3, 0, -1) | list }}{{ range(5)[1:] | list }}{{ range(4)[-1] }}
{{ range(1, 2, 0) }}
{{ range("a") }}
{{ range(1000000) }}
{{ dict(a=1, b=2) }}{{ dict([("x", 1)]) }}{{ dict({"a": 1}, b=3) }}{{ dict.fromkeys([1, 2]) }}
{% for x in xs %}{% set loop = 1 %}{% endfor %}
{% include "x" %}
{% extends "x" %}
{% if yes %}{{ 1 | nofilter }}{% endif %}
{% if no %}{{ 1 | nofilter }}{% endif %}ok
{{ (1 | nofilter) if no else 2 }}
{{ 1 | nofilter if no }}{{ 1 | nofilter }}
{% if no %}{% for x in xs %}{{ x | nofilter }}{% endfor %}{% endif %}
{{ 1 is notest }}
{% set x = 5 %}{% if yes %}{% set x = 6 %}{% endif %}{{ x }}{% for i in [1] %}{{ x }}{% set x = 7 %}{{ x }}{% endfor %}{{ x }}
{% for loop in xs %}{{ loop }}{% endfor %}
{% for x in xs %}{% else %}{% endfor %}{{ x }}{{ loop }}
{% endif %}
{% if yes %}{% endfor %}
{% for m in ms %}{{ m.role }}{% if m.content is string %}S{{ m.content }}{% elif m.content is none %}N{% elif m.content is iterable %}{% for p in m.content %}{{ p }}{% endfor %}{% endif %}{% endfor %}
{% for m in ms | selectattr("role", "equalto", "user") %}{{ loop.index }}{{ m.content }}{{ loop.last }}{% endfor %}
{% for k in {"a": 1, "b": 2} | items %}{{ k }}{% endfor %}
{{ xs[n] }}{{ m(1) if m is defined else "no m" }}
{% set x = 1 if no %}{{ x is defined }}[{{ x }}]
{% set a = [] %}{% set a = a + [1] %}{% set a = a + ["b"] %}{{ a }}
{{ self is defined and false }}{{ caller is defined }}{{ varargs is defined }}
{% macro a(x) %}{{ b(x) if x else "end" }}{% endmacro %}{% macro b(x) %}b{{ a(x - 1) }}{% endmacro %}{{ a(3) }}
{% macro m(x=[]) %}{{ x }}{% endmacro %}{{ m() }}{{ m([1]) }}{{ m(*[5]) }}{{ m(**{"x": 6}) }}
{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
""".strip("\n").split("\n")

FILTERS = r"""
{{ d | tojson }} {{ xs | tojson }} {{ u | tojson }} {{ ctl | tojson }} {{ q | tojson }} {{ f | tojson }} {{ nil | tojson }} {{ yes | tojson }} {{ (1, 2) | tojson }} {{ markup | tojson }}
{{ d | tojson(indent=2) }} {{ nested | tojson(indent=4) }} {{ es | tojson(indent=2) }} {{ ed | tojson(indent=1) }} {{ d | tojson(indent="--") }} {{ xs | tojson(indent=0) }}
{{ u | tojson(ensure_ascii=True) }} {{ u | tojson(ensure_ascii=False) }} {{ d | tojson(separators=(",", ":")) }} {{ d | tojson(sort_keys=true) }} {{ ctl | tojson(true) }}
{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ big | tojson }} {{ small | tojson }}
{{ missing | tojson }}
{{ (xs | map("string")) | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ d.items() | tojson }}
{{ xs | length }} {{ t | length }} {{ u | length }} {{ d | length }} {{ missing | length }} {{ xs | count }} {{ range(4) | length }}
{{ n | length }}
{{ xs | map("string") | length }}
{{ sp | trim }}| {{ nil | trim }} {{ missing | trim }} {{ "xxaxx" | trim("x") }} {{ n | trim }}
{{ n | string }}{{ xs | string }}{{ nil | string }}{{ missing | string }}
{{ missing | default("d") }} {{ e | default("d") }} {{ e | default("d", true) }} {{ nil | default("d") }} {{ nil | default("d", boolean=true) }} {{ missing | d }} {{ missing | default([]) }}
{{ d.zzz.y | default("x") }}
{{ xs | join }} {{ xs | join(", ") }} {{ words | join("-") }} {{ ms | join(",", attribute="role") }} {{ t | join(".") }} {{ missing | join }} {{ d | join("|") }}
{{ n | join }}
{{ d | items | list }} {{ missing | items | list }} {{ ed | items | list }}
{{ xs | items | list }}
{{ xs | list }} {{ "abc" | list }} {{ d | list }} {{ missing | list }}
{{ nil | list }}
{{ words | map("upper") | list }} {{ ms | map(attribute="role") | list }} {{ ms | map(attribute="k", default=0) | list }} {{ nested | map("length") | list }} {{ words | map("replace", "a", "x") | join }} {{ nil | map("upper") | list }} {{ nested | map("first") | list }}
{{ words | map("nofilter") | list }}
{{ words | map | list }}
{{ xs | select("odd") | list }} {{ xs | select("gt", 1) | list }} {{ [0, 1, none, ""] | select | list }} {{ xs | reject("even") | list }} {{ [0, 1] | reject | list }} {{ words | select("in", ["a", "b"]) | list }} {{ words | reject("equalto", "b") | list }}
{{ xs | select("notest") | list }}
{{ ms | selectattr("k") | list }} {{ ms | selectattr("role", "equalto", "tool") | map(attribute="k") | list }} {{ ms | rejectattr("k", "defined") | list | length }} {{ ms | selectattr("content", "string") | list | length }} {{ ms | selectattr("content", "none") | list | length }} {{ ms | rejectattr("role", "==", "user") | list | length }}
{{ ms | selectattr | list }}
{{ markup | safe }} {{ markup | escape }} {{ markup | e }} {{ (markup | safe) + "<" }} {{ "<" + (markup | safe) }} {{ "<" ~ (markup | safe) }} {{ markup | safe | upper }} {{ [markup | safe] }}
{{ t | lower }} {{ u | upper }} {{ u | lower }} {{ t | capitalize }} {{ "hello big-world (x)" | title }} {{ missing | upper }} {{ n | upper }} {{ nil | lower }}
{{ d | dictsort }} {{ {"B": 1, "a": 2} | dictsort }} {{ {"B": 1, "a": 2} | dictsort(true) }} {{ {"b": 1, "a": 2} | dictsort(by="value", reverse=true) }} {{ {"b": 1, "a": 2} | dictsort(false, "value") }}
{{ xs | dictsort }}
{{ {"a": 1, 2: 3} | dictsort }}
{{ t | replace("l", "L") }} {{ t | replace("l", "", 1) }} {{ n | replace("7", "8") }} {{ t | replace("", "-") }} {{ u | replace("ß", "ss") }} {{ missing | replace("a", "b") }}
{{ t | replace("l") }}
{{ js | from_json }} {{ (js | from_json).b[0] }} {{ "[1, \"x\"]" | from_json | tojson }}
{{ t | from_json }}
{{ words | unique | list }} {{ words | unique(true) | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ ms | unique(attribute="role") | map(attribute="role") | list }}
{{ nested | unique | list }}
{{ xs | sort }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ xs | sort(reverse=true) }} {{ [{"a": 2}, {"a": 1}] | sort(attribute="a") }} {{ [{"a": 1, "b": 2}, {"a": 1, "b": 1}] | sort(attribute="a,b") }}
{{ [1, "a"] | sort }}
{{ xs | min }} {{ xs | max }} {{ words | min }} {{ words | max(true) }} {{ es | min }} {{ es | min is defined }} {{ [{"a": 2}, {"a": 1}] | min(attribute="a") }}
{{ [1, "a"] | min }}
{{ "42" | int }} {{ " 42 " | int }} {{ "4.7" | int }} {{ "x" | int }} {{ "x" | int(5) }} {{ f | int }} {{ nil | int }} {{ yes | int }} {{ "ff" | int(base=16) }} {{ "0x1f" | int(0, 16) }} {{ "1_000" | int }} {{ "-7" | int }} {{ "+-7" | int }} {{ "" | int }} {{ "1e3" | int }}
{{ missing | int }}
{{ "2.5" | float }} {{ "x" | float }} {{ n | float }} {{ "1e3" | float }} {{ "inf" | float }} {{ "0x10" | float }} {{ "1_0.5" | float }} {{ nil | float(1.5) }}
{{ lines | indent }}|{{ lines | indent(2, first=true) }}|{{ lines | indent(2, blank=true) }}|{{ lines | indent("> ") }}|{{ lines | indent(width=1, first=true, blank=true) }}
{{ n | indent }}
{{ missing | indent }}
{{ xs | first }} {{ xs | last }} {{ es | first }} {{ t | first }} {{ t | last }} {{ d | first }} {{ xs | map("string") | first }}
{{ xs | map("string") | last }}
{{ xs | reverse | list }} {{ t | reverse }} {{ u | reverse }}
{{ -3 | abs }} {{ neg | abs }} {{ -2.5 | abs }}
{{ t | abs }}
{{ xs | sum }} {{ [{"a": 1}, {"a": 2}] | sum(attribute="a") }} {{ es | sum(start=5) }}
{{ words | sum }}
{{ xs | trim(1, 2, 3) }}
{{ xs | join(foo=1) }}
{% set g = xs | map("string") %}{{ g | list }}{{ g | list }}{% if xs | select("gt", 9) %}truthy{% endif %}
{{ xs | tojson | safe }} {{ (xs | tojson) ~ "x" }} {{ "a" | upper | lower | trim }}
""".strip("\n").split("\n")

TESTS = ["{% for v in [t, e, n, z, f, yes, no, nil, xs, es, d, ed, (1,), range(2), 'UP', 'low', 3] %}"
         "{{ v is " + name + " }},{% endfor %}{{ missing is " + name + " }}"
         for name in ("defined", "undefined", "none", "boolean", "true", "false", "integer", "float",
                      "number", "string", "mapping", "sequence", "iterable", "callable", "escaped",
                      "upper", "lower", "not defined", "not string")] + r"""
{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}
{{ t is odd }}
{{ nil is sameas none }}{{ 1 is eq 1 }}{{ 1 is ne(2) }}{{ 2 is gt 1 }}{{ 2 is ge 2 }}{{ 1 is lt 2 }}{{ 1 is le 0 }}{{ 1 is in [1] }}{{ 1 is in xs }}{{ "a" is in "abc" }}{{ 1 is equalto 1 }}{{ 1 is == 1 }}
{{ "trim" is filter }}{{ "nope" is filter }}{{ "odd" is test }}{{ raise_exception is callable }}{{ t.upper is callable }}
{{ 1 is defined is true }}
{{ 1 is eq }}
{{ t is string(1) }}
""".strip("\n").split("\n")

METHODS = r"""
{{ t.upper() }}{{ t.lower() }}{{ u.upper() }}{{ u.lower() }}{{ "ab cd".title() }}{{ "they're".title() }}{{ t.capitalize() }}{{ u.title() }}{{ "ﬁx ǆa".capitalize() }}
{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ "xxaxx".strip("x") }}|{{ "xyaxy".lstrip("yx") }}|{{ "a\n\n".rstrip("\n") }}|{{ sp.strip(none) }}
{{ t.strip(1) }}
{{ t.split(",") }}{{ t.split() }}{{ sp.split() }}{{ "a,b,c".split(",", 1) }}{{ "a,b,c".rsplit(",", 1) }}{{ "a b  c".split(" ") }}{{ "a b c".split(none, 1) }}{{ "a b c".rsplit(maxsplit=1) }}{{ e.split() }}{{ e.split(",") }}{{ "a<b<c".split("<")[-1] }}
{{ t.split("") }}
{{ lines.splitlines() }}{{ lines.splitlines(true) }}
{{ t.replace("l", "L") }}{{ t.replace("l", "L", 1) }}{{ t.replace("", ".") }}
{{ t.replace(1, 2) }}
{{ t.startswith("Hell") }}{{ t.startswith(("x", "He")) }}{{ t.endswith("ld") }}{{ t.startswith("ello", 1) }}{{ t.endswith("lo", 0, 5) }}{{ t.startswith("") }}
{{ t.startswith(1) }}
{{ ",".join(words) }}{{ "-".join("abc") }}
{{ ",".join(xs) }}
{{ t.find("o") }}{{ t.find("z") }}{{ t.rfind("o") }}{{ t.index("W") }}{{ t.count("l") }}{{ u.find("日") }}{{ t.count("") }}{{ t.find("o", 5) }}{{ t.find("o", -3, -1) }}
{{ t.index("z") }}
{{ "{} {}".format(1, "a") }}{{ "{0}{1}{0}".format("x", "y") }}{{ "{a}".format(a=t) }}{{ "{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{!r}".format("a", "b", "c", 42, 2.345, 1234567, "q") }}{{ "{{}}".format() }}{{ "{0[a]}{1.b}".format({"a": 1}, {"b": 2}) }}{{ "{:d}{:x}{:+d}{:%}".format(3, 255, 4, 0.5) }}{{ "{:*^7}".format("ab") }}{{ "{}".format(nil) }}{{ "{}".format(xs) }}
{{ "{}".format() }}
{{ "{x}".format(y=1) }}
{{ "{".format() }}
{{ "{:d}".format("x") }}
{{ "12".isdigit() }}{{ "1a".isdigit() }}{{ "ab".isalpha() }}{{ "a1".isalnum() }}{{ " ".isspace() }}{{ "AB".isupper() }}{{ "ab".islower() }}{{ "".isdigit() }}{{ "٣".isdecimal() }}{{ "½".isnumeric() }}{{ "Ab".isupper() }}{{ "1".isupper() }}
{{ "abc".removeprefix("a") }}{{ "abc".removesuffix("c") }}{{ "abc".removeprefix("x") }}
{{ "7".zfill(3) }}{{ "-7".zfill(4) }}{{ "a".ljust(3, ".") }}{{ "a".rjust(3) }}{{ "ab".center(5, "*") }}{{ "a".center(4, "*") }}{{ "abc".center(2) }}
{{ "a-b-c".partition("-") }}{{ "a-b-c".rpartition("-") }}{{ "abc".partition("x") }}{{ "abc".rpartition("x") }}
{{ d.keys() }}{{ d.values() }}{{ ed.items() }}{{ d.items() | list }}{{ d.keys() | list }}{{ d.items() | length }}
{{ {"a": 1}.items() }}{{ {"a": 1}.keys() }}{{ {"a": 1}.get("a") }}{{ {"a": 1}.get("b") }}{{ {"a": 1}.get("b", 2) }}{{ {"a": 1}.copy() }}
{{ ed.get() }}
{{ ed.get("a", default=1) }}
{{ ed.get([]) }}
{{ ed.keys()[0] }}
{{ ed.keys()[0].x }}
{{ xs.index(1) }}{{ xs.count(3) }}{{ (1, 2, 1).count(1) }}
{{ xs.index(9) }}
{{ t["upper"]() }}{{ d["a"].get("x") }}{{ "a".upper().lower() }}
{{ t.nomethod() }}
{{ f.is_integer() }}{{ 2.0.is_integer() }}
{{ xs.upper() }}
{{ t.upper(1) }}
""".strip("\n").split("\n")

TEMPLATES = OUTPUT + SPACES + OPERATORS + STATEMENTS + FILTERS + TESTS + METHODS
