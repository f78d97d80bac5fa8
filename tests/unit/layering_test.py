"""scripts/check-layering finds what breaks the rules, and nothing else.

Usage: layering_test.py CHECK_LAYERING
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = None


class LayeringTest(unittest.TestCase):
    def check(self, files):
        """Runs the script over a tree with these files; returns (exit status, problems)."""
        with tempfile.TemporaryDirectory() as root:
            for name, text in files.items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True,
                                  check=False)
            return done.returncode, done.stderr.splitlines()

    def assert_refused(self, files, words):
        status, problems = self.check(files)
        self.assertEqual(status, 1)
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_downward_includes_pass(self):
        status, problems = self.check({
            "src/scheduler/a.cpp": '#include "fastfd/core/ids.h"\n#include "scheduler/b.h"\n'
                                   '#include <vector>\n',
            "include/fastfd/model/m.h": '#pragma once\n#include "kernels/gemm/op.h"\n',
            "kernels/gemm/op.h": '#pragma once\n#include "fastfd/core/dtype.h"\n',
            "src/control_plane/c.cpp": '#include "fastfd/v1/cluster.pb.h"\n#include <grpcpp/x.h>\n',
        })
        self.assertEqual((status, problems), (0, []))

    def test_every_forbidden_direction(self):
        for user, included in [
                ("core", "fastfd/config/x.h"), ("model", "fastfd/transport/x.h"),
                ("transport", "fastfd/model/x.h"), ("attention_server", "fastfd/ffn_server/x.h"),
                ("ffn_server", "fastfd/attention_server/x.h"), ("scheduler", "fastfd/device/x.h"),
                ("scheduler", "kernels/layout/x.h"), ("gateway", "fastfd/v1/x.pb.h"),
                ("launcher", "fastfd/cluster/x.h")]:
            with self.subTest(user=user, included=included):
                self.assert_refused({f"src/{user}/a.cpp": f'\n#include "{included}"\n'},
                                    [f"src/{user}/a.cpp:2", included])

    def test_private_headers_of_others_count_too(self):
        self.assert_refused({"src/ffn_server/a.cpp": '#include "attention_server/pages.h"\n'},
                            ["attention_server"])
        self.assert_refused({"kernels/gemm/op_cpu.cpp": '#include "fastfd/model/model.h"\n'},
                            ["kernels must not see model"])

    def test_public_headers_stay_light(self):
        for heavy in ("grpcpp/grpcpp.h", "boost/beast/core.hpp", "nlohmann/json.hpp", "CLI/CLI.hpp"):
            with self.subTest(heavy=heavy):
                self.assert_refused(
                    {"include/fastfd/core/a.h": f"#pragma once\n#include <{heavy}>\n"}, [heavy])
        self.assertEqual(self.check({"include/fastfd/core/a.h":
                                     "#pragma once\n#include <nlohmann/json_fwd.hpp>\n"})[0], 0)

    def test_other_rules(self):
        self.assert_refused({"src/core/a.h": "int x;\n"}, ["#pragma once"])
        self.assert_refused({"src/core/a.cpp": 'auto x = std::getenv("HOME");\n'}, ["environment"])
        self.assertEqual(self.check({"src/config/a.cpp": 'auto x = std::getenv("HOME");\n'})[0], 0)
        self.assert_refused({"src/unheard_of/a.cpp": "\n"}, ["has no rule"])
        self.assertEqual(self.check({})[0], 1, "an empty tree is a wrong path, not a clean one")


if __name__ == "__main__":
    CHECK = sys.argv.pop(1)
    unittest.main()
