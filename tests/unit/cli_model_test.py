"""Models that can't be served, and clusters that don't fit the host: refused before anything starts.

Usage: cli_model_test.py FASTFD, in the root of the sources.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FASTFD = None
MODEL = pathlib.Path("models/atlas-moe")
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
         "model.safetensors")


class CliModelTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in FILES:
            (self.folder / name).symlink_to((MODEL / name).resolve())

    def own(self, name):
        """A copy of a model file that the test may change."""
        path = self.folder / name
        path.unlink()
        shutil.copy(MODEL / name, path)
        return path

    def assert_refused(self, *words, kv_cache="{pages: 256, page_size: 16}"):
        file = self.folder / "cluster.yaml"
        file.write_text(f"model: {{path: {self.folder}, max_model_len: 256}}\n"
                        f"attention: {{servers: 1, kv_cache: {kv_cache}}}\n"
                        "ffn: {servers: 1}\n"
                        "coordinator: {http: '127.0.0.1:18080', control: '127.0.0.1:17070'}\n")
        done = subprocess.run([FASTFD, "launch", str(file)], capture_output=True, text=True,
                              timeout=60, check=False)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 1, said)
        self.assertNotIn("[coordinator]", said, "a process was started")
        for word in words:
            self.assertIn(word, said)

    def test_tokenizer_with_more_ids_than_the_model(self):
        path = self.own("tokenizer.json")
        tokenizer = json.loads(path.read_text())
        tokenizer["added_tokens"][0]["id"] = 6144
        path.write_text(json.dumps(tokenizer))
        self.assert_refused("tokenizer.json", "6144", "vocab_size")

    def test_text_files_are_named(self):
        self.own("tokenizer_config.json").write_text("{")
        self.assert_refused("tokenizer_config.json is not valid JSON")
        (self.folder / "chat_template.jinja").write_text("{% if %}")
        self.own("tokenizer_config.json")
        self.assert_refused("chat template, line 1", str(self.folder))

    def test_config_with_fewer_layers_than_the_checkpoint(self):
        path = self.own("config.json")
        config = json.loads(path.read_text())
        config["num_hidden_layers"] = 3
        path.write_text(json.dumps(config))
        self.assert_refused("model.layers.3.", "num_hidden_layers is 3")

    def test_kv_cache_beyond_the_memory_of_the_host(self):
        self.assert_refused("cluster.yaml: attention.kv_cache.pages", "MiB of memory", "lower",
                            kv_cache="{pages: 16777216, page_size: 1024}")


if __name__ == "__main__":
    FASTFD = sys.argv.pop(1)
    unittest.main()
