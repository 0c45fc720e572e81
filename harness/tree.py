#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""tree.py: keeps the kernel tree in build/src and the patches in the repo in step.

usage: tree.py tree            make build/src from the source package and patches/
       tree.py refresh [--to DIR]  write the commits of build/src back to the repo (or to DIR)
       tree.py dist DIR        one patch against stock for each topic, into DIR
       tree.py record          record the installed source package in patches/base
       tree.py id K            print the git tree that kernel K (off, stock, series, debug, or a commit) is built from
       tree.py sync K DIR      bring the source in DIR to the state of kernel K

build/src is a git tree whose tags are `stock` (the package) and `off` (the four topics taken out); its HEAD is the series.
It has one commit for each line of patches/series. A patch names the new files that it brings ("Adds: mm/x.c", below its
cut line); they are kept as real files at their kernel path in the repo. git tracks the folders in harness/tracked, and
every file that a patch touches; the other 80,000 files are there, but untracked.

Environment: SOURCE (the tarball), CACHE (unpacked sources, default ~/.cache/swapback).
Exit status: 0 done, 2 a fault, named in one line with its mend.
"""
import argparse
import ctypes
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(os.environ.get("TOP", Path(__file__).resolve().parent.parent))
SRC = TOP / "build/src"
STATE = SRC / ".git/swapback.json"
SOURCE = Path(os.environ.get("SOURCE", "/usr/src/linux-source-6.12.tar.xz"))
CACHE = Path(os.environ.get("CACHE", Path.home() / ".cache/swapback"))
PACKAGE = "linux-source-6.12"
OVERLAY = ("Documentation", "include", "mm", "tools/testing")
NOTES = "refs/notes/patch"
START = time.monotonic()
# Fixed, so that the same patches give the same commits everywhere.
IDENT = {"GIT_COMMITTER_NAME": "swapback", "GIT_COMMITTER_EMAIL": "swapback@localhost",
         "GIT_COMMITTER_DATE": "2024-11-17T22:15:08Z", "GIT_CONFIG_NOSYSTEM": "1"}


def die(message):
    print("tree: " + message, file=sys.stderr)
    sys.exit(2)


def say(message):
    seconds = int(time.monotonic() - START)
    print("[%2d:%02d] tree: %s" % (seconds // 60, seconds % 60, message), file=sys.stderr)


def git(*args, check=True, cwd_tree=None, **kw):
    """Run git in build/src (or the work tree given). Returns its standard output without the last newline."""
    env = dict(os.environ, **IDENT, **kw.pop("env", {}))
    run = subprocess.run(["git", "-C", str(cwd_tree or SRC), "-c", "core.abbrev=12", *args], env=env, text=True,
                         errors="surrogateescape", stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    if check and run.returncode:
        die("git %s failed: %s" % (args[0], (run.stderr.strip() or run.stdout.strip()).split("\n")[-1]))
    return run.stdout.rstrip("\n") if check else run


def read(path):
    return path.read_text(errors="surrogateescape")


def stop(number, _):
    """End by an exception, which ends a cp or a tar that runs as well."""
    sys.exit(128 + number)


def die_with_parent():
    """Whoever kills the caller, by whatever signal, ends this too: the next run must find nothing at work here."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM)


def lock(path):
    """One at a time; the lock goes with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = path.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


# What the repo says ------------------------------------------------------------------------------------------------

def series():
    """The names in patches/series, each with the comment lines above it."""
    names, notes = [], []
    for line in read(TOP / "patches/series").splitlines():
        if not line.strip() or line.startswith("#"):
            notes.append(line)
            continue
        names.append((line.strip(), notes))
        notes = []
    return names


def adds(text):
    """The files that a patch brings: its Adds: lines between the cut line and the diff."""
    found = re.search(r"^---$(.*?)(?=^diff --git |\Z)", text, re.M | re.S)
    return re.findall(r"^Adds: (\S+)$", found.group(1), re.M) if found else []


def overlay_files():
    files = []
    for top in OVERLAY:
        for path in sorted((TOP / top).rglob("*")):
            if path.is_file():
                files.append(str(path.relative_to(TOP)))
    return files


def base():
    path = TOP / "patches/base"
    if not path.exists():
        die("patches/base is missing: run harness/tree.py record")
    return dict(line.split("=", 1) for line in read(path).splitlines() if "=" in line and not line.startswith("#"))


def inputs():
    """One hash over everything that decides what build/src looks like."""
    total = hashlib.sha256()
    for name in ["harness/tracked", "patches/series"] + ["patches/" + n for n, _ in series()] + overlay_files():
        path = TOP / name
        if not path.exists():
            die("%s is named in patches/series but missing" % name)
        total.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    total.update(tarball_sha().encode())
    return total.hexdigest()


# The source package ------------------------------------------------------------------------------------------------

@functools.lru_cache
def tarball_sha():
    if not SOURCE.exists():
        die("%s is missing: apt-get install %s (or set SOURCE)" % (SOURCE, PACKAGE))
    total = hashlib.sha256()
    with SOURCE.open("rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            total.update(block)
    return total.hexdigest()


def package_version():
    run = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", PACKAGE], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return run.stdout.strip() or "unknown"


def kernel_version(folder):
    got = dict(re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)$", read(folder / "Makefile"), re.M))
    return "%(VERSION)s.%(PATCHLEVEL)s.%(SUBLEVEL)s" % got


def pristine():
    """The unpacked source, kept by content outside the checkout. Never written to: kernels are built from hard links."""
    folder = CACHE / "source" / tarball_sha()[:16]
    if not folder.exists():
        say("unpacking %s (about 20 seconds)" % SOURCE)
        held = lock(folder.parent / ".lock")
        for left in folder.parent.glob("part-*"):       # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix="part-", dir=folder.parent))
        try:
            run = subprocess.run(["tar", "-xf", str(SOURCE), "-C", str(part), "--strip-components=1"],
                                 stderr=subprocess.PIPE, text=True)
            if run.returncode:
                die("cannot unpack %s (%s): free some space in %s or install the package again"
                    % (SOURCE, run.stderr.strip().split("\n")[0], CACHE))
            part.chmod(0o755)
            if not folder.exists():
                part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            held.close()
    return folder


def check_base(folder):
    want, have = base(), {"sha256": tarball_sha(), "kernel_version": kernel_version(folder)}
    if want.get("sha256") != have["sha256"]:
        say("the source is %s, the patches were made for %s: trying them with fuzz 0 (if all apply and the tests pass, "
            "run harness/tree.py record)" % (have["kernel_version"], want.get("kernel_version")))
    return have["kernel_version"]


# build/src ---------------------------------------------------------------------------------------------------------

def state():
    try:
        return json.loads(read(STATE))
    except (OSError, ValueError):
        return {}


def save_state(head, key):
    part = STATE.with_suffix(".part")
    part.write_text(json.dumps({"head": head, "inputs": key}) + "\n")
    part.rename(STATE)


def touched(text):
    return re.findall(r"^diff --git a/(\S+) b/", text, re.M)


def imported_key():
    return tarball_sha() + "\n" + read(TOP / "harness/tracked")


def import_source(folder):
    say("making build/src")
    if SRC.exists():
        shutil.rmtree(SRC)
    SRC.parent.mkdir(exist_ok=True)
    part = SRC.with_name("src.part")
    shutil.rmtree(part, ignore_errors=True)
    if subprocess.run(["cp", "-a", "--reflink=auto", str(folder), str(part)]).returncode:
        die("cannot copy the source, cp says why above: if the disk is full, free 2 GB in %s" % TOP)
    part.rename(SRC)
    git("init", "-q", "-b", "series")
    git("config", "user.name", "swapback")
    git("config", "user.email", "swapback@localhost")
    git("config", "core.looseCompression", "0")
    git("config", "notes.rewriteRef", NOTES)        # rebase and amend carry the patch's name along
    git("config", "notes.displayRef", NOTES)
    git("config", "status.showUntrackedFiles", "no")
    paths = [line for line in read(TOP / "harness/tracked").split("\n") if line and not line.startswith("#")]
    for name, _ in series():
        paths += [p for p in touched(read(TOP / "patches" / name)) if (SRC / p).exists()]
    git("add", "-f", "--", *paths)
    git("commit", "-q", "-m", "stock %s" % kernel_version(SRC), "--date", IDENT["GIT_COMMITTER_DATE"],
        "--author", "swapback <swapback@localhost>")
    git("tag", "-f", "stock")
    (SRC / ".git/imported").write_text(imported_key())


def apply(version):
    git("reset", "-q", "--hard", "stock")
    git("update-ref", "-d", NOTES)
    git("tag", "-f", "off", "stock")
    STATE.unlink(missing_ok=True)
    owner = {}
    for name, _ in series():
        path = TOP / "patches" / name
        text = read(path)
        for new in touched(text):
            if (SRC / new).exists() and not git("ls-files", "--", new):
                die("%s changes %s, which build/src does not track: remove build/src, then make tree" % (name, new))
        run = git("am", "-q", "--keep-cr", "--empty=keep", str(path), check=False)
        if run.returncode:
            git("am", "--abort", check=False)
            why = re.search(r"patch failed: (\S+)", run.stderr)
            die("patches/%s does not apply to %s%s; build/src holds the patches before it: mend the patch against it, "
                "then make tree" % (name, version, " at " + why.group(1) if why else ""))
        for new in adds(text):
            target = SRC / new
            if not (TOP / new).is_file():
                die("patches/%s adds %s, which is not in the repo: write it or take the line out" % (name, new))
            if target.exists():
                die("patches/%s adds %s, but the kernel has such a file already: choose another name" % (name, new))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / new, target)
            git("add", "-f", "--", new)
            owner[new] = name
        if adds(text):
            git("commit", "-q", "--amend", "--no-edit", "--allow-empty")
        git("notes", "--ref", NOTES, "add", "-f", "-m", name)
        if name.startswith("off/"):
            git("tag", "-f", "off")
    for new in overlay_files():
        if new not in owner:
            die("%s is brought by no patch: name it (Adds: %s) below the cut line of one" % (new, new))


def check_untracked():
    """An edit of a file that git does not track would be lost: find it by its time."""
    tracked = set(git("ls-files").split("\n"))
    newer = subprocess.run(["find", ".", "-path", "./.git", "-prune", "-o", "-type", "f", "-cnewer", ".git/imported",
                            "-printf", "%P\n"], cwd=SRC, text=True, stdout=subprocess.PIPE).stdout.split()
    for name in newer:
        if name not in tracked and not name.endswith((".rej", ".orig", "~")):
            die("%s was changed in build/src but is not tracked: git add it, or add its folder to harness/tracked" % name)


def dirty():
    return bool(git("status", "--porcelain", "--untracked-files=no"))


def cmd_tree(_):
    folder = pristine()
    key = inputs()
    now = state()
    mark = SRC / ".git/imported"
    fresh = not mark.exists() or read(mark) != imported_key()
    if mark.exists() and now:
        moved = dirty() or git("rev-parse", "HEAD") != now.get("head")
        if key == now.get("inputs"):
            return
        if moved:
            die("both build/src and patches/ have changed: undo one of them (git status here; git -C build/src reset --hard, or "
                "FORCE=1 make refresh, which drops the edits of patches/)")
    version = check_base(folder)
    if fresh:
        import_source(folder)
    apply(version)
    save_state(git("rev-parse", "HEAD"), key)
    say("build/src is ready: %d commits on %s" % (len(series()), version))


# Back to the repo --------------------------------------------------------------------------------------------------

def slug(subject):
    words = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
    return words[:52].rstrip("-")


def patch_names(commits):
    """The file name of each commit: its note, or else the topic of the commit before it and the next free number."""
    names, topic, number = [], "off", 0
    for commit in commits:
        note = git("notes", "--ref", NOTES, "show", commit, check=False)
        if note.returncode == 0 and note.stdout.strip():
            name = note.stdout.strip().split("\n")[0]
        else:
            name = "%s/%04d-%s.patch" % (topic, number + 10, slug(git("log", "-1", "--format=%s", commit)))
        if name in names:
            die("two commits claim patches/%s: git notes --ref patch remove the one that is new" % name)
        topic, number = name.split("/")[0], int(re.match(r"\d*", name.split("/")[1]).group() or 0)
        names.append(name)
    offs = [n.startswith("off/") for n in names]
    if offs != sorted(offs, reverse=True):
        die("a commit of off/ stands behind one of the series: git rebase -i stock and move it up")
    return names


def in_overlay(name):
    return name.startswith(tuple(t + "/" for t in OVERLAY))


def cmd_refresh(args):
    if not SRC.exists():
        die("there is no build/src: run make tree")
    if dirty():
        die("build/src has uncommitted changes: commit them (git commit -a, or --amend, or --fixup), then make refresh")
    check_untracked()
    to = Path(args.to) if args.to else TOP
    if to == TOP and state() and inputs() != state().get("inputs") and not os.environ.get("FORCE"):
        die("patches/ or a new file has changed since make tree, and refresh would overwrite it: undo that (git status), or "
            "FORCE=1 make refresh to take what build/src says")
    commits = git("rev-list", "--reverse", "stock..HEAD").split()
    names = patch_names(commits)
    new_files = [f for f in git("diff", "--name-only", "--diff-filter=A", "--no-renames", "stock", "HEAD").split("\n")
                 if f and in_overlay(f)]
    brought, out = set(), {}
    for commit, name in zip(commits, names):
        mine = [f for f in git("diff-tree", "-r", "--name-only", "--no-commit-id", "--no-renames", "--diff-filter=A",
                               commit).split("\n") if f in new_files and f not in brought]
        brought.update(mine)
        head = git("show", "-s", "--format=email", commit) + "\n"
        head = re.sub(r"\AFrom \w+", "From " + "0" * 40, head)
        hide = [":(exclude)" + f for f in new_files]
        diff = git("diff-tree", "-p", "--no-renames", "--no-commit-id", commit, "--", ".", *hide)
        text = head.rstrip("\n") + "\n---\n" + "".join("Adds: %s\n" % f for f in sorted(mine))
        out["patches/" + name] = text + ("\n" + diff + "\n" if diff else "")
    for f in new_files:
        out[f] = git("show", "HEAD:" + f) + "\n"
    kept = {n: c for n, c in series()}
    out["patches/series"] = "".join("\n".join(kept.get(n, []) + [n]) + "\n" for n in names)
    for old in [str(p.relative_to(TOP)) for p in (TOP / "patches").rglob("*.patch")] + overlay_files():
        if old not in out and to == TOP:
            (TOP / old).unlink()
    for name, text in out.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or read(path) != text:
            path.write_text(text, errors="surrogateescape")
            say("wrote " + name)
    if to == TOP:
        last_off = [c for c, n in zip(commits, names) if n.startswith("off/")]
        git("tag", "-f", "off", last_off[-1] if last_off else "stock")
        for commit, name in zip(commits, names):
            git("notes", "--ref", NOTES, "add", "-f", "-m", name, commit)
        save_state(git("rev-parse", "HEAD"), inputs())


def cmd_dist(args):
    """Topic by topic: take stock's way out, put ours in, and keep the difference. Applied in order to stock they give
    the series, which is checked."""
    to = Path(args.dir).resolve()
    topics, offs = {}, {}
    for commit in git("rev-list", "--reverse", "stock..HEAD").split():
        folder, name = git("notes", "--ref", NOTES, "show", commit).split("\n")[0].split("/")
        if folder == "off":
            offs.setdefault(name.split("-")[1], []).append(commit)
        else:
            topics.setdefault(folder, []).append(commit)
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    work = SRC.with_name("dist.work")
    git("worktree", "remove", "--force", str(work), check=False)
    git("worktree", "add", "-q", "--detach", str(work), "stock")
    try:
        for number, (topic, commits) in enumerate(topics.items(), 1):
            before = git("rev-parse", "HEAD", cwd_tree=work)
            for commit in offs.pop(topic, []) + commits:
                if git("cherry-pick", "--allow-empty", commit, check=False, cwd_tree=work).returncode:
                    die("the topic %s does not stand alone: %s needs another topic; reorder patches/series"
                        % (topic, git("log", "-1", "--format=%s", commit)))
            body = "\n\n".join(git("log", "-1", "--format=%s%n%n%b", c).strip() for c in commits)
            diff = git("diff", before, "HEAD", cwd_tree=work)
            (to / ("%04d-%s.patch" % (number, topic))).write_text(
                "Topic %s of swapback, against Linux %s.\n\n%s\n\n%s\n" % (topic, kernel_version(SRC), body, diff),
                errors="surrogateescape")
        if git("rev-parse", "HEAD^{tree}", cwd_tree=work) != git("rev-parse", "HEAD^{tree}"):
            die("the patches of the topics do not add up to the series: %s is taken out by off/ and put back by no topic"
                % (" ".join(offs) or "something"))
    finally:
        git("worktree", "remove", "--force", str(work), check=False)
    say("wrote %d patches to %s; apply them in order with patch -p1" % (len(topics), to))


def cmd_record(_):
    folder = pristine()
    (TOP / "patches/base").write_text(
        "# The source that the patches are made for; written by harness/tree.py record.\n"
        "package=%s\npackage_version=%s\nkernel_version=%s\nsha256=%s\n"
        % (PACKAGE, package_version(), kernel_version(folder), tarball_sha()))


# For the kernels ---------------------------------------------------------------------------------------------------

def tree_id(kernel):
    if not SRC.exists():
        die("there is no build/src: run make tree")
    if kernel in ("stock", "off"):
        return git("rev-parse", kernel + "^{tree}")
    if re.fullmatch(r"[0-9a-f]{40}", kernel):
        return git("rev-parse", kernel + "^{tree}")
    if kernel not in ("series", "debug"):
        die("unknown kernel '%s': K is one of off, stock, series, debug" % kernel)
    # The work tree as it is, committed or not: an edit can be built at once.
    with tempfile.TemporaryDirectory() as tmp:
        index = os.path.join(tmp, "index")
        shutil.copy(SRC / ".git/index", index)
        git("add", "-u", env={"GIT_INDEX_FILE": index})
        return git("write-tree", env={"GIT_INDEX_FILE": index})


def cmd_id(args):
    print(tree_id(args.kernel))


def known(tree):
    return not subprocess.run(["git", "-C", str(SRC), "cat-file", "-e", tree], stderr=subprocess.DEVNULL).returncode


def cmd_sync(args):
    """Only what differs is written, by rename: hard links to the pristine source are broken, times of the rest kept."""
    want, folder = tree_id(args.kernel), Path(args.dir)
    mark = folder / ".tree"
    # What lies there may be of a build/src that was made anew since: then nothing tells what differs.
    if not mark.exists() or not known(read(mark).strip()):
        part = folder.with_name(folder.name + ".part")
        for old in (part, folder):
            shutil.rmtree(old, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        source = pristine()
        link = source.stat().st_dev == folder.parent.stat().st_dev
        if subprocess.run(["cp", "-a" + ("l" if link else ""), str(source), str(part)]).returncode:
            die("cannot lay out %s: free 2 GB there" % folder)
        (part / ".tree").write_text(git("rev-parse", "stock^{tree}"))
        part.rename(folder)
    have = read(mark).strip()
    if have == want:
        return
    for line in git("diff-tree", "-r", "--no-renames", have, want).split("\n"):
        if not line:
            continue
        (_, mode, _, blob, what), name = line.split("\t")[0].split(" "), line.split("\t")[1]
        path = folder / name
        if what == "D":
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        with part.open("wb") as f:
            subprocess.run(["git", "-C", str(SRC), "cat-file", "blob", blob], stdout=f, check=True)
        part.chmod(0o755 if mode == "100755" else 0o644)
        part.rename(path)
    part = mark.with_name(".tree.part")
    part.write_text(want)
    part.rename(mark)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="command", required=True)
    sub.add_parser("tree").set_defaults(call=cmd_tree)
    refresh = sub.add_parser("refresh")
    refresh.add_argument("--to")
    refresh.set_defaults(call=cmd_refresh)
    dist = sub.add_parser("dist")
    dist.add_argument("dir")
    dist.set_defaults(call=cmd_dist)
    sub.add_parser("record").set_defaults(call=cmd_record)
    for name, call in (("id", cmd_id), ("sync", cmd_sync)):
        one = sub.add_parser(name)
        one.add_argument("kernel")
        if name == "sync":
            one.add_argument("dir")
        one.set_defaults(call=call)
    args = parser.parse_args()
    die_with_parent()
    try:
        held = lock(TOP / "build/.tree.lock")
        args.call(args)
        held.close()
    except OSError as e:
        die("%s: %s" % (e.filename or "error", e.strerror))
    except KeyboardInterrupt:
        die("interrupted; run it again, it starts from a sound state")


if __name__ == "__main__":
    main()
