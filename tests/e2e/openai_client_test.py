"""OpenAI's own Python client, unmodified, against the HTTP front.

It runs with the Python of build/venv-clients, which scripts/get-clients makes.
"""
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading

import harness

try:
    import openai
except ImportError:
    print("skipped: this Python has no openai (scripts/get-clients installs it)")
    sys.exit(harness.SKIPPED)

PROMPT = "In the beginning"


class OpenAiClient(harness.TestCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve(harness.DEMO, "-tp", 2, "--api-key", "key")
        self.server.wait_ready()
        self.url = f"http://{self.server.fields['http']}/v1"
        self.client = openai.OpenAI(base_url=self.url, api_key="key", max_retries=0)
        self.expected = json.loads(harness.run(
            "generate", harness.DEMO, "--prompt", PROMPT, "--max-tokens", 12, "--seed", 7,
            "--logprobs", 2, "--json").stdout)
        self.ask = {"model": "demo", "prompt": PROMPT, "max_tokens": 12, "seed": 7, "logprobs": 2}

    def serve_stopping_in_a_stream(self, *flags) -> harness.Server:
        """A server with one rank, which stops itself in the middle of its first answer."""
        with harness.planted("0:step-20:stop"):
            server = self.serve(harness.DEMO, "-tp", 1, "--step-timeout", 5 * harness.GUARD, *flags)
        server.wait_ready()
        return server

    def stop(self):
        self.client.close()
        os.kill(self.server.pid, signal.SIGTERM)
        self.assertEqual(self.server.end(), 0, self.server.err.rest())

    def check(self, choice):
        self.assertEqual(choice.text, self.expected["text"])
        self.assertEqual(choice.finish_reason, self.expected["finish_reason"])
        self.assertEqual(choice.logprobs.token_logprobs,
                         [token["logprob"] for token in self.expected["logprobs"]])
        self.assertEqual([len(top) for top in choice.logprobs.top_logprobs], [2] * 12)

    def test_completions(self):
        whole = self.client.completions.create(**self.ask)
        self.check(whole.choices[0])
        self.assertEqual(whole.usage.completion_tokens, 12)
        with self.client.completions.create(**self.ask, stream=True,
                                            stream_options={"include_usage": True}) as stream:
            events = list(stream)
        self.assertEqual("".join(c.text for e in events for c in e.choices), self.expected["text"])
        self.assertEqual(events[-1].usage, whole.usage)
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")
        asyncio.run(self.check_async())
        self.stop()

    async def check_async(self):
        async with openai.AsyncOpenAI(base_url=self.url, api_key="key", max_retries=0) as client:
            answers = await asyncio.gather(*[client.completions.create(**self.ask) for _ in range(8)])
            for answer in answers:
                self.check(answer.choices[0])
            stream = await client.completions.create(**self.ask, stream=True)
            self.assertEqual("".join([e.choices[0].text async for e in stream]),
                             self.expected["text"])

    def test_the_lines_of_the_readme(self):
        (lines,) = re.findall(r"^```python\n(.*?)^```", (harness.ROOT / "README.md").read_text(),
                              re.MULTILINE | re.DOTALL)
        fields = self.serve(harness.DEMO, "--seed", 7).wait_ready()
        self.assertIn("http://localhost:8000/", lines)
        out = subprocess.run(
            [sys.executable, "-c", lines.replace("localhost:8000", fields["http"])],
            capture_output=True, text=True, env={**harness.environment(), "no_proxy": "*"})
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertTrue(out.stdout.startswith(self.expected["text"]), out.stdout)
        self.stop()

    def test_chats(self):
        ask = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "seed": 7,
               "max_completion_tokens": 12, "logprobs": True, "top_logprobs": 2}
        whole = self.client.chat.completions.create(**ask)
        choice = whole.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertEqual("".join(token.token for token in choice.logprobs.content),
                         choice.message.content)
        with self.client.chat.completions.create(**ask, stream=True) as stream:
            deltas = [event.choices[0].delta for event in stream]
        self.assertEqual(deltas[0].role, "assistant")
        self.assertEqual("".join(delta.content or "" for delta in deltas), choice.message.content)
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(**ask, tools=[{"type": "function"}])
        self.stop()

    def test_each_error_has_its_class(self):
        ask = self.client.completions.create
        with self.assertRaises(openai.BadRequestError) as wrong:
            ask(**{**self.ask, "temperature": -1})
        self.assertEqual((wrong.exception.param, wrong.exception.type),
                         ("temperature", "invalid_request_error"))
        with self.assertRaises(openai.BadRequestError) as wrong:
            ask(**{**self.ask, "prompt": "a " * 600})
        self.assertEqual(wrong.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError):
            ask(**self.ask, n=2)
        with self.assertRaises(openai.NotFoundError) as wrong:
            ask(**{**self.ask, "model": "gpt"})
        self.assertEqual(wrong.exception.code, "model_not_found")
        with self.assertRaises(openai.AuthenticationError) as wrong:
            self.client.with_options(api_key="no").completions.create(**self.ask)
        self.assertEqual(wrong.exception.code, "invalid_api_key")
        self.stop()

    def test_an_id_that_runs_is_a_conflict(self):
        server = self.serve_stopping_in_a_stream()
        client = openai.OpenAI(base_url=f"http://{server.fields['http']}/v1", api_key="none",
                               max_retries=0)
        with client.completions.create(**{**self.ask, "max_tokens": 400}, stream=True,
                                       extra_body={"request_id": "mine", "ignore_eos": True}) as stream:
            next(iter(stream))
            rank = harness.stopped_rank(server.pid)
            with self.assertRaises(openai.ConflictError):
                client.completions.create(**self.ask, extra_body={"request_id": "mine"})
            os.kill(rank, signal.SIGCONT)
        client.close()
        server.kill()
        self.stop()

    def test_a_stream_that_is_closed_ends_its_request(self):
        for _ in range(20):
            with self.client.completions.create(**{**self.ask, "max_tokens": 400}, stream=True,
                                                extra_body={"ignore_eos": True}) as stream:
                next(iter(stream))
        harness.wait_until(lambda: self.server.err.text().count("/v1/completions: status 200") == 20,
                           "20 requests ended")
        whole = self.client.completions.create(**{**self.ask, "max_tokens": 490},
                                               extra_body={"ignore_eos": True})
        self.assertEqual(whole.usage.completion_tokens, 490)
        self.stop()

    def test_its_own_retries_wait_for_a_full_queue(self):
        """A full queue answers 429 with Retry-After, and the client tries again by itself."""
        server = self.serve_stopping_in_a_stream("--max-num-queued-reqs", 1)
        patient = openai.OpenAI(base_url=f"http://{server.fields['http']}/v1", api_key="none",
                                max_retries=20)
        with patient.completions.create(**{**self.ask, "max_tokens": 400}, stream=True,
                                        extra_body={"ignore_eos": True}) as running:
            next(iter(running))
            rank = harness.stopped_rank(server.pid)
            answer = {}
            asked = threading.Thread(target=lambda: answer.update(
                text=patient.completions.create(**self.ask).choices[0].text))
            asked.start()
            harness.wait_until(lambda: "/v1/completions: status 429" in server.err.text(), "a 429")
            os.kill(rank, signal.SIGCONT)
            list(running)
        asked.join()
        self.assertEqual(answer["text"], self.expected["text"])
        patient.close()
        server.kill()
        self.stop()


if __name__ == "__main__":
    harness.main()
