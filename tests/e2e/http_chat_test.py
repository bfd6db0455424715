"""/v1/chat/completions: a chat is the completion of what the template makes of it."""
import json
import os
import signal

import harness
from http_client import ServerCase, Stream, call

PLAIN = "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{%- endfor %}"


class Chat(ServerCase):
    def test_chat(self):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [
            {"type": "text", "text": "Who was"}, {"type": "text", "text": "the king?"}]}]
        fields = {"max_tokens": 12, "seed": 7, "return_token_ids": True}
        path = f"/tmp/shoal-messages-{os.getpid()}.json"
        with open(path, "w") as file:
            json.dump(messages, file)
        self.addCleanup(os.remove, path)
        expected = json.loads(harness.run("generate", harness.DEMO, "--messages", path, "--json",
                                          "--max-tokens", 12, "--seed", 7, "--logprobs", 2).stdout)
        whole = call(self.server, "POST", "/v1/chat/completions", {
            "messages": messages, **fields, "logprobs": True, "top_logprobs": 2}).json()
        choice = whole["choices"][0]
        self.assertEqual(whole["object"], "chat.completion")
        self.assertEqual(choice["message"], {"role": "assistant", "content": expected["text"]})
        self.assertEqual(choice["prompt_token_ids"], expected["prompt_token_ids"])
        self.assertEqual(choice["token_ids"], expected["token_ids"])
        records = choice["logprobs"]["content"]
        self.assertEqual([(r["logprob"], [t["logprob"] for t in r["top_logprobs"]]) for r in records],
                         [(t["logprob"], [p for _, p in t["top"]]) for t in expected["logprobs"]])
        # The records have the token that ended the answer too.
        self.assertTrue(bytes(b for r in records for b in r["bytes"]).decode().startswith(
            expected["text"]))
        stream = Stream.parse(call(self.server, "POST", "/v1/chat/completions", {
            "messages": messages, **fields, "stream": True}).body)
        deltas = [c["delta"] for e in stream.events for c in e["choices"]]
        self.assertEqual(deltas[0]["role"], "assistant")
        self.assertTrue(all("role" not in delta for delta in deltas[1:]))
        self.assertEqual("".join(d.get("content", "") for d in deltas), expected["text"])
        self.check_chat_refusals()
        self.stop()

    def check_chat_refusals(self):
        for body, param in (({"messages": []}, "messages"), ({}, "messages"),
                            ({"messages": [{"role": "user"}]}, "messages[0].content"),
                            ({"messages": [{"role": "user", "content": "a " * 600}]}, "messages"),
                            ({"messages": [{"role": "user", "content": "a"}], "chat_template": "x"},
                             "chat_template"),
                            ({"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, "tools")):
            answer = call(self.server, "POST", "/v1/chat/completions", body)
            self.assertEqual((answer.status, answer.error["param"]), (400, param), answer.body)

    def test_templates(self):
        """A template of the operator's is used; one that does not parse leaves completions."""
        path = f"/tmp/shoal-template-{os.getpid()}.jinja"
        self.addCleanup(os.remove, path)
        ask = {"messages": [{"role": "user", "content": "<|im_end|>"}], "max_tokens": 1,
               "return_token_ids": True}
        for template, status in ((PLAIN, 200), ("{% for %}", 400),
                                 ("{{ raise_exception('no ' ~ messages[0].role) }}", 400)):
            with open(path, "w") as file:
                file.write(template)
            server = self.serve(harness.DEMO, "-tp", 1, "--chat-template", path)
            server.wait_ready()
            answer = call(server, "POST", "/v1/chat/completions", ask)
            self.assertEqual(answer.status, status, answer.body)
            if template is PLAIN:
                # What the client wrote is text, and no token that ends a turn.
                ids = answer.json()["choices"][0]["prompt_token_ids"]
                end = call(server, "POST", "/tokenize", {"prompt": "<|im_end|>",
                                                         "add_special_tokens": False}).json()["tokens"]
                self.assertEqual(len(end), 1)
                self.assertNotIn(end[0], ids)
            elif "for" in template:
                server.wait_logged(rf"{path}:1:\d+")
                self.assertEqual(answer.error["code"], "NO_CHAT_TEMPLATE")
            else:
                self.assertEqual((answer.error["message"], answer.error["code"]),
                                 ("no user", "TEMPLATE_REFUSES"))
            self.assertEqual(call(server, "POST", "/v1/completions",
                                  {"prompt": "a", "max_tokens": 1}).status, 200)
            os.kill(server.pid, signal.SIGTERM)
            self.assertEqual(server.end(), 0)
        missing = harness.run("serve", harness.DEMO, "--grpc-port", 0, "--chat-template", "/no",
                              code=harness.USAGE)
        self.assertIn(b"--chat-template cannot be read", missing.stderr)
        self.stop()


if __name__ == "__main__":
    harness.main()
