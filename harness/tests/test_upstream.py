# SPDX-License-Identifier: GPL-2.0
"""upstream.py: reading results, and what counts as worse."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import upstream  # noqa: E402

TEXT = """TAP version 13
# ok 1 sanity_check_fds
# ok 2 transact_test Extra pages 39 (0.1%), extra thread faults 39.
# not ok 3 a thing
ok 1 pagemap_ioctl
ok 2 hugevm # SKIP
not ok 3 virtual_address_range # exit=137
"""


class Upstream(unittest.TestCase):
    def test_results(self):
        self.assertEqual(upstream.results(TEXT), {
            "sanity_check_fds": "pass", "transact_test Extra pages 39 (0.1%), extra thread faults 39.": "pass",
            "a thing": "fail", "pagemap_ioctl": "pass", "hugevm": "skip", "virtual_address_range": "fail"})

    def test_a_failure_is_worse_and_a_missing_result_too(self):
        stock = {"a": "pass", "b": "pass", "c": "fail"}
        self.assertEqual(upstream.worse_of(stock, {"a": "fail", "c": "fail"}), ["a", "b"])
        self.assertEqual(upstream.worse_of(stock, {"a": "skip", "b": "pass"}), ["a"])

    def test_figures_in_a_name(self):
        stock = {"took 39 (0.1%)": "pass", "size 1 kB": "pass"}
        self.assertEqual(upstream.worse_of(stock, {"took 7 (0.3%)": "pass", "size 1 kB": "fail", "size 2 kB": "pass"}), ["size 1 kB"])


if __name__ == "__main__":
    unittest.main()
