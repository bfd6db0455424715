"""How long files, functions and some rooms may be, and which of them may be longer.

A function is counted from the line on which its signature begins to the line of its closing brace.
The counter knows only braces, strings and comments, and nothing else of C++: a block outside every
function counts as a function if the text in front of it has a parameter list. Lambdas count with
the function that holds them.
"""
import re

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
# Files that may be longer than MAX_FILE_LINES, with the reason.
LONG_FILES: dict[str, str] = {}
# "path: name" of functions that may be longer than MAX_FUNCTION_LINES, with the reason.
LONG_FUNCTIONS: dict[str, str] = {
    "kernels/cpu/matmul.cc: block": "one kernel: its sums have to stay in registers from the "
    "first leaf to the last",
}
# The rooms on a request's way, which have grown faster than any plan. Those that are longer already
# have a number of their own, which only ever becomes smaller, and their README.md says why.
MAX_ROOM_LINES = 2500
ROOMS: dict[str, int] = {
    "server/serving": MAX_ROOM_LINES, "server/intake": MAX_ROOM_LINES, "server/grpc": 2850,
    "server/grpc/connections": MAX_ROOM_LINES, "server/http": 3800, "server/facades": MAX_ROOM_LINES,
}
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\((?:.*?)\)\1"|"(?:\\.|[^"\\\n])*"|'
    r'(?<![0-9a-zA-Z_])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
# "S(int a) : a_" in front of a brace. The block that follows is a value, not the body.
INITIALIZER = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)[^;]*[\w>]\s*$")
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")


def blank(text: str) -> str:
    """Only the code, each part on its original line.

    Comments, literals and directives become blanks.
    """
    def keep_lines(match: re.Match) -> str:
        return re.sub(r"[^\n]", " ", match[0])
    return DIRECTIVE.sub(keep_lines, NO_CODE.sub(keep_lines, text))


def is_function(head: str) -> bool:
    """Whether a block that follows `head`, outside every function, is the body of a function."""
    if head.rstrip().endswith(("=", ",", "(")):
        return False
    # "template <class T> int f()" is a function; "struct S" and "class alignas(64) S : Base" are
    # not.
    plain = re.sub(r"template\s*<[^{]*?>(?=\s*(?:\w|\[|::))", " ", head)
    before_parameters = plain.split("(", 1)[0]
    # The text may follow a macro that a directive has opened.
    if re.search(r"\bnamespace\b", plain):
        return False
    return "(" in plain and not SCOPE.search(before_parameters)


def name_of(head: str) -> str:
    """The name in front of the parameter list, without its scopes."""
    names = re.findall(r"(operator\s*[^\s\w(]+|~?\w+)\s*(?:<[^<>]*>)?\s*\(", head)
    wrapped = {"__launch_bounds__", "alignas", "decltype", "requires", "noexcept", "__attribute__"}
    return next((name for name in names if name not in wrapped), "?")


def functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, lines) of every function."""
    code = blank(text)
    found, open_functions, depth, head_begin = [], [], 0, 0
    inside = 0       # the brace depth of the current function; 0: outside every function
    # The brace depth of a member's value in a constructor's initializer list; 0: none.
    initializer = 0
    for match in re.finditer(r"[{};]", code):
        at, char = match.start(), match[0]
        if char == "{":
            depth += 1
            head = code[head_begin:at]
            if inside == 0 and initializer == 0 and INITIALIZER.search(head):
                initializer = depth
            elif inside == 0 and initializer == 0 and is_function(head):
                inside = depth
                first = head_begin + len(head) - len(head.lstrip())
                open_functions.append((name_of(head), code.count("\n", 0, first) + 1))
        elif char == "}":
            if inside and depth == inside:
                name, line = open_functions.pop()
                found.append((name, line, code.count("\n", 0, at) + 2 - line))
                inside = 0
            depth -= 1
            if initializer > depth:
                initializer = 0
                continue
        if inside == 0 and initializer == 0:
            # An access specifier ends nothing that the counter knows, so it is removed from the
            # front of a signature.
            head_begin = at + 1
            label = re.match(r"\s*(?:public|private|protected)\s*:",
                             code[head_begin:head_begin + 80])
            head_begin += label.end() if label else 0
    return found


def stale_exceptions(texts: dict[str, str]) -> list[str]:
    """Exceptions that are no longer needed. texts: path to text, for the files that exist."""
    found = [f"tests/lint/budgets.py: {path} is listed as long, and is not" for path in LONG_FILES
             if len(texts.get(path, "").splitlines()) <= MAX_FILE_LINES]
    for entry in LONG_FUNCTIONS:
        path, name = entry.split(": ")
        if not any(known == name and length > MAX_FUNCTION_LINES
                   for known, _, length in functions(texts.get(path, ""))):
            found.append(f"tests/lint/budgets.py: {entry} is listed as long, and is not")
    return found


def check_rooms(texts: dict[str, str]) -> list[str]:
    """Rooms that have outgrown their budget. texts: path to text, for the files that exist."""
    found = []
    for room, most in ROOMS.items():
        lines = sum(len(text.splitlines()) for path, text in texts.items()
                    if path.rpartition("/")[0] == room and path.endswith((".h", ".cc")))
        if lines > most:
            found.append(f"{room}: has {lines} lines of code, of at most {most}: take something out, "
                         "or move what has another purpose to a room of its own")
        if most > MAX_ROOM_LINES and lines and lines <= most - 100:
            found.append(f"tests/lint/budgets.py: {room} may have {most} lines and has {lines}: "
                         "lower the number")
    return found


def check_budgets(path: str, text: str) -> list[str]:
    found = []
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES and path not in LONG_FILES:
        found.append(f"has {lines} lines; a file has at most {MAX_FILE_LINES}")
    # A test's body may be as long as the test needs.
    if path.endswith((".h", ".cc", ".cu", ".cuh")) and not path.startswith("tests/"):
        for name, line, length in functions(text):
            if length > MAX_FUNCTION_LINES and f"{path}: {name}" not in LONG_FUNCTIONS:
                found.append(f"line {line}: {name} has {length} lines; "
                             f"a function has at most {MAX_FUNCTION_LINES}")
    return found
