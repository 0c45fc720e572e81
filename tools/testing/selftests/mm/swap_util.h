/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of swapping have in common: verdicts, settings that are put
 * back whatever happens, swap space, exact counts of swap slots, pages which
 * are told from others by what is in them, memory cgroups and slow disks.
 *
 * How slots are counted: those just allocated or just freed sit in the per-CPU
 * caches of mm/swap_slots.c (up to 64 of each kind for a CPU), and count as used
 * there.  swapoff() of any swap area empties all of these caches.  An empty
 * swap area of a few pages, on a loop device, is switched on and off again to
 * get this: there is nothing in it, so no page is looked for or read.  Where
 * this is not possible, slack says how many slots the caches can hide.
 *
 * Environment: SWAP_DEV names a block device (or file without holes) of 64 MiB
 * or more, THE CONTENT OF WHICH IS LOST, to be used as swap space.  Otherwise
 * active swap space is used, or else a virtio disk which is empty or has a swap
 * signature.
 *
 * To be included once, after kselftest_harness.h.
 */
#ifndef _SELFTESTS_MM_SWAP_UTIL_H
#define _SELFTESTS_MM_SWAP_UTIL_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <linux/dm-ioctl.h>
#include <linux/fs.h>
#include <linux/kernel-page-flags.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/uio.h>
#include <unistd.h>

#include "thp_settings.h"
#include "vm_util.h"

#define MAX_PAGES	2048
#define MAX_DEBTS	48
#define MAX_PIPES	(MAX_PAGES / PIPE_PAGES)
#define PIPE_PAGES	256
#define SLOT_CACHE	64			/* SWAP_SLOTS_CACHE_SIZE */
#define SWAP_MIN	(64UL << 20)
#define SWAP_MAX	(256UL << 20)
#define SWAP_PRIO	(SWAP_FLAG_PRIO_MASK - 1)
#define SWAP_PRIO_TOP	SWAP_FLAG_PRIO_MASK
#define KSM_DIR		"/sys/kernel/mm/ksm/"
#define THP_DIR		"/sys/kernel/mm/transparent_hugepage/"
#define PAGE_CLUSTER	"/proc/sys/vm/page-cluster"
#define GUP_TEST	"/sys/kernel/debug/gup_test"
#define CGROUP_ROOT	"/sys/fs/cgroup"
#define DM_CONTROL	"/dev/mapper/control"

#define F_SWAPCACHE	BIT_ULL(KPF_SWAPCACHE)
#define F_WRITEBACK	BIT_ULL(KPF_WRITEBACK)
#define F_LARGE		BIT_ULL(KPF_THP)

/* Every step of a test gives one of these; FINE is zero, steps chain by ?: */
enum verdict { FINE, BROKEN, UNFIT };

/*
 * What was changed in the system, and how to undo it.  Shared by all the
 * processes of the test, so that whichever of them survives can do that.
 */
struct debt {
	void (*pay)(const struct debt *d);
	char path[96];
	char text[64];
};

struct ledger {
	struct debt debt[MAX_DEBTS];
	int debts;
	int kept;			/* of these, until the program ends */
	char plug[32];			/* empty swap area, see above */
	bool plug_on;
	char why[256];			/* of the last verdict */
};

static struct ledger *ledger;
static pid_t main_pid;

static inline __printf(2, 3) int
say(int verdict, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(ledger->why, sizeof(ledger->why), fmt, args);
	va_end(args);
	return verdict;
}

static inline void conclude(struct __test_metadata *_metadata, int verdict)
{
	if (verdict == UNFIT)
		SKIP(return, "%s", ledger->why);
	EXPECT_EQ(FINE, verdict)
		TH_LOG("%s", ledger->why);
}

static inline ssize_t get_text(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY);
	ssize_t len;

	if (fd < 0)
		return -1;
	len = read(fd, buf, size - 1);
	close(fd);
	if (len >= 0)
		buf[len] = '\0';
	return len;
}

static inline bool put_text(const char *path, const char *text)
{
	ssize_t len = strlen(text);
	int fd = open(path, O_WRONLY);
	bool done;

	if (fd < 0)
		return false;
	done = write(fd, text, len) == len;
	close(fd);
	return done;
}

/* Also called from a signal handler, as all that pays: system calls only */
static inline void pay_text(const struct debt *d)
{
	put_text(d->path, d->text);
}

static inline void pay_swapoff(const struct debt *d)
{
	swapoff(d->path);
}

static inline bool owe(void (*pay)(const struct debt *d), const char *path,
		       const char *text)
{
	struct debt *d = &ledger->debt[ledger->debts];

	if (ledger->debts == MAX_DEBTS)
		return false;
	d->pay = pay;
	snprintf(d->path, sizeof(d->path), "%.90s", path);
	snprintf(d->text, sizeof(d->text), "%.60s", text);
	ledger->debts++;
	return true;
}

static inline bool turn(const char *path, const char *value)
{
	char buf[160], *from, *to;
	int i;

	for (i = 0; i < ledger->debts; i++)
		if (ledger->debt[i].pay == pay_text &&
		    !strcmp(ledger->debt[i].path, path))
			return put_text(path, value);

	if (get_text(path, buf, sizeof(buf)) <= 0)
		return false;

	/* One of several words, or just a number */
	from = strchr(buf, '[');
	from = from ? from + 1 : buf;
	to = strpbrk(from, "]\n");
	if (to)
		*to = '\0';
	return owe(pay_text, path, from) && put_text(path, value);
}

static inline void pay_down_to(int left)
{
	if (ledger->plug_on && (!swapoff(ledger->plug) || errno == EINVAL))
		ledger->plug_on = false;
	while (ledger->debts > left) {
		struct debt *d = &ledger->debt[--ledger->debts];

		d->pay(d);
	}
}

static inline void undo(void)
{
	pay_down_to(ledger->kept);
}

static inline void undo_at_exit(void)
{
	if (getpid() == main_pid)
		pay_down_to(0);
}

static inline void undo_on_signal(int sig)
{
	if (getpid() == main_pid) {
		if (__active_test)
			kill(-__active_test->pid, SIGKILL);
		pay_down_to(0);
	}
	signal(sig, SIG_DFL);
	raise(sig);
}

static void __attribute__((constructor)) open_ledger(void)
{
	void *p = mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		abort();
	ledger = p;
	main_pid = getpid();
	atexit(undo_at_exit);
	signal(SIGHUP, undo_on_signal);
	signal(SIGINT, undo_on_signal);
	signal(SIGTERM, undo_on_signal);
}

/* CPUs: the one the test runs on is chosen, it matters for LRU batches */
static cpu_set_t cpus;

static inline int nr_cpus(void)
{
	return CPU_COUNT(&cpus);
}

static inline void hop(int n)
{
	cpu_set_t one;
	int cpu;

	n %= nr_cpus();
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &cpus) && !n--)
			break;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

/* Swap space */

static inline bool label(int fd, __u64 bytes)
{
	size_t size = psize();
	char *head = calloc(1, size);
	__u32 *info;
	bool done;

	if (!head)
		return false;
	info = (__u32 *)(head + 1024);
	info[0] = 1;				/* version */
	info[1] = bytes / size - 1;		/* last page */
	memcpy(head + size - 10, "SWAPSPACE2", 10);
	done = pwrite(fd, head, size, 0) == (ssize_t)size && !fsync(fd);
	free(head);
	return done;
}

static inline int area_size(int fd, __u64 *bytes)
{
	struct stat st;

	if (fstat(fd, &st))
		return -1;
	if (S_ISBLK(st.st_mode))
		return ioctl(fd, BLKGETSIZE64, bytes);
	*bytes = st.st_size;
	return 0;
}

/* Nothing on it but zeroes in the first MiB, or else a label of swap space */
static inline bool is_free_for_swap(int fd, bool *labelled)
{
	size_t size = 1 << 20, i;
	char *buf = malloc(size);
	bool ok = false;

	*labelled = false;
	if (!buf)
		return false;
	if (pread(fd, buf, size, 0) == (ssize_t)size) {
		*labelled = !memcmp(buf + psize() - 10, "SWAPSPACE2", 10);
		for (i = 0; i < size && !buf[i]; i++)
			;
		ok = *labelled || i == size;
	}
	free(buf);
	return ok;
}

static inline bool switch_on(const char *path, bool ours)
{
	bool labelled = false, done = false;
	char rot[96];
	__u64 bytes;
	int fd;

	/* O_EXCL: not if it is mounted or otherwise in use */
	fd = open(path, O_RDWR | O_EXCL | O_CLOEXEC);
	if (fd < 0)
		return false;
	if (!area_size(fd, &bytes) && bytes >= SWAP_MIN &&
	    (ours || is_free_for_swap(fd, &labelled)))
		done = labelled ||
		       label(fd, bytes < SWAP_MAX ? bytes : SWAP_MAX);
	close(fd);
	if (!done)
		return false;

	/* Large folios go to a device without seek time only */
	snprintf(rot, sizeof(rot), "/sys/block/%.40s/queue/rotational",
		 strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
	turn(rot, "0");
	return owe(pay_swapoff, path, "") &&
	       !swapon(path, SWAP_FLAG_PREFER | SWAP_PRIO);
}

/* Used pages of all swap areas by /proc/swaps; @path: is it one of them? */
static inline long swaps_used(const char *path, bool *listed)
{
	FILE *f = fopen("/proc/swaps", "r");
	char line[512], name[256];
	long kb, used = 0;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%255s %*s %*s %ld", name, &kb) != 2)
			continue;
		used += kb;
		if (path && !strcmp(name, path))
			*listed = true;
	}
	fclose(f);
	return used / (psize() >> 10);
}

/* The number behind the name, -1 if there is none such */
static inline long number_of(const char *path, const char *name)
{
	size_t len = strlen(name);
	FILE *f = fopen(path, "r");
	char line[256];
	long n = -1;

	if (!f)
		return -1;
	while (n < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, len) &&
		    (line[len] == ':' || line[len] == ' '))
			n = strtol(line + len + 1, NULL, 10);
	fclose(f);
	return n;
}

static inline int need_swap(void)
{
	const char *named = getenv("SWAP_DEV");
	char disk[16];
	bool on = false;
	char c;

	if (swaps_used(named, &on) < 0)
		return say(UNFIT, "no /proc/swaps (CONFIG_SWAP)");
	if (named && !on)
		return switch_on(named, true) ? FINE :
			say(UNFIT, "SWAP_DEV=%s cannot be used", named);
	if (number_of("/proc/meminfo", "SwapFree") >= (long)(SWAP_MIN >> 10))
		return FINE;
	for (c = 'a'; c <= 'd'; c++) {
		snprintf(disk, sizeof(disk), "/dev/vd%c", c);
		if (switch_on(disk, false))
			return FINE;
	}
	return say(UNFIT, "no swap space of 64 MiB, name a disk in SWAP_DEV");
}

/*
 * A loop device with so many bytes of zeroes, and a descriptor of it.  It goes
 * away when the last process which has this open does.
 */
static inline int make_loop(char *path, size_t size, __u64 bytes, int *backing)
{
	struct loop_config conf = {};
	int ctl, loop, mem, n;

	ctl = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (ctl < 0)
		return -1;
	n = ioctl(ctl, LOOP_CTL_GET_FREE);
	close(ctl);
	mem = memfd_create("loop", MFD_CLOEXEC);
	if (n < 0 || mem < 0)
		return -1;
	snprintf(path, size, "/dev/loop%d", n);
	loop = open(path, O_RDWR | O_CLOEXEC);
	conf.fd = mem;
	conf.info.lo_flags = LO_FLAGS_AUTOCLEAR;
	if (loop >= 0 && (ftruncate(mem, bytes) ||
			  ioctl(loop, LOOP_CONFIGURE, &conf))) {
		close(loop);
		loop = -1;
	}
	if (backing)
		*backing = mem;
	else
		close(mem);
	return loop;
}

static inline void make_plug(void)
{
	__u64 bytes = 16 * psize();
	char path[32];
	int loop = make_loop(path, sizeof(path), bytes, NULL);

	ledger->plug[0] = '\0';
	if (loop >= 0 && label(loop, bytes))
		snprintf(ledger->plug, sizeof(ledger->plug), "%s", path);
}

static long slack;		/* what the slot caches can hide */

static inline void empty_slot_caches(void)
{
	slack = 2L * SLOT_CACHE * sysconf(_SC_NPROCESSORS_CONF);
	if (!ledger->plug[0])
		return;
	ledger->plug_on = true;
	if (swapon(ledger->plug, 0)) {
		ledger->plug_on = false;
	} else if (!swapoff(ledger->plug)) {
		ledger->plug_on = false;
		slack = 0;
	}
}

static inline long swap_cached(void)
{
	put_text("/proc/sys/vm/stat_refresh", "1");
	return number_of("/proc/meminfo", "SwapCached") / (psize() >> 10);
}

/* What is in pages */

static inline __u64 stamp(unsigned int tag, size_t page)
{
	return ((__u64)(tag + 1) << 32 | (page + 1)) * 0x9e3779b97f4a7c15ULL;
}

/* Accesses which the compiler cannot leave out */
static inline __u64 peek(const __u64 *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void poke(__u64 *word, __u64 value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* The mappings of this process */

static __u64 entry[MAX_PAGES];
static unsigned char incore[MAX_PAGES];

/*
 * The entry of a page that is being migrated looks as if the page was swapped
 * out, to an area with a number that no area has: one of the last of 32.
 */
static inline bool any_moving(size_t pages)
{
	size_t i;

	for (i = 0; i < pages; i++)
		if (entry[i] & PM_SWAP && (entry[i] & 31) >= 16)
			return true;
	return false;
}

static inline bool get_entries(char *mem, size_t pages)
{
	ssize_t len = pages * sizeof(entry[0]);
	off_t at = (uintptr_t)mem / psize() * sizeof(entry[0]);
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	bool done;
	int try;

	if (fd < 0)
		return false;
	/* It takes a moment, unless it is a device's or a marker */
	for (try = 0; try < 20; try++) {
		done = pread(fd, entry, len, at) == len;
		if (!done || !any_moving(pages))
			break;
		usleep(2000);
	}
	close(fd);
	return done;
}

static inline size_t count_swapped(char *mem, size_t pages)
{
	size_t i, n = 0;

	if (!get_entries(mem, pages))
		return 0;
	for (i = 0; i < pages; i++)
		n += !!(entry[i] & PM_SWAP);
	return n;
}

/* For a swap entry, mincore() tells whether the swap cache has the page */
static inline size_t count_incore(char *mem, size_t pages)
{
	size_t i, n = 0;

	if (mincore(mem, pages * psize(), incore))
		return pages;
	for (i = 0; i < pages; i++)
		n += incore[i] & 1;
	return n;
}

/* Wait until all pages are mapped with the flags in @want and not @avoid */
static inline int flags_come(char *mem, size_t pages, __u64 want, __u64 avoid,
			     size_t *heads)
{
	int fd = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
	__u64 flags, pfn;
	int try, verdict;
	size_t i, n = 0;

	if (fd < 0)
		return say(UNFIT, "no /proc/kpageflags");
	verdict = say(UNFIT, "pagemap cannot be read");
	for (try = 0; try < 500 && verdict; try++) {
		if (try)
			usleep(10000);
		if (!get_entries(mem, pages))
			break;
		for (i = n = 0; i < pages; i++) {
			flags = 0;
			pfn = PAGEMAP_PFN(entry[i]);
			if (!(entry[i] & PM_PRESENT) ||
			    pread(fd, &flags, sizeof(flags),
				  pfn * sizeof(flags)) != sizeof(flags) ||
			    (flags & want) != want || flags & avoid)
				break;
			n += !!(flags & BIT_ULL(KPF_COMPOUND_HEAD));
		}
		verdict = i == pages ? FINE :
			  say(UNFIT, "page %zu: flags %#llx, not %#llx / %#llx",
			      i, (unsigned long long)flags,
			      (unsigned long long)want,
			      (unsigned long long)avoid);
	}
	close(fd);
	if (heads)
		*heads = n;
	return verdict;
}

/*
 * Turn all pages into swap entries; whether the pages stay in the swap cache
 * depends on how fast they are written.  Pages in the LRU batch of a CPU are
 * left alone by MADV_PAGEOUT, which empties the batch of its own CPU only: so
 * try this on all of them.
 */
static inline int unmap_to_swap(char *mem, size_t pages)
{
	size_t n = 0;
	int try;

	for (try = 0; try < 50; try++) {
		if (try >= nr_cpus())
			usleep(10000);
		hop(try);
		if (madvise(mem, pages * psize(), MADV_PAGEOUT))
			return say(UNFIT, "MADV_PAGEOUT: %s", strerror(errno));
		n = count_swapped(mem, pages);
		if (n == pages) {
			hop(0);
			return FINE;
		}
	}
	return say(UNFIT, "only %zu of %zu pages were swapped out", n, pages);
}

/*
 * The same, and none of the pages stays in the swap cache: those which do,
 * since they were still being written, are mapped and unmapped again.
 */
static inline int evict(char *mem, size_t pages)
{
	size_t swapped = 0, cached = 0, i;
	int try;

	for (try = 0; try < 200; try++) {
		hop(try);
		if (madvise(mem, pages * psize(), MADV_PAGEOUT))
			return say(UNFIT, "MADV_PAGEOUT: %s", strerror(errno));
		swapped = count_swapped(mem, pages);
		cached = count_incore(mem, pages);
		if (swapped == pages && !cached) {
			hop(0);
			return FINE;
		}
		usleep(10000);
		for (i = 0; i < pages; i++)
			if (entry[i] & PM_SWAP && incore[i] & 1)
				peek((__u64 *)(mem + i * psize()));
	}
	return say(UNFIT, "%zu of %zu pages swapped out, %zu stay in memory",
		   swapped, pages, cached);
}

/* References to pages by pipes */

struct grip {
	int in[MAX_PIPES];
	int out[MAX_PIPES];
	int n;
};

static struct grip grip;

static inline int take_grip(char *mem, size_t pages)
{
	struct iovec part;
	int ends[2];

	for (; pages && grip.n < MAX_PIPES; pages -= part.iov_len / psize()) {
		part.iov_base = mem;
		part.iov_len = psize() *
			       (pages < PIPE_PAGES ? pages : PIPE_PAGES);
		mem += part.iov_len;
		if (pipe2(ends, O_CLOEXEC))
			return say(UNFIT, "pipe: %s", strerror(errno));
		grip.in[grip.n] = ends[1];
		grip.out[grip.n++] = ends[0];
		if (fcntl(ends[1], F_SETPIPE_SZ, (int)part.iov_len) < 0)
			return say(UNFIT, "no pipe of %zu bytes: %s",
				   part.iov_len, strerror(errno));
		if (vmsplice(ends[1], &part, 1, SPLICE_F_NONBLOCK) !=
		    (ssize_t)part.iov_len)
			return say(UNFIT, "vmsplice: %s", strerror(errno));
	}
	return FINE;
}

static inline void drop_grip(void)
{
	while (grip.n > 0) {
		close(grip.in[--grip.n]);
		close(grip.out[grip.n]);
	}
}

/* Anonymous memory comes in folios of @unit pages and in no other size */
static inline int choose_unit(size_t unit)
{
	unsigned long orders = thp_supported_orders();
	char path[96];
	bool found = false;
	int order;

	for (order = 1; order < NR_ORDERS; order++) {
		bool this = unit == 1UL << order;

		if (!(orders & (1UL << order)))
			continue;
		snprintf(path, sizeof(path), THP_DIR "hugepages-%ukB/enabled",
			 (psize() >> 10) << order);
		if (turn(path, this ? "madvise" : "never"))
			found |= this;
	}
	return found ? FINE :
		say(UNFIT, "no transparent huge pages of %zu KiB",
		    unit * (psize() >> 10));
}

/*
 * Room for so many pages, its address a multiple of @unit pages, and between
 * two pages without access: it does not become one VMA with its neighbours.
 */
static inline char *map_aligned(size_t unit, size_t pages)
{
	size_t len = pages * psize(), align = unit * psize();
	uintptr_t at;
	void *mem;

	mem = mmap(NULL, len + align + 2 * psize(), PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mem == MAP_FAILED)
		return NULL;
	at = ((uintptr_t)mem + psize() + align - 1) / align * align;
	if (mprotect((void *)at, len, PROT_READ | PROT_WRITE))
		return NULL;
	return (char *)at;
}

/* What the tests can rely on */
static inline int prepare_common(void)
{
	__u64 pfn;

	if (geteuid())
		return say(UNFIT, "needs root");
	/* Somebody may have killed the test before */
	undo();

	if (sched_getaffinity(0, sizeof(cpus), &cpus))
		return say(UNFIT, "sched_getaffinity: %s", strerror(errno));
	hop(0);
	if (access("/proc/kpageflags", R_OK) || !get_entries((char *)&pfn, 1))
		return say(UNFIT, "no page map (CONFIG_PROC_PAGE_MONITOR)");
	return FINE;
}

/* Nothing is read into the swap cache, or merged, which nobody asks for */
static inline int calm_swap(void)
{
	if (!turn(PAGE_CLUSTER, "0"))
		return say(UNFIT, "no " PAGE_CLUSTER);
	/* What an earlier test merged does not matter, but nobody merges now */
	turn(KSM_DIR "run", "0");
	return FINE;
}

static inline long msecs(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline unsigned int chance(unsigned int below)
{
	static __u64 seed = 0x5eed;

	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (seed >> 33) % below;
}

/* Any MADV_COLD works off the LRU batches of its CPU */
static inline void drain_all(void)
{
	static char *nothing;
	int n;

	if (!nothing)
		nothing = map_aligned(1, 1);
	for (n = nr_cpus() - 1; n >= 0; n--) {
		hop(n);
		madvise(nothing, psize(), MADV_COLD);
	}
}

/* A memory cgroup */
static char group[64];

static inline char *in_group(const char *file)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", group, file);
	return path;
}

static inline long group_number(const char *file)
{
	char buf[64];

	return get_text(in_group(file), buf, sizeof(buf)) > 0 ?
	       strtol(buf, NULL, 10) : -1;
}

static inline bool set_group(const char *file, long value)
{
	char buf[32];

	snprintf(buf, sizeof(buf), "%ld", value);
	return put_text(in_group(file), buf);
}

static inline void pay_group(const struct debt *d)
{
	int try;

	put_text(d->text, "1");
	for (try = 0; try < 400 && rmdir(d->path) && errno == EBUSY; try++)
		usleep(5000);
}

static inline int make_group(void)
{
	char buf[256], kill_file[96];

	if (get_text(CGROUP_ROOT "/cgroup.controllers", buf, sizeof(buf)) < 0 ||
	    !strstr(buf, "memory"))
		return say(UNFIT, "no memory controller in " CGROUP_ROOT);
	get_text(CGROUP_ROOT "/cgroup.subtree_control", buf, sizeof(buf));
	if (!strstr(buf, "memory")) {
		owe(pay_text, CGROUP_ROOT "/cgroup.subtree_control", "-memory");
		if (!put_text(CGROUP_ROOT "/cgroup.subtree_control", "+memory"))
			return say(UNFIT, "memory controller: %s",
				   strerror(errno));
	}
	snprintf(group, sizeof(group), CGROUP_ROOT "/swap_test.%d", getpid());
	snprintf(kill_file, sizeof(kill_file), "%s/cgroup.kill", group);
	if (mkdir(group, 0755))
		return say(UNFIT, "%s: %s", group, strerror(errno));
	owe(pay_group, group, kill_file);
	return FINE;
}

/* A part of a device of the device mapper */
struct span {
	const char *type;
	__u64 from, sectors;
	char params[80];
};

static inline int dm_command(const char *name, unsigned long command,
			     const struct span *span, int spans, __u64 *dev)
{
	union {
		struct dm_ioctl io;
		char room[2048];
	} u;
	const size_t step = sizeof(struct dm_target_spec) + 80;
	struct dm_target_spec *spec;
	int fd = open(DM_CONTROL, O_RDWR | O_CLOEXEC), i, err;

	memset(&u, 0, sizeof(u));
	u.io.version[0] = DM_VERSION_MAJOR;
	u.io.data_size = sizeof(u);
	u.io.data_start = sizeof(u.io);
	u.io.target_count = spans;
	snprintf(u.io.name, sizeof(u.io.name), "%s", name);
	for (i = 0; i < spans; i++) {
		spec = (void *)(u.room + sizeof(u.io) + i * step);
		spec->sector_start = span[i].from;
		spec->length = span[i].sectors;
		spec->next = step;
		snprintf(spec->target_type, sizeof(spec->target_type), "%s",
			 span[i].type);
		snprintf((char *)(spec + 1), 80, "%s", span[i].params);
	}
	err = fd < 0 ? -1 : ioctl(fd, command, &u);
	if (fd >= 0)
		close(fd);
	if (dev)
		*dev = u.io.dev;
	return err;
}

static inline void pay_dm(const struct debt *d)
{
	int try;

	for (try = 0; try < 300; try++) {
		if (!dm_command(d->path, DM_DEV_REMOVE, NULL, 0, NULL) ||
		    errno != EBUSY)
			break;
		usleep(10000);
	}
}

static inline int dm_load(const char *name, const struct span *span, int spans)
{
	if (dm_command(name, DM_TABLE_LOAD, span, spans, NULL) ||
	    dm_command(name, DM_DEV_SUSPEND, NULL, 0, NULL))
		return say(UNFIT, "%s: %s", span->type, strerror(errno));
	return FINE;
}

/* Each read takes so long, and each write, however many there are at once */
static inline int dm_delay(const char *name, const char *lower, __u64 sectors,
			   int read_ms, int write_ms)
{
	struct span span = { .type = "delay", .sectors = sectors };

	snprintf(span.params, sizeof(span.params), "%s 0 %d %s 0 %d", lower,
		 read_ms, lower, write_ms);
	return dm_load(name, &span, 1);
}

/* The number behind "dm-", or -1 */
static inline int dm_create(const char *name)
{
	__u64 dev;

	if (dm_command(name, DM_DEV_CREATE, NULL, 0, &dev)) {
		say(UNFIT, "device mapper: %s", strerror(errno));
		return -1;
	}
	owe(pay_dm, name, "");
	return (dev & 0xff) | (dev >> 12 & ~0xffULL);
}

#endif /* _SELFTESTS_MM_SWAP_UTIL_H */
