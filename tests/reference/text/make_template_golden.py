#!/usr/bin/env python3
"""Writes template_golden.json: what Jinja makes of chat_templates.py and template_snippets.py.

Needs `jinja2` (3.1 wrote the committed file). The environment is the one `transformers` renders
chat templates in: an immutable sandbox with trim_blocks, lstrip_blocks and loop controls.
"""

import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

import chat_templates
import template_snippets

HERE = pathlib.Path(__file__).resolve().parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Raised(Exception):
    pass


class Generation(Extension):
    """{% generation %} marks assistant text; for rendering it is its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime(2025, 3, 9, 14, 5, 6).strftime(form)
    return env


def render(env, source, variables):
    try:
        template = env.from_string(source)
    except (jinja2.TemplateSyntaxError, SyntaxError):
        return {"error": "syntax"}
    try:
        return {"text": template.render(**variables)}
    except Raised as error:
        return {"error": "raised", "message": str(error)}
    except Exception:  # noqa: BLE001: any Python error is a failed rendering
        return {"error": "runtime"}


def conversations(env):
    cases = []
    tool_sets = {"none": None, "one": [chat_templates.WEATHER], "two": [chat_templates.WEATHER, chat_templates.ADD]}
    for name, source in chat_templates.TEMPLATES.items():
        for conversation, messages in chat_templates.CONVERSATIONS.items():
            for tools_name, tools in tool_sets.items():
                for variables_name, variables in chat_templates.VARIABLES.items():
                    tools_matter = tools_name == "none" or conversation in ("one", "tools", "system", "channels")
                    variables_matter = variables_name == "plain" or (
                        conversation == "one" and name in ("thinking", "headers-date", "harmony"))
                    if not (tools_matter and variables_matter):
                        continue
                    prompt = tools_name != "two"
                    result = render(env, source, dict(messages=messages, tools=tools, documents=None,
                                                      add_generation_prompt=prompt, **TOKENS, **variables))
                    cases.append({"template": name, "messages": conversation, "tools": tools_name,
                                  "variables": variables_name, "prompt": prompt, **result})
    return cases, tool_sets


def main():
    env = environment()
    cases, tool_sets = conversations(env)
    sources = template_snippets.snippets() + template_snippets.EXTRA
    snippets = []
    for source in sources:
        variables = dict(template_snippets.CONTEXT, messages=[], tools=None, add_generation_prompt=False)
        snippets.append({"source": source, **render(env, source, variables)})
    out = {"tokens": TOKENS, "templates": chat_templates.TEMPLATES, "conversations": chat_templates.CONVERSATIONS,
           "tools": tool_sets, "variables": chat_templates.VARIABLES, "cases": cases,
           "context": template_snippets.CONTEXT, "snippets": snippets}
    path = HERE / "template_golden.json"
    path.write_text(json.dumps(out, ensure_ascii=True, separators=(",", ":")) + "\n")
    errors = sum("error" in case for case in cases)
    print(f"{path.name}: {path.stat().st_size} bytes, {len(cases)} cases ({errors} errors), {len(snippets)} snippets")


if __name__ == "__main__":
    main()
