#!/usr/bin/env python3
"""The official `openai` client against a FastFD gateway.

    openai_client_test.py URL               a running cluster, e.g. http://127.0.0.1:8000
    openai_client_test.py --start PROGRAM   PROGRAM prints a port and serves until stdin closes

Exits with 77 (skipped) when the `openai` package is not installed. FASTFD_TEST_PYTHON names the
Python interpreter to use, for a virtual environment.
"""

import os
import subprocess
import sys

SKIPPED = 77

_wanted = os.environ.pop("FASTFD_TEST_PYTHON", None)
if _wanted:
    os.execv(_wanted, [_wanted] + sys.argv)

try:
    import openai
except ImportError as missing:
    print(f"SKIPPED openai_client: {missing}; set FASTFD_TEST_PYTHON to a Python that has `openai`")
    sys.exit(SKIPPED)

MESSAGES = [{"role": "user", "content": "Tell me a story about a brave little fox."}]
PROMPT = "Once upon a time"


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def expect_error(kind, call, **fields):
    try:
        call()
    except kind as error:
        for name, value in fields.items():
            actual = getattr(error, name)
            check(actual == value, f"{name} is {actual!r}, not {value!r}: {error}")
        return error
    raise AssertionError(f"no {kind.__name__}")


class Tests:
    def __init__(self, url):
        self.client = openai.OpenAI(
            base_url=url.rstrip("/") + "/v1", api_key="none", max_retries=0, timeout=60
        )
        self.model = self.client.models.list().data[0].id

    def chat(self, **fields):
        fields = {"temperature": 0, "max_tokens": 24} | fields
        return self.client.chat.completions.create(model=self.model, messages=MESSAGES, **fields)

    def complete(self, **fields):
        fields = {"temperature": 0, "max_tokens": 24, "prompt": PROMPT} | fields
        return self.client.completions.create(model=self.model, **fields)

    def test_models(self):
        models = self.client.models.list()
        check(models.object == "list" and len(models.data) == 1, models)
        check(self.client.models.retrieve(self.model).id == self.model, "retrieve")
        expect_error(
            openai.NotFoundError, lambda: self.client.models.retrieve("no-such"), status_code=404
        )

    def test_chat(self):
        answer = self.chat()
        choice = answer.choices[0]
        check(answer.object == "chat.completion" and answer.id.startswith("chatcmpl-"), answer)
        check(choice.message.role == "assistant" and choice.message.content, choice)
        check(choice.finish_reason in ("stop", "length"), choice)
        usage = answer.usage
        check(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 24, usage)
        check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
        check(usage.prompt_tokens_details.cached_tokens >= 0, usage)

    def test_chat_stream_equals_whole(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        check(chunks[0].choices[0].delta.role == "assistant", chunks[0])
        check(all(c.object == "chat.completion.chunk" for c in chunks), "object")
        check(len({c.id for c in chunks}) == 1, "one id a response")
        text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
        check(text == whole.choices[0].message.content, f"{text!r} streamed, else {whole}")
        check(chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason, "finish")
        check(not chunks[-1].choices, "the usage chunk has no choices")
        check(chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, "usage")

    def test_stream_without_usage(self):
        chunks = list(self.chat(stream=True))
        check(all(c.usage is None and len(c.choices) == 1 for c in chunks), "no usage chunk")

    def test_completion(self):
        whole = self.complete()
        check(whole.object == "text_completion" and whole.choices[0].text, whole)
        streamed = "".join(c.choices[0].text for c in self.complete(stream=True))
        check(streamed == whole.choices[0].text, f"{streamed!r} streamed, else {whole}")
        echoed = self.complete(echo=True)
        check(echoed.choices[0].text == PROMPT + whole.choices[0].text, echoed)

    def test_length(self):
        answer = self.complete(max_tokens=3)
        check(answer.choices[0].finish_reason == "length", answer)
        check(answer.usage.completion_tokens == 3, answer)

    def test_prompt_batch_and_choices(self):
        answer = self.complete(prompt=[PROMPT, "The fox"], n=2)
        check([c.index for c in answer.choices] == [0, 1, 2, 3], answer)
        check(answer.choices[0].text == answer.choices[1].text, "greedy choices agree")
        single = self.complete()
        check(answer.choices[0].text == single.choices[0].text, "as if asked alone")
        sampled = self.chat(n=3, temperature=1.0, seed=7)
        check(len(sampled.choices) == 3, sampled)

    def test_seed_repeats(self):
        first, second = (self.chat(temperature=1.0, seed=99) for _ in range(2))
        check(first.choices[0].message.content == second.choices[0].message.content, "seed")

    def test_stop_string(self):
        text = self.complete().choices[0].text
        stop = text[5:9]
        for stream in (False, True):
            answer = self.complete(stop=[stop, "\x01 never \x01"], stream=stream)
            chunks = list(answer) if stream else [answer]
            stopped = "".join(c.choices[0].text for c in chunks)
            check(stopped == text[: text.index(stop)], f"{stopped!r} of {text!r} up to {stop!r}")
            check(chunks[-1].choices[0].finish_reason == "stop", chunks[-1])

    def test_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
        check(1 <= len(content) <= 4, content)
        check(all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in content), content)
        logprobs = self.complete(logprobs=2, max_tokens=4).choices[0].logprobs
        check(1 <= len(logprobs.tokens) == len(logprobs.token_logprobs), logprobs)
        check(len(logprobs.top_logprobs) == len(logprobs.text_offset), logprobs)

    def test_content_parts(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
        answer = self.client.chat.completions.create(
            model=self.model, messages=parts, temperature=0, max_tokens=24
        )
        check(answer.choices[0].message.content == self.chat().choices[0].message.content, answer)

    def test_errors(self):
        bad = openai.BadRequestError
        error = expect_error(bad, lambda: self.chat(temperature=9), param="temperature")
        check("[0, 2]" in error.message, error.message)
        expect_error(
            bad, lambda: self.complete(prompt="a b " * 100_000), code="context_length_exceeded"
        )
        expect_error(
            bad,
            lambda: self.chat(response_format={"type": "json_object"}),
            code="unsupported_parameter",
        )
        create = self.client.chat.completions.create
        missing = lambda: create(model="no-such", messages=MESSAGES)
        expect_error(openai.NotFoundError, missing, code="model_not_found")
        empty = lambda: create(model=self.model, messages=[])
        expect_error(bad, empty, param="messages")

    def test_a_closed_stream_leaves_the_server_well(self):
        with self.complete(max_tokens=200, stream=True) as stream:
            next(iter(stream))
        check(self.complete(max_tokens=2).choices[0].text is not None, "the next request")

    def run(self):
        names = sorted(name for name in dir(self) if name.startswith("test_"))
        failed = 0
        for name in names:
            try:
                getattr(self, name)()
                print(f"ok    {name}", flush=True)
            except Exception as error:  # every test is to be run
                failed += 1
                print(f"FAIL  {name}: {type(error).__name__}: {error}", flush=True)
        print(f"{len(names) - failed} of {len(names)} passed with openai {openai.__version__}")
        return 1 if failed else 0


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--start":
        server = subprocess.Popen([sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            port = int(server.stdout.readline())
            return Tests(f"http://127.0.0.1:{port}").run()
        finally:
            server.stdin.close()
            server.wait(timeout=30)
    if len(sys.argv) == 2:
        return Tests(sys.argv[1]).run()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
