# SPDX-License-Identifier: GPL-2.0
"""tree.py on a kernel of three files: import, apply, refresh, dist, and what bad input gets."""
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

HARNESS = Path(__file__).resolve().parent.parent
MAKEFILE = "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 117\n"
MEMORY = "".join("line %d\n" % n for n in range(1, 31))


def patch(subject, line, new, adds=()):
    """A patch of mm/memory.c that puts NEW in the place of LINE."""
    old = MEMORY.splitlines()
    at = old.index(line)
    body = [" " + t for t in old[at - 3:at]] + ["-" + line, "+" + new] + [" " + t for t in old[at + 1:at + 4]]
    return ("From %s Mon Sep 17 00:00:00 2001\nFrom: A <a@localhost>\nDate: Mon, 30 Nov 2026 12:00:00 +0000\n"
            "Subject: [PATCH] %s\n\nWhy.\n---\n%s\ndiff --git a/mm/memory.c b/mm/memory.c\nindex 0000000..1111111 100644\n"
            "--- a/mm/memory.c\n+++ b/mm/memory.c\n@@ -%d,7 +%d,7 @@\n%s\n"
            % ("0" * 40, subject, "".join("Adds: %s\n" % a for a in adds), at - 2, at - 2, "\n".join(body)))


class Tree(unittest.TestCase):
    def setUp(self):
        self.top = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.top)
        stock = self.top / "stock"
        (stock / "mm").mkdir(parents=True)
        (stock / "Makefile").write_text(MAKEFILE)
        (stock / "mm/memory.c").write_text(MEMORY)
        (stock / "mm/ksm.c").write_text("ksm\n")
        self.tarball = self.top / "linux.tar.xz"
        with tarfile.open(self.tarball, "w:xz") as tar:
            tar.add(stock, "linux-source-6.12")
        for name in ("patches/off", "patches/cow", "mm", "harness"):
            (self.top / name).mkdir(parents=True)
        (self.top / "harness/tracked").write_text("mm/memory.c\n")
        (self.top / "mm/cow.c").write_text("cow\n")
        self.write("off/0010-cow-out.patch", patch("off: cow", "line 5", "line off"))
        self.write("cow/0010-cow-in.patch", patch("cow: in", "line 20", "line series", adds=["mm/cow.c"]))
        (self.top / "patches/series").write_text("# off\noff/0010-cow-out.patch\n# cow\ncow/0010-cow-in.patch\n")
        self.run_tree("record")

    def write(self, name, text):
        (self.top / "patches" / name).write_text(text)

    def run_tree(self, *args, status=0, says=""):
        env = dict(os.environ, TOP=str(self.top), SOURCE=str(self.tarball), CACHE=str(self.top / "cache"))
        run = subprocess.run([sys.executable, str(HARNESS / "tree.py"), *args], env=env, text=True, capture_output=True)
        self.assertEqual(run.returncode, status, run.stderr)
        self.assertIn(says, run.stderr)
        if status:
            faults = [line for line in run.stderr.strip().split("\n") if not line.startswith("[")]
            self.assertEqual(len(faults), 1, run.stderr)
        return run.stdout

    def git(self, *args):
        return subprocess.run(["git", "-C", str(self.top / "build/src"), *args], check=True, text=True,
                              capture_output=True).stdout

    def repo(self):
        files = [p for t in ("patches", "mm") for p in sorted((self.top / t).rglob("*")) if p.is_file()]
        return {str(p.relative_to(self.top)): p.read_text() for p in files}

    def test_series_becomes_commits(self):
        self.run_tree("tree")
        self.assertEqual(self.git("log", "--format=%s").split("\n")[:3], ["cow: in", "off: cow", "stock 6.12.117"])
        self.assertIn("line off", self.git("show", "off:mm/memory.c"))
        self.assertNotIn("line series", self.git("show", "off:mm/memory.c"))
        self.assertEqual(self.git("show", "HEAD:mm/cow.c"), "cow\n")

    def test_refresh_is_a_round_trip(self):
        self.run_tree("tree")
        self.run_tree("refresh")            # the handwritten patches get their canonical form
        first = self.repo()
        shutil.rmtree(self.top / "build")
        self.run_tree("tree")
        self.run_tree("refresh")
        self.assertEqual(self.repo(), first)

    def test_commit_in_the_tree_reaches_the_repo(self):
        self.run_tree("tree")
        memory = self.top / "build/src/mm/memory.c"
        memory.write_text(memory.read_text().replace("line 29", "line new"))
        (self.top / "build/src/mm/new.c").write_text("new\n")
        self.git("add", "-f", "mm/new.c")
        self.git("commit", "-qam", "cow: one more thing")
        self.run_tree("refresh")
        text = (self.top / "patches/cow/0020-cow-one-more-thing.patch").read_text()
        self.assertIn("+line new", text)
        self.assertIn("Adds: mm/new.c", text)
        self.assertNotIn("+new", text.replace("+line new", ""))
        self.assertEqual((self.top / "mm/new.c").read_text(), "new\n")
        self.assertTrue((self.top / "patches/series").read_text().startswith("# off\n"))

    def test_refresh_wants_commits(self):
        self.run_tree("tree")
        (self.top / "build/src/mm/memory.c").write_text("x\n")
        self.run_tree("refresh", status=2, says="uncommitted")

    def test_edit_of_an_untracked_file_is_seen(self):
        self.run_tree("tree")
        (self.top / "build/src/mm/ksm.c").write_text("edited\n")
        self.run_tree("refresh", status=2, says="mm/ksm.c")

    def test_both_sides_changed(self):
        self.run_tree("tree")
        self.git("commit", "-q", "--allow-empty", "-m", "cow: mine")
        (self.top / "mm/cow.c").write_text("changed\n")
        self.run_tree("tree", status=2, says="both")

    def test_refresh_does_not_overwrite_an_edit_of_the_repo(self):
        self.run_tree("tree")
        self.run_tree("refresh")
        (self.top / "mm/cow.c").write_text("edited\n")
        self.git("commit", "-q", "--allow-empty", "-m", "cow: mine")
        self.run_tree("refresh", status=2, says="would overwrite")
        self.assertEqual((self.top / "mm/cow.c").read_text(), "edited\n")

    def test_patch_that_fails_is_named_and_the_next_run_is_sound(self):
        good = (self.top / "patches/cow/0010-cow-in.patch").read_text()
        self.write("cow/0010-cow-in.patch", good.replace(" line 19", " line x"))
        self.run_tree("tree", status=2, says="patches/cow/0010-cow-in.patch does not apply to 6.12.117 at mm/memory.c")
        self.write("cow/0010-cow-in.patch", good)
        self.run_tree("tree")

    def test_overlay_refuses_a_stock_file(self):
        (self.top / "mm/ksm.c").write_text("mine\n")
        self.write("cow/0010-cow-in.patch", patch("cow: in", "line 20", "line series", adds=["mm/cow.c", "mm/ksm.c"]))
        self.run_tree("tree", status=2, says="the kernel has such a file already")

    def test_new_file_that_no_patch_names(self):
        (self.top / "mm/stray.c").write_text("stray\n")
        self.run_tree("tree", status=2, says="Adds: mm/stray.c")

    def test_other_point_release_is_tried(self):
        text = (self.top / "patches/base").read_text()
        (self.top / "patches/base").write_text(text.replace("6.12.117", "6.12.100").replace("sha256=", "sha256=0"))
        self.run_tree("tree", says="trying them with fuzz 0")

    def test_missing_package(self):
        self.tarball.unlink()
        self.run_tree("tree", status=2, says="apt-get install linux-source-6.12")

    def test_sync_writes_only_what_differs(self):
        self.run_tree("tree")
        out = self.top / "build/out/off"
        self.run_tree("sync", "off", str(out))
        self.assertIn("line off", (out / "mm/memory.c").read_text())
        before = (out / "mm/ksm.c").stat().st_ino
        self.run_tree("sync", "series", str(out))
        self.assertIn("line series", (out / "mm/memory.c").read_text())
        self.assertEqual((out / "mm/ksm.c").stat().st_ino, before)
        self.run_tree("sync", "stock", str(out))
        self.assertEqual((out / "mm/memory.c").read_text(), MEMORY)
        self.assertFalse((out / "mm/cow.c").exists())

    def test_sync_over_what_another_tree_left(self):
        self.run_tree("tree")
        out = self.top / "build/out/off"
        self.run_tree("sync", "off", str(out))
        (out / ".tree").write_text("0123456789012345678901234567890123456789\n")
        (out / "mm/memory.c").write_text("of another tree\n")
        self.run_tree("sync", "off", str(out))
        self.assertIn("line off", (out / "mm/memory.c").read_text())

    def test_dist_adds_up_to_the_series(self):
        self.run_tree("tree")
        self.run_tree("dist", str(self.top / "dist"))
        tree = self.top / "user"
        shutil.copytree(self.top / "stock", tree)
        for name in sorted((self.top / "dist").iterdir()):
            subprocess.run(["git", "apply", str(name)], cwd=tree, check=True)
        self.assertEqual((tree / "mm/memory.c").read_text(), self.git("show", "HEAD:mm/memory.c"))
        self.assertEqual((tree / "mm/cow.c").read_text(), "cow\n")


if __name__ == "__main__":
    unittest.main()
