/* SPDX-License-Identifier: GPL-2.0 */
/*
 * bench.h: what the workloads share.
 *
 * A workload prints samples, one a line: metric, unit, better, value,
 * separated by tabs. Every other line that it prints starts with '#'.
 * Exit status: 0 done, 1 the measurement failed, 2 wrong usage.
 *
 * Include it first, from one C file per program.
 */
#ifndef BENCH_H
#define BENCH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT	21
#endif

#define BENCH_CGROUPS	"/sys/fs/cgroup"
#define BENCH_CONTROL	BENCH_CGROUPS "/cgroup.subtree_control"
#define BENCH_UNUSED	__attribute__((unused))
#define BENCH_PRINTF(m)	__attribute__((format(printf, m, (m) + 1)))
#define BENCH_KIDS	64
#define BENCH_SAVED	16

/* What has to be put back, and by whom: only the process that started. */
static struct {
	const char *name;
	pid_t owner;
	volatile pid_t kids[BENCH_KIDS];
	struct {
		char path[128];
		char value[64];
	} saved[BENCH_SAVED];
	volatile sig_atomic_t nr_saved;
	char swap[128];
	volatile sig_atomic_t swap_on;
	char cgroup[64];
	volatile sig_atomic_t controlled;
} bench;

/* Safe in a signal handler. */
static BENCH_UNUSED void bench_cleanup(void)
{
	int i, fd;

	if (!bench.owner || getpid() != bench.owner)
		return;
	for (i = 0; i < BENCH_KIDS; i++)
		if (bench.kids[i] > 0)
			kill(bench.kids[i], SIGKILL);
	for (i = 0; i < BENCH_KIDS; i++) {
		if (bench.kids[i] > 0)
			waitpid(bench.kids[i], NULL, 0);
		bench.kids[i] = 0;
	}
	if (bench.cgroup[0])
		rmdir(bench.cgroup);
	bench.cgroup[0] = 0;
	if (bench.controlled) {
		bench.controlled = 0;
		fd = open(BENCH_CONTROL, O_WRONLY | O_CLOEXEC);
		if (fd >= 0 && write(fd, "-memory", 7) < 0)
			errno = 0;
		close(fd);
	}
	/* First: swapoff wants the device as it was at swapon. */
	if (bench.swap_on) {
		bench.swap_on = 0;
		swapoff(bench.swap);
	}
	while (bench.nr_saved > 0) {
		i = --bench.nr_saved;
		fd = open(bench.saved[i].path, O_WRONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (write(fd, bench.saved[i].value,
			  strlen(bench.saved[i].value)) < 0)
			errno = 0;
		close(fd);
	}
}

static BENCH_UNUSED void bench_exit(int status)
{
	fflush(stdout);
	bench_cleanup();
	_exit(status);
}

/* The measurement failed. */
static BENCH_UNUSED BENCH_PRINTF(1) __attribute__((noreturn))
void die(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "%s: ", bench.name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	bench_cleanup();
	_exit(1);
}

/* Wrong usage: name the fault and the mend, in one line. */
static BENCH_UNUSED BENCH_PRINTF(1) __attribute__((noreturn))
void die_usage(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	fprintf(stderr, "%s: ", bench.name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	bench_cleanup();
	_exit(2);
}

static BENCH_UNUSED void bench_on_signal(int sig)
{
	bench_cleanup();
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Call it first in main(). */
static BENCH_UNUSED void bench_init(const char *name)
{
	static const int sigs[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT };
	struct sigaction sa = { .sa_handler = bench_on_signal };
	unsigned int i;

	bench.name = name;
	bench.owner = getpid();
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigfillset(&sa.sa_mask);
	for (i = 0; i < sizeof(sigs) / sizeof(sigs[0]); i++)
		sigaction(sigs[i], &sa, NULL);
	opterr = 0;
}

/* For the default case of getopt_long(). */
static BENCH_UNUSED __attribute__((noreturn))
void bench_bad_option(char **argv)
{
	const char *word = argv[optind - 1];

	if (optopt && optopt < 256 && word[0] == '-' && word[1] != '-')
		die_usage("option -%c is unknown or lacks its value: see --help",
			  optopt);
	die_usage("option '%s' is unknown or lacks its value: see --help",
		  word);
}

static BENCH_UNUSED void bench_no_more_args(int argc, char **argv)
{
	if (optind < argc)
		die_usage("'%s' is no option: see --help", argv[optind]);
}

static BENCH_UNUSED long bench_number(const char *option, const char *word,
				      long min, long max)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(word, &end, 10);
	if (errno || end == word || *end || n < min || n > max)
		die_usage("%s is '%s', give a whole number from %ld to %ld",
			  option, word, min, max);
	return n;
}

static BENCH_UNUSED void sample(const char *metric, const char *unit,
				const char *better, double value)
{
	if (value == (double)(long long)value)
		printf("%s\t%s\t%s\t%lld\n", metric, unit, better,
		       (long long)value);
	else
		printf("%s\t%s\t%s\t%.3f\n", metric, unit, better, value);
}

static BENCH_UNUSED uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static BENCH_UNUSED void sleep_ms(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

static BENCH_UNUSED uint64_t xorshift(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

static BENCH_UNUSED long page_size(void)
{
	static long size;

	if (!size)
		size = sysconf(_SC_PAGESIZE);
	return size;
}

/* Files of one value ------------------------------------------------------ */

static BENCH_UNUSED int file_write(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t done;

	if (fd < 0)
		return -1;
	done = write(fd, value, strlen(value));
	close(fd);
	return done == (ssize_t)strlen(value) ? 0 : -1;
}

/* Without the last newline; returns the length, or -1. */
static BENCH_UNUSED int file_read(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t done;

	if (fd < 0)
		return -1;
	done = read(fd, buf, size - 1);
	close(fd);
	if (done < 0)
		return -1;
	if (done && buf[done - 1] == '\n')
		done--;
	buf[done] = '\0';
	return (int)done;
}

static BENCH_UNUSED long file_long(const char *path)
{
	char buf[64];

	if (file_read(path, buf, sizeof(buf)) <= 0)
		die("cannot read %s: %s", path, strerror(errno));
	return strtol(buf, NULL, 10);
}

/* Have bench_cleanup() write @value; the last to be asked for comes first. */
static BENCH_UNUSED int undo_later(const char *path, const char *value)
{
	int i = bench.nr_saved;

	if (i >= BENCH_SAVED || strlen(path) >= sizeof(bench.saved[i].path) ||
	    strlen(value) >= sizeof(bench.saved[i].value))
		return -1;
	strcpy(bench.saved[i].path, path);
	strcpy(bench.saved[i].value, value);
	bench.nr_saved = i + 1;
	return 0;
}

/*
 * Set a knob; bench_cleanup() puts it back, so only the process that started
 * may call this. Of "a [b] c", b is the old value.
 */
static BENCH_UNUSED int knob_set(const char *path, const char *value)
{
	int i = bench.nr_saved;
	char old[256], *from = old, *to;

	if (file_read(path, old, sizeof(old)) < 0)
		return -1;
	to = strchr(old, '[');
	if (to && strchr(to, ']')) {
		from = to + 1;
		*strchr(from, ']') = '\0';
	}
	while (i > 0 && strcmp(bench.saved[i - 1].path, path))
		i--;
	if (i > 0)
		return file_write(path, value);
	return undo_later(path, from) ? -1 : file_write(path, value);
}

/* /proc/vmstat and /proc/meminfo ------------------------------------------ */

/* Fold the per-CPU parts of the counters in. Only root can. */
static BENCH_UNUSED void stat_refresh(void)
{
	static int said;

	if (file_write("/proc/sys/vm/stat_refresh", "1") && !said++)
		printf("# no stat_refresh: counters may lag a little\n");
}

/* The line of path that starts with "name" and then one of " :", or -1. */
static BENCH_UNUSED long long stat_line(const char *path, const char *name)
{
	FILE *f = fopen(path, "re");
	size_t len = strlen(name);
	long long value = -1;
	char line[256];

	if (!f)
		die("cannot read %s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, name, len) ||
		    (line[len] != ' ' && line[len] != ':'))
			continue;
		value = strtoll(line + len + 1, NULL, 10);
		break;
	}
	fclose(f);
	return value;
}

/* Pages. */
static BENCH_UNUSED long meminfo_pages(const char *name)
{
	long long kb = stat_line("/proc/meminfo", name);

	if (kb < 0)
		die("/proc/meminfo has no %s: this kernel lacks what is measured",
		    name);
	return (long)(kb * 1024 / page_size());
}

/* A counter that this kernel lacks counts as 0. */
static BENCH_UNUSED long long vmstat(const char *name)
{
	long long value = stat_line("/proc/vmstat", name);

	return value < 0 ? 0 : value;
}

static BENCH_UNUSED long swap_cached_pages(void)
{
	stat_refresh();
	return meminfo_pages("SwapCached");
}

/* Up to 64 slots per CPU lie in caches, and show as used or as free. */
static BENCH_UNUSED long swap_used_pages(void)
{
	return meminfo_pages("SwapTotal") - meminfo_pages("SwapFree");
}

/* Counters of reclaim and of swap, for differences. */
struct reclaim_stat {
	long long scan, steal, in, out, major;
	uint64_t ns;
};

static BENCH_UNUSED void reclaim_read(struct reclaim_stat *s)
{
	s->scan = vmstat("pgscan_kswapd") + vmstat("pgscan_direct");
	s->steal = vmstat("pgsteal_kswapd") + vmstat("pgsteal_direct");
	s->in = vmstat("pswpin");
	s->out = vmstat("pswpout");
	s->major = vmstat("pgmajfault");
	s->ns = now_ns();
}

/* Start from the counters in s; leave the difference there. */
static BENCH_UNUSED void reclaim_since(struct reclaim_stat *s)
{
	struct reclaim_stat t;

	reclaim_read(&t);
	s->scan = t.scan - s->scan;
	s->steal = t.steal - s->steal;
	s->in = t.in - s->in;
	s->out = t.out - s->out;
	s->major = t.major - s->major;
	s->ns = t.ns - s->ns;
}

static BENCH_UNUSED void wait_writeback(void)
{
	int i;

	/* Counted, not timed: a guest clock may run ahead of its disk. */
	for (i = 0; i < 20000; i++) {
		stat_refresh();
		if (!vmstat("nr_writeback"))
			return;
		sleep_ms(5);
	}
	die("pages stay under writeback: look at the swap device");
}

/* Children ---------------------------------------------------------------- */

/* As fork(); the child dies with its parent. */
static BENCH_UNUSED pid_t bench_fork(void)
{
	static const int sigs[] = { SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT };
	pid_t parent = getpid(), pid;
	sigset_t all, old;
	unsigned int i;
	int slot;

	for (slot = 0; slot < BENCH_KIDS && bench.kids[slot]; slot++)
		;
	if (slot == BENCH_KIDS)
		die("more than %d children at a time", BENCH_KIDS);
	fflush(stdout);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		bench.owner = 0;
		for (i = 0; i < BENCH_KIDS; i++)
			bench.kids[i] = 0;
		for (i = 0; i < sizeof(sigs) / sizeof(sigs[0]); i++)
			signal(sigs[i], SIG_DFL);
	} else if (pid > 0) {
		bench.kids[slot] = pid;
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (pid < 0)
		die("cannot fork: %s", strerror(errno));
	return pid;
}

/* Wait for a child to end; what names it if it did not end well. */
static BENCH_UNUSED void bench_reap(pid_t pid, const char *what)
{
	int i, status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die("cannot wait for the %s: %s", what,
			    strerror(errno));
	for (i = 0; i < BENCH_KIDS; i++)
		if (bench.kids[i] == pid)
			bench.kids[i] = 0;
	if (WIFSIGNALED(status))
		die("the %s was killed by signal %d%s", what, WTERMSIG(status),
		    WTERMSIG(status) == SIGKILL ? " (out of memory?)" : "");
	if (WEXITSTATUS(status))
		die("the %s failed", what);
}

/* A child that goes step by step with its parent. */
struct bench_child {
	pid_t pid;
	int fd;
};

static BENCH_UNUSED void step_give(int fd)
{
	if (send(fd, "s", 1, MSG_NOSIGNAL) != 1)
		die("the other side is gone");
}

static BENCH_UNUSED void step_take(int fd)
{
	ssize_t n;
	char c;

	while ((n = read(fd, &c, 1)) < 0 && errno == EINTR)
		;
	if (n != 1)
		die("the other side ended early");
}

static BENCH_UNUSED void bench_spawn(struct bench_child *c,
				     void (*fn)(int fd, void *arg), void *arg)
{
	int fd[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		die("cannot make a socket pair: %s", strerror(errno));
	c->pid = bench_fork();
	if (!c->pid) {
		close(fd[0]);
		fn(fd[1], arg);
		fflush(stdout);
		_exit(0);
	}
	close(fd[1]);
	c->fd = fd[0];
}

static BENCH_UNUSED void bench_join(struct bench_child *c, const char *what)
{
	bench_reap(c->pid, what);
	close(c->fd);
}

static BENCH_UNUSED void pin_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		printf("# not pinned to CPU %d: %s\n", cpu, strerror(errno));
}

/* Swap -------------------------------------------------------------------- */

/*
 * Format a block device and swap on it. Large folios go to swap as a whole
 * only on a device that does not rotate, which virtio disks say they do.
 */
static BENCH_UNUSED void swap_start(const char *dev)
{
	char path[128];
	struct stat st;
	pid_t pid;
	int fd;

	if (stat(dev, &st))
		die_usage("no swap device %s: name one that exists", dev);
	if (!S_ISBLK(st.st_mode) || strlen(dev) >= sizeof(bench.swap))
		die_usage("%s is no block device: name one to be formatted",
			  dev);
	fd = open(dev, O_RDWR | O_EXCL | O_CLOEXEC);
	if (fd < 0)
		die_usage("cannot take %s (%s): name a device that is free",
			  dev, strerror(errno));
	close(fd);
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/queue/rotational",
		 major(st.st_rdev), minor(st.st_rdev));
	if (knob_set(path, "0"))
		printf("# %s stays as it is\n", path);

	pid = bench_fork();
	if (!pid) {
		fd = open("/dev/null", O_RDWR);
		dup2(fd, 0);
		dup2(fd, 1);
		dup2(fd, 2);
		execlp("mkswap", "mkswap", dev, (char *)NULL);
		execlp("busybox", "busybox", "mkswap", dev, (char *)NULL);
		_exit(1);
	}
	bench_reap(pid, "mkswap");
	strcpy(bench.swap, dev);
	if (swapon(dev, 0))
		die("cannot swap on %s: %s", dev, strerror(errno));
	bench.swap_on = 1;
}

static BENCH_UNUSED void swap_stop(void)
{
	if (!bench.swap_on)
		return;
	bench.swap_on = 0;
	if (swapoff(bench.swap))
		die("cannot end swap on %s: %s", bench.swap, strerror(errno));
}

/* Call it with the value of --swap or NULL; pages is what will be used. */
static BENCH_UNUSED void swap_need(const char *dev, long pages)
{
	long total;

	if (dev)
		swap_start(dev);
	total = meminfo_pages("SwapTotal");
	if (!total)
		die_usage("no swap is on: give --swap DEVICE (it is formatted)");
	/* A swap more than half full gives slots back early. */
	if (total < 2 * pages)
		die_usage("swap has %ld pages: give at least %ld", total,
			  2 * pages);
}

/* Memory ------------------------------------------------------------------ */

/* Private memory, 2 MiB aligned. */
static BENCH_UNUSED unsigned char *map_private(long pages)
{
	size_t align = 2u << 20, len = (size_t)pages * (size_t)page_size();
	unsigned char *p, *at;

	p = mmap(NULL, len + align, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		die("cannot map %ld pages: %s", pages, strerror(errno));
	at = (unsigned char *)(((uintptr_t)p + align - 1) & ~(align - 1));
	if (at > p)
		munmap(p, (size_t)(at - p));
	if (at < p + align)
		munmap(at + len, (size_t)(p + align - at));
	return at;
}

static BENCH_UNUSED void *map_shared(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("cannot map shared memory: %s", strerror(errno));
	memset(p, 0, len);
	return p;
}

/* No page is all zeroes: those would not be written to swap. */
static BENCH_UNUSED void pages_fill(unsigned char *at, long pages)
{
	long i, size = page_size();

	for (i = 0; i < pages; i++)
		*(volatile uint64_t *)(at + i * size) = (uint64_t)i + 1;
}

static BENCH_UNUSED void pages_write(unsigned char *at, long pages)
{
	long i, size = page_size();

	for (i = 0; i < pages; i++)
		*(volatile uint64_t *)(at + i * size + 64) = (uint64_t)i + 1;
}

static BENCH_UNUSED void pages_read(unsigned char *at, long pages)
{
	long i, size = page_size();

	for (i = 0; i < pages; i++)
		(void)*(volatile uint64_t *)(at + i * size);
}

/* A memory cgroup for children to enter; it goes away with the program. */
static BENCH_UNUSED const char *cgroup_make(const char *name)
{
	char buf[256] = "";

	if (bench.cgroup[0])
		return bench.cgroup;
	file_read(BENCH_CONTROL, buf, sizeof(buf));
	if (!strstr(buf, "memory") && !file_write(BENCH_CONTROL, "+memory"))
		bench.controlled = 1;
	snprintf(buf, sizeof(bench.cgroup), BENCH_CGROUPS "/%s", name);
	if (mkdir(buf, 0755) && errno != EEXIST)
		die("cannot make %s (%s): mount cgroup2 there and run as root",
		    buf, strerror(errno));
	memcpy(bench.cgroup, buf, sizeof(bench.cgroup));
	return bench.cgroup;
}

/* Write to a file of that cgroup. Return: 0, or -1 and errno. */
static BENCH_UNUSED int cgroup_write(const char *file, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", bench.cgroup, file);
	return file_write(path, value);
}

/*
 * Where the pages of a range are: the entries of pagemap without the flags that
 * do not say so. For root these are page frames, or places in swap: an area and
 * a slot in it. A page that is being migrated is shown as swapped, too, in an
 * area of a number that the kernel keeps for that, of the last of 32.
 */
#define PLACE_SWAPPED	(1ull << 62)
#define PLACE_AREA	31ull
#define PLACE_AREAS	16ull
#define PLACE_MASK	((3ull << 62) | ((1ull << 55) - 1))

static BENCH_UNUSED void pages_place(unsigned char *at, uint64_t *place,
				     long pages)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	off_t from = (off_t)((uintptr_t)at / (uintptr_t)page_size()) * 8;
	long i;

	if (fd < 0)
		die("cannot read /proc/self/pagemap: %s", strerror(errno));
	if (pread(fd, place, (size_t)pages * 8, from) != pages * 8)
		die("/proc/self/pagemap ends early");
	close(fd);
	for (i = 0; i < pages; i++)
		place[i] &= PLACE_MASK;
}

static BENCH_UNUSED int place_swapped(uint64_t place)
{
	return place & PLACE_SWAPPED && (place & PLACE_AREA) < PLACE_AREAS;
}

/* Pages of a range that are swapped out. */
static BENCH_UNUSED long pages_swapped(unsigned char *at, long pages)
{
	uint64_t *place = calloc((size_t)pages, sizeof(*place));
	long i, found = 0;

	if (!place)
		die("out of memory");
	pages_place(at, place, pages);
	for (i = 0; i < pages; i++)
		found += place_swapped(place[i]);
	free(place);
	return found;
}

/* Swap a range out and let the writes end; all but 1 % has to go. */
static BENCH_UNUSED void pages_out(unsigned char *at, long pages)
{
	size_t len = (size_t)pages * (size_t)page_size();
	long gone = 0;
	int i;

	for (i = 0; i < 20 && gone < pages; i++) {
		if (madvise(at, len, MADV_PAGEOUT))
			die("MADV_PAGEOUT: %s", strerror(errno));
		wait_writeback();
		gone = pages_swapped(at, pages);
	}
	if (gone < pages - pages / 100)
		die("only %ld of %ld pages go to swap: is it full?", gone,
		    pages);
}

#endif /* BENCH_H */
