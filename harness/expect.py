#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""expect.py: holds the results of the selftests on one kernel against what each case is to give there.

usage: expect.py KERNEL LOG [AGAIN]   compare; prints one line a case
       expect.py --again KERNEL LOG   the tests for which a second run would count
       expect.py --lint               look for cases that could not fail

expect/TEST.tsv has one line for each case of tools/testing/selftests/mm/TEST.c, tab separated:
  case  off  stock  series  debug  why
with pass, fail, skip or any (any: luck decides there) for each kernel. A case that is to pass on off and on stock proves
nothing of the series: it must say what it guards ("guard: ...").
LOG is the output of the tests; a line "### TEST" stands before each test's TAP. AGAIN is that of a second run, and counts
where the first was not as it is to be; the line says so. On series and debug that is so for cases that were skipped, as
the guest had not given them what they need; what fails there once has failed. off and stock are lucky now and then, or
not, where that says nothing of the series.
Exit status: 0 all as expected, 1 not, 2 it could not compare.
"""
import re
import sys
from pathlib import Path

EXPECT = Path(__file__).resolve().parent / "expect"
KERNELS = ("off", "stock", "series", "debug")
RESULT = re.compile(r"^(not )?ok \d+ (?:- )?(.*?)\s*(?:# (SKIP|XFAIL)\b.*)?$")


def die(message):
    print("expect: " + message, file=sys.stderr)
    sys.exit(2)


def load(path):
    cases = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 6 or not set(fields[1:5]) <= {"pass", "fail", "skip", "any"}:
            die("%s:%d: not 'case off stock series debug why' with tabs between: mend the line" % (path.name, number))
        cases[fields[0]] = dict(zip(KERNELS, fields[1:5]), why=fields[5])
    return cases


def results(log):
    """{test: {case: pass|fail|skip}} of what the guest printed, and {(test, case): what a case that failed said}."""
    found, test, said, words = {}, None, {}, []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("### "):
            test = line[4:].strip()
            found[test] = {}
            continue
        hit = RESULT.match(line)
        if line.startswith("# ") and not re.match(r"# +(RUN|OK|FAIL|SKIP|Starting)\b", line):
            words.append(line[2:].strip())
        if hit and test:
            said[test, hit.group(2)] = " / ".join(words[-3:])
            words = []
            found[test][hit.group(2)] = "fail" if hit.group(1) else "skip" if hit.group(3) == "SKIP" else "pass"
    return found, said


def as_due(want, have):
    return have == want or (want == "any" and have in ("pass", "fail"))


def once_more(kernel, want, have):
    """Is a second run worth it, and would it count?"""
    return not as_due(want, have) and (kernel in ("off", "stock") or have == "skip")


def again(kernel, log):
    """The tests that ran and have a case for which a second run would count."""
    found, _ = results(log)
    return [path.stem for path in sorted(EXPECT.glob("*.tsv")) if path.stem in found and
            any(once_more(kernel, want[kernel], found[path.stem].get(case)) for case, want in load(path).items())]


def compare(kernel, log, second=None):
    bad, (found, said) = 0, results(log)
    found_again, said_again = results(second) if second else ({}, {})
    for path in sorted(EXPECT.glob("*.tsv")):
        test, cases = path.stem, load(path)
        got = found.get(test, {})
        for case, want in cases.items():
            have, words, first = got.get(case, "no result"), said.get((test, case)), ""
            if once_more(kernel, want[kernel], have) and test in found_again:
                first = " (second run; the first: %s, it said: %s)" % (have, words or "nothing")
                have, words = found_again[test].get(case, "no result"), said_again.get((test, case))
            name = "%s: %s: %s%s" % (kernel, test, case, first)
            if not as_due(want[kernel], have):
                bad += 1
                print("FAIL %s: %s, expected %s (%s); it says: %s" % (name, have, want[kernel], want["why"], words or "nothing"))
            elif have == "skip":
                print("skip %s: %s" % (name, want["why"]))
            else:
                print("ok %s%s" % (name, ": fails, as it must: " + want["why"] if have == "fail" else ""))
        for case in got:
            if case not in cases:
                bad += 1
                print("FAIL %s: %s: %s: no expectation in expect/%s" % (kernel, test, case, path.name))
    for test in found:
        if not (EXPECT / (test + ".tsv")).exists():
            bad += 1
            print("FAIL %s: %s: no expectations: write expect/%s.tsv" % (kernel, test, test))
    return bad


def lint():
    bad = 0
    for path in sorted(EXPECT.glob("*.tsv")):
        cases = load(path)
        for case, want in cases.items():
            if want["series"] != "pass" or want["debug"] not in ("pass", "skip"):
                bad += 1
                print("FAIL %s: %s is not to pass on series and debug" % (path.stem, case))
            elif not {"fail", "any"} & {want["off"], want["stock"]} and not want["why"].startswith("guard: "):
                bad += 1
                print("FAIL %s: %s passes everywhere and says of nothing that it guards it" % (path.stem, case))
            else:
                print("ok %s: %s can fail" % (path.stem, case))
        if not any(want["off"] == "fail" for want in cases.values()):
            bad += 1
            print("FAIL %s: no case of it fails on off" % path.stem)
    return bad


def main():
    if sys.argv[1:] == ["--lint"]:
        sys.exit(1 if lint() else 0)
    words = sys.argv[1:]
    repeat = words[:1] == ["--again"]
    kernel, *logs = words[repeat:] or [None]
    if kernel not in KERNELS or not 1 <= len(logs) <= (1 if repeat else 2):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    logs = [Path(log) for log in logs]
    for log in logs:
        if not log.exists():
            die("there is no %s: run the tests first (make kselftest)" % log)
    if repeat:
        print(*again(kernel, *logs))
        sys.exit(0)
    sys.exit(1 if compare(kernel, *logs) else 0)


if __name__ == "__main__":
    main()
