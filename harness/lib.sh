# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# lib.sh: what the harness scripts share. Source it; it sets TOP and BUILD and moves to TOP.
set -u -o pipefail

# A script of the harness ends when its caller does, however that was killed: no build or guest is left behind.
if [ "${PDEATH:-}" != $$ ] && command -v setpriv > /dev/null; then
	export PDEATH=$$
	exec setpriv --pdeathsig TERM "$0" "$@"
fi

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD=$TOP/build
CACHE=${CACHE:-${XDG_CACHE_HOME:-${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.cache}/swapback}
export TOP CACHE
cd "$TOP" || exit 2
mkdir -p "$BUILD/log" || exit 2
ME=${0##*/}
START=$(date +%s)

# die TEXT: one line that names the fault and the mend, exit status 2.
die() { printf '%s: %s\n' "$ME" "$*" >&2; exit 2; }

# elapsed: minutes and seconds since this script started.
elapsed() { local s=$(($(date +%s) - START)); printf '%2d:%02d' $((s / 60)) $((s % 60)); }

# say TEXT: a line of progress, with the time elapsed.
say() { printf '[%s] %s\n' "$(elapsed)" "$*" >&2; }

# need PROGRAM...: all there, or one line with the mend.
need() {
	local p missing=
	for p; do command -v "$p" >/dev/null || missing="$missing $p"; done
	[ -z "$missing" ] || die "missing:$missing; run make deps (it prints the apt line if you are not root)"
}

# space DIR GIGABYTES: enough room, or one line.
space() {
	local free
	mkdir -p "$1" || die "cannot make $1"
	free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1048576) }')
	[ "$free" -ge "$2" ] || die "$1 has $free GB free and needs $2: free some space (make clean, or remove $CACHE)"
}

# hash: sha256 of standard input, short.
hash() { sha256sum | cut -c1-32; }

# with_lock NAME COMMAND...: one at a time on this machine, for two builds or guests at once would spoil each other's
# figures. A second caller waits, and says so. The lock dies with its holder.
with_lock() {
	local fd name=$1
	shift
	mkdir -p "$CACHE"
	exec {fd}>"$CACHE/.$name.lock"
	if ! flock -n "$fd"; then
		say "waiting for another build or guest to end"
		flock "$fd"
	fi
	"$@" {fd}>&-
	local rc=$?
	exec {fd}>&-
	return $rc
}
