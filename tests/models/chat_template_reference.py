"""Renders chat templates with Jinja2, set up as transformers 5.23 does it (chat_template_utils.py).

Two things are added: the filter from_json, which some public templates use and which servers offer,
and a fixed time for strftime_now.
"""
import copy
import functools
import json
from collections import deque
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1_700_000_000


class Raised(Exception):
    """What raise_exception of a template raises."""


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    @staticmethod
    def _support(caller):
        return caller()


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):  # noqa: N805, because namespace(self=...) has to work
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            TemplateNamespace._check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        TemplateNamespace._check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check_name(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError("a name with an underscore")


def raise_exception(message):
    raise Raised(str(message))


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.fromtimestamp(NOW).strftime(form)
    env.globals["dict"] = TemplateDict()
    env.globals["namespace"] = TemplateNamespace
    return env


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=4)
def compiled(source):
    return ENVIRONMENT.from_string(source)


def render(source, variables):
    """{"text"}, {"raised"} or {"error"}, as chat_template_main prints it."""
    try:
        # A copy, because Jinja2's filter indent can change a list that it is given.
        return {"text": compiled(source).render(**copy.deepcopy(variables))}
    except Raised as error:
        return {"raised": str(error)}
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001, because templates can raise anything
        return {"error": f"{type(error).__name__}: {error}"}


# What follows is vLLM's detection of a template's content format, on Jinja2's own syntax tree.

def _bare(node):
    while (isinstance(node, (nodes.Filter, nodes.Test)) and node.node is not None) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    return node


def _is_name(node, names):
    node = _bare(node)
    return isinstance(node, nodes.Name) and node.name in names


def _is_content(node, messages):
    node = _bare(node)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content" and _is_name(node.node, messages)
    return (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const)
            and node.arg.value == "content" and _is_name(node.node, messages))


def _aliases(tree, names, matches=lambda node: False):
    names = set(names)
    queue = deque([None])
    while queue:
        queue.popleft()
        for assign in tree.find_all(nodes.Assign):
            if isinstance(assign.target, nodes.Name) and assign.target.name not in names and (
                    _is_name(assign.node, names) or matches(assign.node)):
                names.add(assign.target.name)
                queue.append(None)
    return names


@functools.lru_cache(maxsize=4)
def content_format(source):
    """(whether it loops over the content of messages, whether it asks if something is a string)"""
    tree = ENVIRONMENT.parse(source)
    loops = list(tree.find_all(nodes.For))
    lists = _aliases(tree, {"messages"})
    messages = {loop.target.name for loop in loops
                if _is_name(loop.iter, lists) and isinstance(loop.target, nodes.Name)}
    contents = _aliases(tree, set(), lambda node: _is_content(node, messages))
    iterates = any(_is_content(loop.iter, messages) or _is_name(loop.iter, contents)
                   for loop in loops)
    return iterates, any(test.name == "string" for test in tree.find_all(nodes.Test))


def shaped_messages(source, messages):
    """The messages as a template gets them: vLLM's form of the content, transformers' names."""
    try:
        iterates, tests_string = content_format(source)
    except jinja2.TemplateError:
        return messages
    shaped = []
    for message in messages:
        reasoning = next((message[key] for key in ("reasoning_content", "thinking", "reasoning")
                          if message.get(key) is not None), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        content = message.get("content")
        if isinstance(content, str) and iterates and not tests_string:
            message = {**message, "content": [{"type": "text", "text": content}]}
        elif isinstance(content, list) and not iterates:
            message = {**message, "content": "\n".join(part["text"] for part in content)}
        shaped.append(message)
    return shaped


def render_chat(source, messages, kwargs, add_generation_prompt):
    return render(source, {"tools": None, "documents": None, **kwargs,
                           "messages": shaped_messages(source, messages),
                           "add_generation_prompt": add_generation_prompt})
