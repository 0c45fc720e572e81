# SPDX-License-Identifier: GPL-2.0
"""Tests of harness/report.py; `REGOLD=1` rewrites the golden outputs."""
import contextlib
import importlib.util
import io
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE.parent / "report.py"
GOLDEN = HERE / "report"
spec = importlib.util.spec_from_file_location("report", PROGRAM)
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)

# Counts its boots, passes the death of its caller on as harness/boot does, and fails or hangs where the
# test asks for it.
FAKE_BOOT = r"""#!/bin/bash
[ "$1" = --accel ] && { echo tcg; exit; }
echo "$K $MEM $1" >> "$TREE/boots"
n=$(wc -l < "$TREE/boots")
echo starting >&2
echo "a log line"
[ "$HANG_AT" = "$n" ] && exec setpriv --pdeathsig TERM sh -c 'echo $$ > "$TREE/hanging"; exec sleep 987'
case " $FAIL_AT " in *" $n "*) printf 'time\tus\tless\t1\n'; exit 125;; esac
[ "$SILENT_AT" = "$n" ] && exit 0
printf 'time\tus\tless\t%d\r\n' $((100 + n)) $((100 + n))
printf 'faults\tcount\tnone\t7\nbad\tx\tlower\t1\nnan\tx\tless\tnan\ndone\ts\tnone\t1\n'
"""


def strip(change):
    return change.text, change.verdict


class Statistics(unittest.TestCase):
    def test_bootstrap_is_reproducible_and_sane(self):
        rng = random.Random(7)
        values = [rng.gauss(100, 10) for _ in range(60)]
        first = report.bootstrap(statistics.median, values)
        self.assertEqual(first, report.bootstrap(statistics.median, values))
        low, high = first
        self.assertLess(low, statistics.median(values))
        self.assertGreater(high, statistics.median(values))
        self.assertLess(high - low, 12)     # 4 standard errors of the median, 1.25 s / sqrt(n)

    def test_coverage_without_difference(self):
        rng, stars = random.Random(3), 0
        for _ in range(50):
            a, b = ([rng.gauss(50, 5) for _ in range(7)] for _ in "ab")
            stars += report.compare(a, b, "more").verdict != "equal"
        self.assertLess(stars, 8)

    def test_better_is_positive(self):
        low, high = [10, 11, 10, 11, 10], [20, 21, 20, 21, 20]
        self.assertEqual(strip(report.compare(low, high, "more")), ("+100.0 % *", "better"))
        self.assertEqual(strip(report.compare(low, high, "less")), ("-100.0 % *", "worse"))
        self.assertEqual(strip(report.compare(high, low, "less")), ("+50.0 % *", "better"))
        self.assertEqual(report.compare(low, high, "none").text, "(+100.0 %) *")
        for better in ("more", "less"):
            change = report.compare(low, high, better)
            self.assertLessEqual(change.low, change.percent)
            self.assertLessEqual(change.percent, change.high)

    def test_no_star(self):
        self.assertEqual(strip(report.compare([10, 12, 14, 16, 18], [11, 13, 14, 15, 19], "more")),
                         (report.NO_CHANGE, "equal"))

    def test_few_samples(self):
        self.assertEqual(strip(report.compare([10, 12], [11, 13], "more")), (report.NO_CHANGE, "equal"))
        self.assertEqual(strip(report.compare([10, 12], [13, 14], "more")), ("+22.7 % *", "better"))
        self.assertEqual(strip(report.compare([8, 8], [8, 8], "more")), (report.NO_CHANGE, "equal"))
        self.assertEqual(strip(report.compare([8, 8], [9, 9], "less")), ("-12.5 % *", "worse"))
        self.assertEqual(strip(report.compare([8], [9, 9, 9], "less")), ("-12.5 %, one run", "open"))

    def test_zero_baseline(self):
        self.assertEqual(strip(report.compare([0] * 3, [12] * 3, "less")), ("0 -> 12, worse *", "worse"))
        self.assertEqual(strip(report.compare([0] * 3, [12] * 3, "more")), ("0 -> 12, better *", "better"))
        self.assertEqual(report.compare([0] * 3, [12] * 3, "none").text, "(0 -> 12) *")
        self.assertEqual(report.compare([0] * 3, [0] * 3, "less").text, report.NO_CHANGE)
        self.assertEqual(report.compare([-4] * 3, [-2] * 3, "more").text, "+50.0 % *")

    def test_missing(self):
        self.assertEqual(strip(report.compare([], [1, 2, 3], "more")), ("-", "missing"))
        self.assertEqual(report.cell([]), "-")

    def test_cells(self):
        self.assertEqual(report.cell([5]), "5")
        self.assertEqual(report.cell([1, 2, 9]), "2 [1..9]")
        self.assertEqual(report.cell([12345.6] * 5), "12,346 ± 0")
        self.assertEqual(report.cell([1, 2, 3, 4, 5]), "3 ± 2")


class Golden(unittest.TestCase):
    def check(self, name, text):
        if os.environ.get("REGOLD"):
            (GOLDEN / name).write_text(text)
        self.assertEqual(text, (GOLDEN / name).read_text())

    def test_report(self):
        self.maxDiff = None
        text, plots, summary = report.build_report(report.Results(GOLDEN))
        self.check("report.md", text)
        self.check("plots.gnuplot", report.gnuplot_script(plots, summary))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            report.table(GOLDEN)
        self.check("table.md", out.getvalue())

    @unittest.skipUnless(shutil.which("gnuplot"), "gnuplot is not installed")
    def test_plots(self):
        drawn = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
                for name in ("raw.tsv", "meta.txt"):
                    shutil.copy(GOLDEN / name, out)
                report.render(pathlib.Path(out))
                drawn.append({p.name: p.read_bytes() for p in pathlib.Path(out).glob("*.svg")})
        self.assertEqual(drawn[0], drawn[1])
        links = set(re.findall(r"\]\((.*?\.svg)\)", (GOLDEN / "report.md").read_text()))
        self.assertEqual(links, set(drawn[0]))
        self.assertTrue(all(b"</svg>" in svg for svg in drawn[0].values()))


class Runs(unittest.TestCase):
    def setUp(self):
        self.tree = pathlib.Path(tempfile.mkdtemp(prefix="report-test-"))
        self.addCleanup(shutil.rmtree, self.tree)
        for kernel in report.KERNELS:
            boot = self.tree / "build/out" / kernel / "arch/x86/boot"
            boot.mkdir(parents=True)
            (boot / "bzImage").write_text(kernel)
            (self.tree / "build/out" / kernel / "include/config").mkdir(parents=True)
            (self.tree / "build/out" / kernel / "include/config/kernel.release").write_text(f"6.1.0-{kernel}\n")
            self.config(kernel, "")
        (self.tree / "bench/cow").mkdir(parents=True)
        self.scenarios("small\tMEM=256\t./cow 1; true\t1\t2\nbig\tMEM=512 CPUS=2\t./cow 9\t0\t1\n")
        (self.tree / "patches").mkdir()
        (self.tree / "patches/base").write_text("package=linux\npackage_version=6.1-1\nsha256=12\n")
        (self.tree / "boot").write_text(FAKE_BOOT)
        (self.tree / "boot").chmod(0o755)
        self.out = self.tree / "results/x"

    def scenarios(self, text):
        (self.tree / "bench/cow/scenarios").write_text("# comment\n" + text)

    def config(self, kernel, more):
        (self.tree / "build/out" / kernel / ".config").write_text(
            f'CONFIG_LOCALVERSION="-{kernel}"\nCONFIG_CC_VERSION_TEXT="gcc 12"\nCONFIG_MMU=y\n{more}')

    def start(self, *arguments, **env):
        env = {**os.environ, "REPORT_ROOT": str(self.tree), "TREE": str(self.tree),
               "BOOT": str(self.tree / "boot"), "MEM": "from-caller", **env}
        return subprocess.Popen([sys.executable, str(PROGRAM), *arguments], env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def call(self, *arguments, **env):
        child = self.start(*arguments, **env)
        out, err = child.communicate(timeout=20)
        self.assertNotIn("Traceback", err)
        return child.returncode, out, err

    def run_report(self, *more, **env):
        return self.call("run", "--out", str(self.out), *more, **env)

    def boots(self):
        return (self.tree / "boots").read_text().splitlines()

    def complete(self):
        """raw.tsv holds each boot once: 9 boots of 4 lines."""
        lines = [line.split("\t") for line in (self.out / "raw.tsv").read_text().splitlines()]
        self.assertEqual(lines[0], report.HEADER)
        lines = [line for line in lines[1:] if line[4] != "failed"]
        done = [tuple(line[:4]) for line in lines if line[4] == "done"]
        self.assertEqual((len(lines), len(done), len(set(done))), (36, 9, 9))

    def refused(self, arguments, *words, boot=None, **env):
        """In this process, which is quicker: one line on standard error and exit status 2."""
        err = io.StringIO()
        if arguments and arguments[0] == "run":
            arguments = ["run", "--out", str(self.out), *arguments[1:]]
        with mock.patch.multiple(report, ROOT=self.tree, BOOT=boot or str(self.tree / "boot")), \
                mock.patch.dict(os.environ, env), contextlib.redirect_stderr(err), \
                self.assertRaises(SystemExit) as end:
            report.main(arguments)
        self.assertEqual((end.exception.code, err.getvalue().count("\n")), (2, 1), err.getvalue())
        for word in words:
            self.assertIn(word, err.getvalue())

    def test_full_run(self):
        status, out, err = self.run_report("cow")
        self.assertEqual(status, 0, err)
        self.assertEqual([b.split()[0] for b in self.boots()], list(report.KERNELS) * 3)
        self.assertEqual(self.boots()[0], "off 256 cd /bench/cow || exit 2; ./cow 1; true")
        self.assertRegex(err, r"\[ ?\d+:\d\d\] cow/small run 2/2 series \.\.\. \d+ s\n")
        self.complete()
        self.assertIn("### cow/big", out)
        self.assertNotIn("nan", out)
        self.assertIn("guest: vCPUs 2 or boot's default, memory 256 or 512", out)
        meta = report.key_values(self.out / "meta.txt")
        self.assertEqual((meta["accelerator"], meta["compiler"], meta["package"], meta["release.series"],
                          meta["runs.cow/small"]), ("tcg", "gcc 12", "linux", "6.1.0-series", "2"))
        self.assertEqual((self.out / "log/cow-small-1-off.err").read_text(), "starting\n")
        self.assertEqual(self.run_report("cow")[0], 0)
        self.assertEqual(len(self.boots()), 9)          # nothing was run again
        self.complete()

    def test_quick_is_extended_by_full(self):
        self.assertEqual(self.run_report("--quick")[0], 0)
        self.assertEqual(len(self.boots()), 3)
        self.assertEqual(self.run_report()[0], 0)
        self.assertEqual(len(self.boots()), 9)
        self.complete()

    def test_one_scenario_so_often(self):
        self.assertEqual(self.run_report("--runs", "3", "cow/big")[0], 0)
        self.assertEqual(len(self.boots()), 9)
        self.assertTrue(all("./cow 9" in boot for boot in self.boots()))
        self.complete()
        shutil.rmtree(self.out)
        self.assertEqual(self.run_report("--quick", "cow/big")[0], 0)
        self.assertEqual(len(self.boots()), 12)         # asked for by name: once at least

    def test_killed_then_resumed(self):
        for number, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)):
            with self.subTest(number=number):
                shutil.rmtree(self.out, ignore_errors=True)
                for name in ("boots", "hanging"):
                    (self.tree / name).unlink(missing_ok=True)
                child = self.start("run", "--out", str(self.out), HANG_AT="5")
                deadline = time.monotonic() + 10
                while not (self.tree / "hanging").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                time.sleep(0.1)
                child.send_signal(number)
                err = child.communicate(timeout=15)[1]
                self.assertEqual(child.returncode, status)
                if number != signal.SIGKILL:
                    self.assertEqual(err.splitlines()[-1].split(",")[0], f"report: {number.name}")
                time.sleep(0.2)
                cmdline = pathlib.Path("/proc", (self.tree / "hanging").read_text().strip(), "cmdline")
                # A zombie that init has not reaped yet has an empty one.
                self.assertFalse(cmdline.exists() and cmdline.read_text(), "the boot outlived its report")
                with open(self.out / "raw.tsv", "a") as raw:    # as cut off by a crash
                    raw.write("cow\tsmall\t2\tstock\ttime\tus\tless\t1\ncow\tsmall\t2\tsto")
                if number == signal.SIGKILL:
                    self.assertEqual(self.call("render", str(self.out))[0], 0)
                self.assertEqual(self.run_report()[0], 0)
                self.assertEqual(len(self.boots()), 10)         # the fifth twice
                self.complete()

    def test_changed_kernel_starts_afresh(self):
        self.run_report("--quick")
        with open(self.tree / "build/out/series/arch/x86/boot/bzImage", "ab") as image:
            image.write(b"new")
        status, _, err = self.run_report("--quick")
        self.assertEqual(status, 0)
        self.assertIn("key.series changed", err)
        self.assertEqual(len(self.boots()), 6)
        self.assertTrue((self.tree / "results/x.old/raw.tsv").exists())
        self.scenarios("small\tMEM=257\t./cow 1\t1\t2\n")
        self.assertIn("bench.cow changed", self.run_report("--quick")[2])
        self.assertEqual(len(self.boots()), 9)
        self.assertTrue((self.tree / "results/x.old+/raw.tsv").exists())

    def test_failed_boot_is_retried(self):
        status, out, err = self.run_report(FAIL_AT="2", SILENT_AT="6")
        self.assertEqual(status, 0)
        self.assertIn("exit 125 (kernel splat or panic)", err)
        self.assertIn("- cow/small run 1 stock: exit 125 (kernel splat or panic), repeated with success", out)
        self.assertIn("exit 0 (no samples), repeated with success", out)
        self.complete()

    def test_failed_twice(self):
        status, out, err = self.run_report(FAIL_AT="2 3")
        self.assertEqual(status, 1)
        self.assertEqual(len(self.boots()), 10)         # the others were finished
        self.assertIn("not counted", out)
        self.assertIn("- cow/small run 1 stock: no data", out)
        self.assertEqual(self.run_report()[0], 0)
        self.complete()

    def test_refusals(self):
        self.config("series", "CONFIG_KSM=y\n# CONFIG_FOO is not set\n")
        self.refused(["run"], "CONFIG_KSM (off=n stock=n series=y)", "make kernel K=series")
        self.config("stock", "CONFIG_KSM=m\n")
        self.refused(["run"], "make kernel K=off && make kernel K=stock && make kernel K=series")
        (self.tree / "build/out/stock/arch/x86/boot/bzImage").unlink()
        self.refused(["run"], "build/out/stock/arch/x86/boot/bzImage is missing", "make kernels")
        self.assertFalse(self.out.exists())
        self.refused(["run", "../cow"], "topics are: cow")
        self.refused(["run", "cow/nosuch"], "there are: small big")
        self.refused(["run", "--runs", "0"], "number of runs")
        self.scenarios("small\tMEM=256\t./cow\t1\n")
        self.refused(["run"], "bench/cow/scenarios:2")
        self.scenarios("small\tK=off\t./cow\t1\t1\n")
        self.refused(["run"], "bench/cow/scenarios:2")
        self.refused(["run"], "/nonexistent", boot="/nonexistent")
        self.scenarios("small\tMEM=256\t./cow\t1\t1\n")
        for kernel in report.KERNELS:
            self.config(kernel, "")
        (self.tree / "build/out/stock/arch/x86/boot/bzImage").write_text("")
        self.refused(["run"], "--accel", boot="/bin/true")
        self.refused(["run"], "gnuplot", PATH="/nonexistent")
        self.refused([], "--help")
        self.refused(["mend"], "--help")
        self.refused(["render", str(self.out)], "raw.tsv is missing", "report.py run")
        self.out.mkdir(parents=True)
        (self.out / "meta.txt").write_text("")
        (self.out / "raw.tsv").write_text("\t".join(report.HEADER) + "\nbroken line\n")
        self.refused(["table", str(self.out)], "raw.tsv:2")
        self.assertEqual(self.call("--help")[0], 0)


if __name__ == "__main__":
    unittest.main()
