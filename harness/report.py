#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Measure the kernels off, stock and series against each other and report.

  report.py run --out results/DIR [--quick] [--runs N] [TOPIC|TOPIC/SCENARIO...]
      Boots every scenario of bench/TOPIC/scenarios (default: all topics) on
      the three kernels in turn, a fresh boot for each sample (--runs: N of
      them each, not what the scenario says), and appends the
      samples to DIR/raw.tsv, the circumstances to DIR/meta.txt and the output
      of each boot to DIR/log/.  Started again after an interruption it goes on
      where it stopped; when kernels, benches, accelerator, QEMU or host CPU
      changed, DIR is renamed to DIR.old first.  Ends as render does.
  report.py render DIR
      Writes DIR/report.md and DIR/*.svg from raw.tsv and meta.txt alone and
      prints the report.
  report.py table DIR
      Prints one compact markdown table (median, change against stock).

bench/TOPIC/scenarios, tab separated, '#' starts a comment line:
  scenario  boot variables (NAME=VALUE ...)  guest command  quick runs  full runs
The command runs in /bench/TOPIC of the guest; it prints tab separated samples
  metric  unit  more|less|none  value
where 'none' marks a counter that explains but is not judged.  Other lines are
log.  The metric names 'done' and 'failed' are reserved.

environment: BOOT (boot program, default harness/boot), REPORT_ROOT (tree that
holds bench/, build/out/ and patches/, default this repository), ACCEL and
TIMEOUT (for the boot program); its other variables come from scenarios only.
exit status: 0 complete, 1 some boot failed twice, 2 nothing done (bad argument,
missing file, configurations differ), 130/143 interrupted.
"""
import argparse
import collections
import ctypes
import datetime
import functools
import hashlib
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

KERNELS = ("off", "stock", "series")
ROOT = pathlib.Path(os.environ.get("REPORT_ROOT") or pathlib.Path(__file__).resolve().parent.parent)
BOOT = os.environ.get("BOOT") or str(ROOT / "harness/boot")
HEADER = "topic scenario run kernel metric unit better value".split()
# A scenario's own text decides these; the caller's environment must not.
BOOT_VARIABLES = "K MEM CPUS NODES DISKS QUEUE IOPS BPS ICOUNT APPEND INITRD".split()
EXITS = {2: "harness fault", 124: "time limit", 125: "kernel splat or panic"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NO_CHANGE = "no measurable change"
Scenario = collections.namedtuple("Scenario", "topic name variables command runs")
Change = collections.namedtuple("Change", "text verdict percent low high")


def die(text):
    sys.stderr.write(f"report: {text}\n")
    sys.exit(2)


def key_values(path):
    lines = path.read_text(errors="replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")


# ---- what is measured, and on what -------------------------------------------------

def all_topics():
    return sorted(p.parent.name for p in ROOT.glob("bench/*/scenarios"))


def load_scenarios(wanted, quick, runs=None):
    topic, _, only = wanted.partition("/")
    path, found = ROOT / "bench" / topic / "scenarios", []
    if not topic or not path.is_file():
        die(f"no bench/{topic}/scenarios; topics are: {' '.join(all_topics()) or '(none)'}")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [f.strip() for f in line.split("\t")]
        good = (len(fields) == 5 and re.fullmatch(r"[\w.-]+", fields[0]) and fields[2]
                and all(re.fullmatch(r"(?!K=)\w+=.*", v) for v in fields[1].split())
                and fields[3].isdecimal() and fields[4].isdecimal())
        if not good or fields[0] in (s.name for s in found):
            die(f"bench/{topic}/scenarios:{number}: not a scenario line (or a second of that name);"
                " write 5 tab separated fields as in --help")
        found.append(Scenario(topic, *fields[:3], int(fields[3 if quick else 4])))
    if only and only not in (s.name for s in found):
        die(f"no scenario {only} in bench/{topic}/scenarios; there are: {' '.join(s.name for s in found)}")
    return [s._replace(runs=runs or s.runs or 1) for s in found if only == s.name or not only and s.runs]


def check_kernels():
    """Refuse kernels that differ by more than the patches."""
    configs = {}
    for kernel in KERNELS:
        out = ROOT / "build/out" / kernel
        for path in (out / "arch/x86/boot/bzImage", out / ".config"):
            if not path.is_file():
                die(f"{path.relative_to(ROOT)} is missing; make it with: make kernels")
        text = (out / ".config").read_text(errors="replace")
        config = dict(re.findall(r"^(CONFIG_\w+)=(.*)$", text, re.M))
        config.pop("CONFIG_LOCALVERSION", None)
        configs[kernel] = config            # "is not set" and absent mean the same
    names = sorted(n for n in set().union(*configs.values())
                   if len({c.get(n) for c in configs.values()}) > 1)
    if names:
        common = max(configs.values(), key=list(configs.values()).count)
        odd = [k for k in KERNELS if configs[k] != common]
        if len(odd) == 2:                   # no two agree, so nothing tells which is right
            odd = KERNELS
        shown = ", ".join("{} ({})".format(n, " ".join(f"{k}={configs[k].get(n, 'n')}" for k in KERNELS))
                          for n in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        die(f"configurations differ in {shown}; mend with: "
            + " && ".join(f"make kernel K={k}" for k in odd))


def bench_key(topic):
    """Hash of the scenario text and the programs' sources; built files may come and go."""
    digest, top = hashlib.sha256(), ROOT / "bench"
    for path in sorted(p for p in (*top.glob("*"), *top.glob(f"{topic}/**/*")) if p.is_file()):
        name, data = str(path.relative_to(top)), path.read_bytes()
        if not re.search(r"(^|/)(\.|__pycache__)|\.(md|o|d)$", name) and data[:4] != b"\x7fELF":
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def output_of(*command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL, text=True, check=True)
        return (done.stdout.strip().splitlines() or ["unknown"])[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe(scenarios, argv):
    def host(path, pattern):
        found = re.search(pattern, pathlib.Path(path).read_text(), re.M)
        return found[1] if found else "unknown"
    forced = os.environ.get("ACCEL")
    base_path, config = ROOT / "patches/base", key_values(ROOT / "build/out/stock/.config")
    base = key_values(base_path) if base_path.is_file() else {}
    meta = {"date": datetime.datetime.now().astimezone().isoformat(" ", "minutes"),
            "command": shlex.join(["harness/report.py", *argv]),
            "commit": output_of("git", "-C", str(ROOT), "describe", "--always", "--dirty",
                                "--abbrev=12", "--exclude=*"),
            **{n: base.get(n, "unknown") for n in ("package", "package_version", "kernel_version", "sha256")},
            "compiler": config.get("CONFIG_CC_VERSION_TEXT", "unknown").strip('"'),
            "accelerator": forced if forced in ("kvm", "tcg") else output_of(BOOT, "--accel"),
            "qemu": output_of("qemu-system-x86_64", "--version"),
            "host_cpu": host("/proc/cpuinfo", r"^model name\s*:\s*(.*)$"),
            "host_cores": str(os.cpu_count()),
            "host_memory_kib": host("/proc/meminfo", r"^MemTotal:\s*(\d+)")}
    if meta["accelerator"] not in ("kvm", "tcg"):
        die(f"{BOOT} --accel printed neither kvm nor tcg; try it by hand")
    for kernel in KERNELS:
        out = ROOT / "build/out" / kernel
        release = out / "include/config/kernel.release"
        meta[f"release.{kernel}"] = release.read_text().strip() if release.is_file() else "unknown"
        meta[f"key.{kernel}"] = hashlib.sha256((out / "arch/x86/boot/bzImage").read_bytes()).hexdigest()
    meta.update({f"bench.{topic}": bench_key(topic) for topic in dict.fromkeys(s.topic for s in scenarios)})
    for s in scenarios:
        meta.update({f"{n}.{s.topic}/{s.name}": str(getattr(s, n)) for n in ("runs", "variables", "command")})
    return meta


def identity(meta):
    """What must be unchanged for old and new samples to be comparable."""
    return {n: v for n, v in meta.items()
            if n.split(".")[0] in ("key", "bench", "accelerator", "qemu", "host_cpu")}


# ---- running -----------------------------------------------------------------------

def die_with_report(parent, libc=ctypes.CDLL(None)):
    """In the child: a report that is killed takes its boot along, which takes QEMU along."""
    libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def boot(scenario, kernel, log, stop):
    """One boot; returns (exit status, samples)."""
    env = {n: v for n, v in os.environ.items() if n not in BOOT_VARIABLES}
    env.update(v.split("=", 1) for v in scenario.variables.split())
    env["K"] = kernel
    with open(f"{log}.log", "wb") as out, open(f"{log}.err", "wb") as err:
        child = subprocess.Popen([BOOT, f"cd /bench/{scenario.topic} || exit 2; {scenario.command}"], env=env,
                                 stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                 preexec_fn=functools.partial(die_with_report, os.getpid()))
    while child.poll() is None:
        if stop:
            os.killpg(child.pid, stop[0])
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
        time.sleep(0.05)
    samples = []
    for line in pathlib.Path(f"{log}.log").read_text(errors="replace").splitlines():
        fields = [f.strip() for f in line.split("\t")]
        try:
            if (len(fields) == 4 and fields[0] and fields[0] not in ("done", "failed")
                    and fields[2] in ("more", "less", "none") and math.isfinite(float(fields[3]))):
                samples.append(fields)
        except ValueError:
            pass                            # a log line with tabs
    return child.returncode, samples


def open_results(out, meta):
    """Prepare DIR; returns the (topic, scenario, run, kernel) already complete."""
    raw, rows, done = out / "raw.tsv", [], set()
    if raw.exists() or (out / "meta.txt").exists():
        old = key_values(out / "meta.txt") if (out / "meta.txt").exists() else {}
        was, now = identity(old), identity(meta)
        changed = sorted(n for n in was.keys() | now.keys() if was.get(n) != now.get(n))
        if changed or not raw.exists():
            spare = out.with_name(out.name + ".old")
            while spare.exists():           # never lose an older measurement
                spare = spare.with_name(spare.name + "+")
            out.rename(spare)
            sys.stderr.write(f"report: starting afresh, {' '.join(changed) or 'raw.tsv'} changed;"
                             f" old data is in {spare}\n")
        else:
            rows, done = load_raw(raw)
            meta.update(date=old.get("date", meta["date"]), resumed=meta["date"])
    out.joinpath("log").mkdir(parents=True, exist_ok=True)
    # Rewritten, so that a boot that was cut off leaves no half set of samples.
    lines = ["\t".join(row) for row in [HEADER] + rows]
    for path, text in ((raw, lines), (out / "meta.txt", [f"{n}={v}" for n, v in meta.items()])):
        spare = path.with_suffix(".new")
        spare.write_text("\n".join(text) + "\n")
        spare.rename(path)
    return done


def run(args, argv):
    if not os.access(BOOT, os.X_OK):
        die(f"{BOOT} is no program; set BOOT or restore harness/boot")
    need_gnuplot()
    scenarios = [s for topic in dict.fromkeys(args.topics or all_topics()) for s in load_scenarios(topic, args.quick, args.runs)]
    if not scenarios:
        die("no scenario to run; add bench/TOPIC/scenarios or leave out --quick")
    check_kernels()
    out, stop, failed, start = pathlib.Path(os.path.abspath(args.out)), [], 0, time.monotonic()
    done = open_results(out, describe(scenarios, argv))
    for number in SIGNALS:
        signal.signal(number, lambda number, _: stop.append(number))
    die_with_report(os.getppid())           # and the report with the make that started it
    with open(out / "raw.tsv", "a") as raw:
        for s, run_no, kernel in ((s, r, k) for s in scenarios for r in range(1, s.runs + 1) for k in KERNELS):
            triple = (s.topic, s.name, str(run_no), kernel)
            for attempt in ("", ".retry") if triple not in done else ():
                begin = time.monotonic()
                minutes, seconds = divmod(int(begin - start), 60)
                sys.stderr.write(f"[{minutes:2}:{seconds:02}] {s.topic}/{s.name} run {run_no}/{s.runs} {kernel} ...")
                sys.stderr.flush()
                log = out / "log" / ("-".join(triple) + attempt)
                status, samples = boot(s, kernel, log, stop) if not stop else (0, [])
                took = time.monotonic() - begin
                if stop:                    # whatever the boot said, it was cut off
                    sys.stderr.write(f"\nreport: {signal.Signals(stop[0]).name}, stopped;"
                                     " the same command goes on from here\n")
                    sys.exit(128 + stop[0])
                if status or not samples:
                    why = EXITS.get(status, "command failed") if status else "no samples"
                    rows = [["failed", why, "none", str(status)]]
                    sys.stderr.write(f" failed, exit {status} ({why}), see {log}.log and .err\n")
                else:
                    rows = samples + [["done", "s", "none", f"{took:.1f}"]]
                    sys.stderr.write(f" {took:.0f} s\n")
                raw.write("".join("\t".join([*triple, *row]) + "\n" for row in rows))
                raw.flush()
                os.fsync(raw.fileno())
                if rows[-1][0] == "done":
                    break
            else:
                failed += triple not in done
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    render(out)
    if failed:
        sys.stderr.write(f"report: {failed} boots failed twice; the same command tries them again\n")
    return 1 if failed else 0


# ---- statistics --------------------------------------------------------------------

def load_raw(path):
    """Rows of complete boots and of failures, and the set of complete boots."""
    pending, rows, done = collections.defaultdict(list), [], set()
    text = path.read_text(errors="replace")
    # What follows the last newline is a line that was cut off.
    for number, line in enumerate(text[:text.rfind("\n") + 1].split("\n")[:-1], 1):
        row = line.split("\t")
        try:
            good = row == HEADER if number == 1 else len(row) == 8 and math.isfinite(float(row[7]))
        except ValueError:
            good = False
        if not good:
            die(f"{path}:{number}: not a sample; remove the line or measure again")
        triple = tuple(row[:4])
        if row[4] == "failed":
            rows.append(row)
        elif number > 1 and triple not in done:
            pending[triple].append(row)
            if row[4] == "done":
                done.add(triple)
                rows += pending.pop(triple)
    return rows, done


def bootstrap(statistic, *groups, rounds=2000):
    """95 % percentile interval; the fixed seed makes reports reproducible."""
    rng = random.Random(1)
    found = sorted(statistic(*(rng.choices(g, k=len(g)) for g in groups)) for _ in range(rounds))
    return found[rounds // 40], found[-rounds // 40 - 1]


def figure(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def cell(values):
    if not values:
        return "-"
    text = figure(statistics.median(values))
    if len(values) >= 5:
        low, high = bootstrap(statistics.median, values)
        return f"{text} ± {figure(float(f'{(high - low) / 2:.2g}'))}"
    return text if len(values) == 1 else f"{text} [{figure(min(values))}..{figure(max(values))}]"


def compare(base, new, better):
    """How new differs from base; percent, low and high are positive when better."""
    if not base or not new:
        return Change("-", "missing", None, None, None)
    if min(len(base), len(new)) < 3:        # too few to resample: they must not overlap
        low, high = min(new) - max(base), max(new) - min(base)
    else:
        low, high = bootstrap(lambda a, b: statistics.median(b) - statistics.median(a), base, new)
    old, now = statistics.median(base), statistics.median(new)
    sign = -1 if better == "less" else 1
    star, single = low > 0 or high < 0, min(len(base), len(new)) == 1
    verdict = "open" if single else "equal" if not star else "better" if sign * low > 0 else "worse"
    percent = [None] * 3
    if old:
        percent = [sign * 100 * d / abs(old) for d in (now - old, *(low, high)[::sign])]
        size = abs(percent[0])
        text = f"{percent[0]:{'+.0f' if size >= 1000 else '+.1f' if size >= 0.1 or not size else '+.2g'}} %"
    else:
        word = {0: "", 1: ", better", -1: ", worse"}[0 if better == "none" else sign * ((now > old) - (now < old))]
        text = f"0 -> {figure(now)}{word}"
    text = f"({text})" if better == "none" else text
    # One boot a side shows no spread, so nothing is claimed from it.
    text = f"{text}, one run" if single else f"{text} *" if star else NO_CHANGE
    return Change(text, verdict, *percent)


class Results:
    def __init__(self, out):
        for name in ("raw.tsv", "meta.txt"):
            if not (out / name).is_file():
                die(f"{out / name} is missing; measure with: harness/report.py run --out {out}")
        self.meta = key_values(out / "meta.txt")
        rows, self.done = load_raw(out / "raw.tsv")
        self.failed = [row for row in rows if row[4] == "failed"]
        self.scenarios = [n.split(".", 1)[1] for n in self.meta if n.startswith("runs.")]
        self.metrics = {s: {} for s in self.scenarios}  # -> metric -> (unit, better, kernel -> run -> values)
        for topic, scenario, number, kernel, metric, unit, better, value in rows:
            if metric not in ("done", "failed") and f"{topic}/{scenario}" in self.metrics:
                runs = self.metrics[f"{topic}/{scenario}"].setdefault(
                    metric, (unit, better, {k: collections.defaultdict(list) for k in KERNELS}))[2]
                runs[kernel][number].append(float(value))

    def rows(self, scenario, counters=True):
        """(metric, unit, better, kernel -> one value per boot, kernel -> all points)"""
        found = sorted(self.metrics[scenario].items(), key=lambda item: item[1][1] == "none")
        for metric, (unit, better, runs) in found:
            if counters or better != "none":
                # Samples of one boot are not independent: they count as one.
                yield (metric, unit, better, {k: [statistics.median(v) for v in runs[k].values()] for k in KERNELS},
                       {k: [v for boot_values in runs[k].values() for v in boot_values] for k in KERNELS})

    def missing(self):
        return [(*s.split("/"), str(r), k) for s in self.scenarios for r in range(1, int(self.meta["runs." + s]) + 1)
                for k in KERNELS if (*s.split("/"), str(r), k) not in self.done]

    def variable(self, name):
        found = {dict(v.split("=", 1) for v in self.meta.get(f"variables.{s}", "").split()).get(name, "boot's default")
                 for s in self.scenarios}
        return " or ".join(sorted(found))


# ---- the report --------------------------------------------------------------------

def table_line(cells):
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def slug(*names):
    return "-".join(re.sub(r"[^a-z0-9]+", "-", n.lower()).strip("-") for n in names) + ".svg"


def preamble(results):
    m = collections.defaultdict(lambda: "unknown", results.meta)
    runs = " or ".join(sorted({m[f"runs.{s}"] for s in results.scenarios}, key=int))
    memory = f"{int(m['host_memory_kib']) >> 10} MiB" if m["host_memory_kib"].isdecimal() else "unknown memory"
    lines = ["# Benchmark report", "",
             f"- host: {m['host_cpu']}, {m['host_cores']} cores, {memory}",
             f"- guest: vCPUs {results.variable('CPUS')}, memory {results.variable('MEM')}",
             f"- accelerator: {m['accelerator']}; {m['qemu']}",
             f"- date: {m['date']}" + (f" (resumed {m['resumed']})" if "resumed" in m else ""),
             f"- commit: {m['commit']}",
             f"- source: {m['package']} {m['package_version']} (kernel {m['kernel_version']}, sha256 {m['sha256']})",
             f"- compiler: {m['compiler']}",
             *(f"- kernel {k}: {m['release.' + k]}, sha256 of bzImage {m['key.' + k]}" for k in KERNELS),
             f"- runs: {runs} fresh boots per scenario and kernel, the kernels in turn",
             f"- command: `{m['command']}`", ""]
    if results.variable("ICOUNT") != "boot's default":
        lines += ["Where ICOUNT=1 stands, the guest runs under tcg and its clock counts instructions,",
                  "1 ns each: there a time is a count.", ""]
    if m["accelerator"] == "tcg":
        lines += ["> **Software emulation (tcg): wall time means little here.** Compare counts,",
                  "> instructions and ratios; times are shown for completeness.", ""]
    return lines + [
        "A figure is the median over the boots (of a boot's several samples, their median), ± half of its",
        "95 % bootstrap interval; with fewer than 5 boots [min..max] instead. A change in percent is",
        "positive when the series is better; counters, which have no better or worse, stand below the",
        "judged metrics with their plain change in parentheses. A star: the 95 % bootstrap interval of the",
        "difference of medians excludes zero (with fewer than 3 boots: no values overlap). Where nothing",
        "changed, chance gives a noisy figure a star once in 3 comparisons with 2 boots a side, once in 10",
        "with 3 or 4, once in 20 from 5 on. One boot alone is not judged.", ""]


def curve_of(metric):
    """A metric that was measured at several moments or sizes: ("share", "after, s", 5.0) for "share after 5 s"."""
    found = re.fullmatch(r"(.+) (after|with) (\d+) (\S+)", metric)
    return (found[1], f"{found[2]}, {found[4]}", float(found[3])) if found else None


def find_curves(rows):
    """(metric, axis) -> [(x, unit, better, values)] for those with three values of x at least."""
    curves = collections.defaultdict(list)
    for metric, unit, better, values, _ in rows:
        at = curve_of(metric)
        if at:
            curves[at[:2]].append((at[2], unit, better, values))
    return {k: sorted(c, key=lambda point: point[0]) for k, c in curves.items() if len(c) > 2}


def build_report(results):
    """The text of report.md, the plots' gnuplot commands, and the summary's entries."""
    lines, plots, summary, names = preamble(results), [], [], set()

    def image(scenario, metric):
        name = slug(*scenario.split("/"), metric)
        while name in names:
            name = name[:-4] + "-2.svg"
        names.add(name)
        images.append(f"![{scenario} {metric}]({name})")
        return name

    losses = {"worse": [], "equal": [], "open": [], "missing": []}
    topic = None
    for scenario in results.scenarios:
        if scenario.split("/")[0] != topic:
            topic = scenario.split("/")[0]
            lines += [f"## {topic}", ""]
        counts = ", ".join(f"{k} {sum(d[:2] == tuple(scenario.split('/')) and d[3] == k for d in results.done)}"
                           for k in KERNELS)
        lines += [f"### {scenario}", "", f"`{results.meta.get(f'variables.{scenario}') or '(no boot variables)'}`,"
                  f" `{results.meta.get(f'command.{scenario}', 'unknown')}`; complete boots: {counts}", "",
                  table_line(["metric (unit)", *KERNELS, "series against stock", "series against off"]),
                  "|---|---:|---:|---:|---:|---:|"]
        images = []
        curves = find_curves(results.rows(scenario))
        for (metric, axis), curve in curves.items():
            unit, better = next(((u, b) for _, u, b, _ in curve if b != "none"), curve[0][1:3])
            if better != "none":
                plots.append((image(scenario, metric), f"{scenario}: {metric}", f"{unit or 'count'}, {better} is better",
                              {k: [(x, statistics.median(v[k])) for x, _, _, v in curve if v[k]] for k in KERNELS}, axis))
        for metric, unit, better, values, points in results.rows(scenario):
            changes = {k: compare(values[k], values["series"], better) for k in ("stock", "off")}
            inner = ", ".join(p for p in (unit, "" if better == "none" else f"{better} is better") if p)
            lines.append(table_line([f"{metric} ({inner})" if inner else metric,
                                     *(cell(values[k]) for k in KERNELS), *(c.text for c in changes.values())]))
            if better == "none":
                continue
            for kernel, change in changes.items():
                if change.verdict in losses:
                    losses[change.verdict].append(f"- {scenario}, {metric}, against {kernel}: {change.text}")
            if changes["stock"].percent is not None:
                summary.append((f"{scenario} {metric}", changes["stock"]))
            if (curve_of(metric) or ())[:2] not in curves:
                plots.append((image(scenario, metric), f"{scenario}: {metric}", f"{unit or 'count'}, {better} is better",
                              points, values))
        lines += [""] + (images + [""] if images else [])
    lines += ["## Where the series loses or is equal", ""]
    for verdict, title in (("worse", "Loses"), ("equal", "Equal within what was measured"),
                           ("open", "Not judged, one run only"), ("missing", "Not compared, no sample on one side")):
        if losses[verdict] or verdict in ("worse", "equal"):
            lines += [f"{title}: {len(losses[verdict]) or 'nothing'}", ""]
            lines += losses[verdict] + [""] * bool(losses[verdict])
    missing = results.missing()
    if results.failed or missing:
        lines += ["## Failed or missing boots", ""]
        for row in results.failed:
            later = "repeated with success" if tuple(row[:4]) in results.done else "not counted"
            lines.append(f"- {row[0]}/{row[1]} run {row[2]} {row[3]}: exit {row[7]} ({row[5]}), {later}")
        lines += [f"- {t}/{s} run {r} {k}: no data" for t, s, r, k in missing] + [""]
    if summary:
        lines += ["## Summary", "", "![change against stock](summary.svg)", "", "Metrics whose stock figure is 0"
                  " have no percentage and are not in this plot.", ""]
    return "\n".join(lines), plots, summary


def quote(text):
    return "'" + text.replace("'", "''") + "'"


def curve_script(name, title, axis, curves, along, styles):
    script = ["set terminal svg size 640,400 noenhanced font 'sans,12' background 'white'", f"set output {quote(name)}",
              f"set title {quote(title)}", f"set ylabel {quote(axis)}", f"set xlabel {quote(along)}",
              "set xrange [0:*]\nset yrange [0:*]\nset xtics auto\nset key bottom right"]
    parts = []
    for kernel, (shape, colour) in zip(KERNELS, styles):
        if curves[kernel]:
            script.append(f"$c{len(parts)} << EOD\n" + "\n".join(f"{x!r} {y!r}" for x, y in curves[kernel]) + "\nEOD")
            parts.append(f"$c{len(parts)} using 1:2 with linespoints pt {shape} ps 0.8 lw 2 lc rgb '{colour}' title '{kernel}'")
    return script + ["plot " + ", ".join(parts), "unset key\nunset xlabel"]


def gnuplot_script(plots, summary):
    # Shape and brightness both tell the kernels apart, for print in grey.
    styles = (6, "#e0a020"), (4, "#4080b0"), (7, "#202050")
    script = ["set encoding utf8", "set grid ytics lc rgb '#dddddd'", "unset key"]
    for name, title, axis, points, medians in plots:
        if isinstance(medians, str):
            script += curve_script(name, title, axis, points, medians, styles)
            continue
        every = [0.0] + [v for values in points.values() for v in values]
        low, high = min(every) * 1.08, max(every) * 1.08
        script += ["set terminal svg size 480,340 noenhanced font 'sans,12' background 'white'",
                   f"set output {quote(name)}", f"set title {quote(title)}", f"set ylabel {quote(axis)}",
                   f"set xrange [-0.6:2.6]\nset yrange [{low!r}:{high if high > low else 1.0!r}]",
                   "set xtics (" + ", ".join(f"'{k}' {i}" for i, k in enumerate(KERNELS)) + ")"]
        parts = []
        for i, kernel in enumerate(KERNELS):
            values, (shape, colour) = points[kernel], styles[i]
            if values:
                dots = "\n".join(f"{i + 0.5 * ((j + 0.5) / len(values) - 0.5):.4f} {v!r}" for j, v in enumerate(values))
                script += [f"$d{i} << EOD\n{dots}\nEOD",
                           f"$m{i} << EOD\n{i} {statistics.median(medians[kernel])!r} 0.35\nEOD"]
                parts += [f"$d{i} using 1:2 with points pt {shape} ps 0.8 lc rgb '{colour}'",
                          f"$m{i} using 1:2:3 with xerrorbars pt -1 lw 2 lc rgb '{colour}'"]
        script.append("plot " + ", ".join(parts))
    if summary:
        summary = sorted(summary, key=lambda item: (item[1].percent, item[0]))
        script += [f"set terminal svg size 860,{110 + 20 * len(summary)} noenhanced font 'sans,12' background 'white'",
                   "set output 'summary.svg'\nset title 'series against stock, right is better'\nunset ylabel",
                   "set xlabel 'change, % (bar: 95 % interval; filled: star)'\nset xtics auto\nset xrange [*:*]",
                   f"set yrange [-0.7:{len(summary) - 0.3}]\nset grid xtics",
                   f"set lmargin {min(60, max(len(n) for n, _ in summary) + 2)}\nset arrow 1 from 0, graph 0"
                   " to 0, graph 1 nohead lc rgb '#888888'",
                   "set ytics (" + ", ".join(f"{quote(n.replace('%', '%%'))} {i}" for i, (n, _) in enumerate(summary)) + ")",
                   "$s << EOD"]
        script += [f"{i} {c.percent!r} {min(c.low, c.percent)!r} {max(c.high, c.percent)!r} "
                   f"{7 if c.verdict in ('better', 'worse') else 6}" for i, (_, c) in enumerate(summary)]
        script += ["EOD", "plot $s using 2:1:3:4 with xerrorbars pt -1 lc rgb '#202050',"
                   " $s using 2:1:5 with points pt variable ps 0.9 lc rgb '#202050'"]
    return "\n".join(script) + "\n"


def need_gnuplot():
    if not shutil.which("gnuplot"):
        die("gnuplot is missing; install it with: apt-get install gnuplot-nox")


def render(out):
    text, plots, summary = build_report(Results(out))
    (out / "report.md").write_text(text)
    need_gnuplot()                          # only now: the text needs none
    plots = [plot for plot in plots if any(plot[3].values())]   # nothing measured, nothing to draw
    drawn = subprocess.run(["gnuplot"], input=gnuplot_script(plots, summary), text=True, cwd=out,
                           stderr=subprocess.PIPE)
    if drawn.returncode:
        die("gnuplot failed: " + " ".join(drawn.stderr.split()))
    print(text, flush=True)


def table(out):
    results = Results(out)
    print(table_line(["topic", "scenario", "metric (unit)", *KERNELS, "change"]))
    print("|---|---|---|---:|---:|---:|---:|")
    for scenario in results.scenarios:
        for metric, unit, better, values, _ in results.rows(scenario, counters=False):
            medians = (figure(statistics.median(values[k])) if values[k] else "-" for k in KERNELS)
            print(table_line([*scenario.split("/"), f"{metric} ({unit})" if unit else metric, *medians,
                              compare(values["stock"], values["series"], better).text]))


class Parser(argparse.ArgumentParser):
    def error(self, message):
        die(f"{message}; see harness/report.py --help")


def count(text):
    if not text.isdecimal() or not 0 < int(text) < 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of runs: give one from 1 to 999")
    return int(text)


def main(argv):
    parser = Parser(prog="report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="action", required=True, metavar="run|render|table")
    measure = commands.add_parser("run", help="measure, then render")
    measure.add_argument("--out", required=True, metavar="DIR", help="directory of the results")
    measure.add_argument("--quick", action="store_true", help="the smaller number of runs")
    measure.add_argument("--runs", type=count, metavar="N")
    measure.add_argument("topics", nargs="*", metavar="TOPIC")
    for name in ("render", "table"):
        commands.add_parser(name).add_argument("out", metavar="DIR", type=pathlib.Path)
    args = parser.parse_args(argv)
    try:
        if args.action == "run":
            return run(args, argv)
        return {"render": render, "table": table}[args.action](args.out) or 0
    except BrokenPipeError:                 # `report.py table DIR | head` is no fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as fault:
        die(f"{fault.filename or 'output'}: {fault.strerror}; check the path and its permissions")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
