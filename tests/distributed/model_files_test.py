"""A model as the Hugging Face cache has it, served by its id: where its files reach the answers.

Usage: model_files_test.py FASTFD, in the root of the sources.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from launched_cluster import PATIENCE_S, Cluster, post  # noqa: E402

FASTFD = None
MODEL = pathlib.Path("models/atlas-moe")
MODEL_ID = "Test/Atlas-MoE"

# Token 13 is ".": answers end there. Sampling that is greedy by top_k alone.
GENERATION = {"do_sample": True, "temperature": 2.0, "top_k": 1, "repetition_penalty": 5.0,
              "eos_token_id": [13, 6143]}

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is not defined or enable_thinking %}{{ '<think>\\n' }}{% endif %}
{%- endif %}
{%- if false %}{{ '</think>' }}{% endif %}
"""


def make_cache(folder):
    snapshot = folder / "models--Test--Atlas-MoE" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (snapshot / name).symlink_to((MODEL / name).resolve())
    (snapshot / "generation_config.json").write_text(json.dumps(GENERATION))
    (snapshot / "chat_template.jinja").write_text(TEMPLATE)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0123abcd")


class ModelFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        os.environ["HF_HUB_CACHE"] = cls.folder.name
        make_cache(pathlib.Path(cls.folder.name))
        file = pathlib.Path(cls.folder.name) / "cluster.yaml"
        file.write_text(f"model: {{path: {MODEL_ID}, max_model_len: 256}}\n"
                        "attention: {servers: 1, kv_cache: {pages: 256}}\nffn: {servers: 1}\n")
        cls.cluster = Cluster(FASTFD, config=str(file))
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.wait_ready()

    def answers(self, **fields):
        """The messages of the answer's choices."""
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
                "chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 24} | fields
        status, answer = post(self.cluster.http, "/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        self.finish = answer["choices"][0]["finish_reason"]
        return [choice["message"] for choice in answer["choices"]]

    def test_the_id_is_the_models_name(self):
        with urllib.request.urlopen(f"http://{self.cluster.http}/v1/models",
                                    timeout=PATIENCE_S) as reply:
            self.assertEqual(json.load(reply)["data"][0]["id"], MODEL_ID)

    def test_every_end_of_sequence_token_ends_an_answer(self):
        message, = self.answers(repetition_penalty=1)
        self.assertEqual(message["content"], "The capital of France is Paris")
        self.assertEqual(self.finish, "stop")

    def test_sampling_defaults_count_for_what_a_request_does_not_say(self):
        greedy = "The capital of France is Paris"
        self.assertNotEqual(self.answers()[0]["content"], greedy, "no repetition penalty")
        several = self.answers(repetition_penalty=1, n=3)
        self.assertEqual([message["content"] for message in several], [greedy] * 3, "no top_k")
        free = self.answers(repetition_penalty=1, top_k=-1, n=6)
        self.assertGreater(len({message["content"] for message in free}), 1, "no temperature")
        one = self.answers(repetition_penalty=1, top_k=-1, temperature=0)
        self.assertEqual(one[0]["content"], greedy)

    def test_an_open_tag_of_the_template_makes_the_answer_reasoning(self):
        message, = self.answers(chat_template_kwargs={}, min_tokens=4, max_tokens=4)
        self.assertIsNone(message["content"])
        self.assertTrue(message["reasoning_content"])
        message, = self.answers(max_tokens=4)
        self.assertTrue(message["content"])
        self.assertIsNone(message["reasoning_content"])

    def test_tools_need_a_template_that_reads_them(self):
        status, answer = post(self.cluster.http, "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": {"name": "f"}}]})
        self.assertEqual((status, answer["error"]["param"]), (400, "tools"))

    def test_a_model_that_is_not_in_the_cache(self):
        done = subprocess.run([FASTFD, "serve", "Test/Missing"], capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("`hf download Test/Missing`", done.stderr)


if __name__ == "__main__":
    FASTFD = sys.argv.pop(1)
    unittest.main()
