#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""expect.py: holds the results of the selftests on one kernel against what each case is to give there.

usage: expect.py KERNEL LOG      compare; prints one line a case
       expect.py --lint          look for cases that could not fail

expect/TEST.tsv has one line for each case of tools/testing/selftests/mm/TEST.c, tab separated:
  case  off  stock  series  debug  why
with pass, fail, skip or any (any: luck decides there) for each kernel. A case that is to pass on off and on stock proves
nothing of the series: it must say what it guards ("guard: ...").
LOG is the output of the tests; a line "### TEST" stands before each test's TAP.
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


def compare(kernel, log):
    bad, (found, said) = 0, results(log)
    for path in sorted(EXPECT.glob("*.tsv")):
        test, cases = path.stem, load(path)
        got = found.get(test, {})
        for case, want in cases.items():
            have = got.get(case, "no result")
            name = "%s: %s: %s" % (kernel, test, case)
            if have != want[kernel] and not (want[kernel] == "any" and have in ("pass", "fail")):
                bad += 1
                print("FAIL %s: %s, expected %s (%s); it says: %s" % (name, have, want[kernel], want["why"],
                                                                      said.get((test, case)) or "nothing"))
            elif have == "skip":
                print("skip %s: %s" % (name, want["why"]))
            else:
                print("ok %s%s" % (name, ": fails, as it must: " + want["why"] if have == "fail" else ""))
        for case in got:
            if case not in cases:
                bad += 1
                print("FAIL %s: %s: %s: no expectation in expect/%s" % (kernel, test, case, path.name))
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
    if len(sys.argv) != 3 or sys.argv[1] not in KERNELS:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    log = Path(sys.argv[2])
    if not log.exists():
        die("there is no %s: run the tests first (make kselftest)" % log)
    sys.exit(1 if compare(sys.argv[1], log) else 0)


if __name__ == "__main__":
    main()
