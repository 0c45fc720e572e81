# SPDX-License-Identifier: GPL-2.0
"""expect.py: what is as it must be, and when a second run counts."""
import contextlib
import io
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import expect  # noqa: E402

TABLE = """# case	off	stock	series	debug	why
a.one	fail	pass	pass	pass	one
a.two	fail	any	pass	pass	two
a.three	fail	fail	pass	skip	three
"""


def tap(one, two, three, test="thing"):
    words = {"pass": "ok %d %s", "fail": "not ok %d %s", "skip": "ok %d %s # SKIP"}
    lines = ["### " + test, "TAP version 13"]
    for number, (case, result) in enumerate((("a.one", one), ("a.two", two), ("a.three", three)), 1):
        if result == "fail":
            lines.append("# it is not so")
        if result:
            lines.append(words[result] % (number, case))
    return "\n".join(lines) + "\n"


class Expect(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        (self.dir / "thing.tsv").write_text(TABLE)
        self.addCleanup(setattr, expect, "EXPECT", expect.EXPECT)
        expect.EXPECT = self.dir

    def log(self, name, *args, **words):
        path = self.dir / name
        path.write_text(tap(*args, **words))
        return path

    def compare(self, kernel, *logs):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            bad = expect.compare(kernel, *logs)
        return bad, text.getvalue()

    def test_as_due(self):
        for two in ("pass", "fail"):
            self.assertEqual(self.compare("stock", self.log("l", "pass", two, "fail"))[0], 0)
        self.assertEqual(self.compare("debug", self.log("l", "pass", "pass", "skip"))[0], 0)

    def test_not_as_due(self):
        for results in (("fail", "pass", "fail"), ("pass", "skip", "fail"), ("pass", "pass", "pass"), ("pass", "pass", None)):
            log = self.log("l", *results)
            self.assertEqual(self.compare("stock", log)[0], 1, results)
            self.assertEqual(expect.again("stock", log), ["thing"])

    def test_second_run_counts(self):
        first, second = self.log("1", "fail", "pass", "fail"), self.log("2", "pass", "pass", "fail")
        bad, text = self.compare("stock", first, second)
        self.assertEqual(bad, 0)
        self.assertIn("ok stock: thing: a.one (second run; the first: fail, it said: it is not so)\n", text)

    def test_second_run_counts_where_the_first_was_wrong_only(self):
        first, second = self.log("1", "fail", "pass", "fail"), self.log("2", "pass", "pass", "pass")
        self.assertEqual(self.compare("stock", first, second)[0], 0)

    def test_twice_wrong(self):
        log = self.log("1", "fail", "pass", "fail")
        self.assertEqual(self.compare("stock", log, log)[0], 1)

    def test_second_run_on_series_is_for_what_was_skipped(self):
        first, second = self.log("1", "fail", "skip", "pass"), self.log("2", "pass", "pass", "pass")
        self.assertEqual(expect.again("series", first), ["thing"])
        bad, text = self.compare("series", first, second)
        self.assertEqual(bad, 1)
        self.assertIn("FAIL series: thing: a.one: fail, expected pass", text)
        self.assertIn("ok series: thing: a.two (second run; the first: skip, it said: ", text)
        self.assertEqual(expect.again("series", self.log("3", "fail", "pass", "pass")), [])

    def test_second_run_of_another_test(self):
        first, second = self.log("1", "fail", "pass", "fail"), self.log("2", "pass", "pass", "fail", test="other")
        self.assertEqual(self.compare("stock", first, second)[0], 1)

    def test_test_that_did_not_run_is_not_asked_for_again(self):
        log = self.log("1", "pass", "pass", "fail", test="other")
        self.assertEqual(expect.again("stock", log), [])
        self.assertEqual(self.compare("stock", log)[0], 4)  # three without a result, and a test without a table

    def test_command_line(self):
        script = str(Path(expect.__file__))
        log = str(self.log("1", "pass", "pass", "pass"))
        for words in ([], ["nope", log], ["stock"], ["stock", log, log, log], ["--again", "stock", log, log],
                      ["stock", log + ".gone"]):
            run = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
            self.assertEqual((run.returncode, run.stdout), (2, ""), words)


if __name__ == "__main__":
    unittest.main()
