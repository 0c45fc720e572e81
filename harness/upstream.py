#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""upstream.py [CATEGORY...]: runs the kernel's own mm selftests on stock and on series and compares.

Every category of upstream.list (or those named) runs in a fresh boot of each kernel, by the kernel's own
run_vmtests.sh. Its exit status is not looked at: single results are, the nested ones too. What passes on stock must pass
on series. Prints one line a category ("ok", "FAIL", "skip": nothing passes on stock), and the results that differ.
Exit status: 0 series is as good as stock, 1 it is not, 2 it could not run.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
BUILD = TOP / "build"
TREE = BUILD / "out/series"
INSTALL = BUILD / "upstream"
START = time.monotonic()
RESULT = re.compile(r"^(?:# )*(not )?ok \d+ (?:- )?(.*?)\s*(?:# (SKIP|XFAIL|exit=).*)?$")


def die(message):
    print("upstream: " + message, file=sys.stderr)
    sys.exit(2)


def run(what, *command, **kw):
    log = BUILD / "log/upstream.log"
    with log.open("a") as out:
        if subprocess.run(command, cwd=TOP, stdout=out, stderr=subprocess.STDOUT, **kw).returncode:
            die("%s failed (log: %s); mend what it names" % (what, log.relative_to(TOP)))


def build():
    (BUILD / "log/upstream.log").unlink(missing_ok=True)
    for kernel in ("stock", "series"):
        if subprocess.run(["harness/kernel", kernel], cwd=TOP).returncode:
            sys.exit(2)
    if subprocess.run(["harness/image"], cwd=TOP).returncode:
        sys.exit(2)
    say("building the kernel's selftests")
    run("tree.py", "python3", "harness/tree.py", "sync", "series", str(TREE))
    run("make headers", "make", "-C", str(TREE), "HOSTCC=ccache gcc", "headers")
    run("building the selftests", "make", "-C", str(TREE / "tools/testing/selftests"), "TARGETS=mm", "CC=ccache gcc",
        "USERLDFLAGS=-static", "INSTALL_PATH=%s" % INSTALL, "install", env=dict(os.environ, CCACHE_DIR=os.environ.get(
            "CACHE", str(Path.home() / ".cache/swapback")) + "/ccache"))
    files = [p for p in sorted((INSTALL / "mm").rglob("*")) if p.is_file()]
    text = "dir /upstream 755 0 0\n" + "".join("file /upstream/%s %s 755 0 0\n" % (p.name, p) for p in files)
    (BUILD / "upstream.list").write_text(text)
    with (BUILD / "upstream.cpio").open("wb") as out:
        subprocess.run([str(BUILD / "gen_init_cpio"), str(BUILD / "upstream.list")], stdout=out, check=True)


def results(text):
    """{name: pass|fail|skip}; a name that comes more than once counts as its worst."""
    found = {}
    for line in text.splitlines():
        hit = RESULT.match(line.strip())
        if not hit or not hit.group(2):
            continue
        name = hit.group(2)
        have = "fail" if hit.group(1) else "skip" if hit.group(3) == "SKIP" else "pass"
        worst = ("pass", "skip", "fail")
        found[name] = max(found.get(name, "pass"), have, key=worst.index)
    return found


def worse_of(stock, series):
    """What passes on stock and not on series. Some tests put figures into a name that no two runs share: where a name is
    missing, one that differs in its figures only will do."""
    def plain(name):
        return re.sub(r"0x[0-9a-f]+|[0-9.]+", "N", name)

    passed = {plain(name) for name, result in series.items() if result == "pass"}
    return [name for name, result in stock.items() if result == "pass" and series.get(name) != "pass" and
            (name in series or plain(name) not in passed)]


def say(message):
    seconds = int(time.monotonic() - START)
    print("[%2d:%02d] upstream: %s" % (seconds // 60, seconds % 60, message), file=sys.stderr)


def boot(kernel, category, variables, seconds, command=None):
    say("%s on %s (at most %s s)" % (category, kernel, seconds))
    env = dict(os.environ, K=kernel, TIMEOUT=seconds, INITRD=str(BUILD / "upstream.cpio"), DISKS="1G", QUIET="1")
    env.update(v.split("=", 1) for v in variables.split())
    out = subprocess.run(["harness/boot", "cd /upstream && " + (command or "./run_vmtests.sh -t " + category)], cwd=TOP, env=env,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    (BUILD / "log" / ("upstream-%s-%s.log" % (category, kernel))).write_text(out.stdout + out.stderr)
    return out.returncode, results(out.stdout)


def main():
    rows = [line.split("\t") for line in (TOP / "harness/upstream.list").read_text().splitlines()
            if line and not line.startswith("#")]
    wanted = sys.argv[1:] or [row[0] for row in rows]
    if "--help" in wanted or not set(wanted) <= {row[0] for row in rows}:
        die("unknown category; known are: " + " ".join(row[0] for row in rows))
    build()
    bad = 0
    for category, *settings in rows:
        if category not in wanted:
            continue
        got = {kernel: boot(kernel, category, *settings) for kernel in ("stock", "series")}
        (stock_rc, stock), (series_rc, series) = got["stock"], got["series"]
        passed = [name for name, result in stock.items() if result == "pass"]
        worse = worse_of(stock, series)
        splat = series_rc in (124, 125) and stock_rc != series_rc
        count = "%d of %d results pass on stock" % (len(passed), len(stock))
        if worse or splat:
            bad += 1
            print("FAIL upstream: %s: %s; worse on series: %d%s" % (category, count, len(worse), ", splat or hang" if splat else ""))
            for name in worse[:20]:
                print("     %s: %s" % (name, series.get(name, "no result")))
        elif not passed:
            print("skip upstream: %s: nothing passes on stock here (status %d)" % (category, stock_rc))
        else:
            print("ok upstream: %s: %s, and on series" % (category, count))
        sys.stdout.flush()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
