// SPDX-License-Identifier: GPL-2.0
/*
 * swapoff(2): what it brings back, in which order it reads, and whom it hurts.
 *
 * Each test makes its own swap areas, on loop devices with memory behind them
 * which cannot be swapped itself, and on top of these device mapper targets
 * which delay or fail reads.  What is in a page tells which page it is, every
 * byte of it.
 *
 * Time is measured where nothing else shows the difference, and then against a
 * delay which the test has chosen for the device.  Order and number of reads
 * are counted by the block layer.
 *
 * A swapoff which does not end in time is made to end: its device becomes fast,
 * who stands in its way is killed, and then it gets a signal.
 *
 * swap_util.h tells about SWAP_DEV, which is not used here, and about slots in
 * per-CPU caches.
 */
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <linux/userfaultfd.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "../kselftest_harness.h"
#include "swap_util.h"

#ifndef MADV_FREE
#define MADV_FREE		8
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT		21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE		25
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif

#define CASE_SECONDS	120
#define RACE_MSECS	150
#define MAX_KIDS	80
#define MAX_AREAS	2
#define HUGE_PAGES	"/proc/sys/vm/nr_hugepages"
#define ZSWAP		"/sys/module/zswap/parameters/"
#define ZRAM_CONTROL	"/sys/class/zram-control/"
#define HWPOISON	"/sys/kernel/debug/hwpoison/"

/*
 * A kernel that checks itself is several times slower: all delays and limits
 * are as many times longer then.
 */
static int patience(void)
{
	return access("/proc/lockdep", F_OK) ? 1 : 4;
}

/* Swap areas */

static struct disk {
	char lower[32];		/* the loop device */
	char name[32];		/* in the device mapper, or empty */
	char path[48];		/* what swapon() takes */
	char stat[64];		/* statistics of the block layer */
	__u64 sectors;
	int fd;			/* of the loop device, which goes without it */
	int prio;
} disk[MAX_AREAS];

static bool lock_areas;

/*
 * An area more than half full is one the slots of which are given up early: so
 * make it three times as large as what goes there.  Where memory is short, the
 * memory behind is locked, or a swap area would be swapped to another.
 */
static int make_disk(struct disk *d, int mib)
{
	__u64 bytes = (__u64)mib << 20;
	int backing;
	void *mem;

	memset(d, 0, sizeof(*d));
	d->fd = make_loop(d->lower, sizeof(d->lower), bytes, &backing);
	if (d->fd < 0 || !label(d->fd, bytes))
		return say(UNFIT, "no loop device: %s", strerror(errno));
	if (lock_areas) {
		mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			   backing, 0);
		if (mem == MAP_FAILED || mlock(mem, bytes) ||
		    madvise(mem, bytes, MADV_DONTFORK))
			return say(UNFIT, "no memory for a swap area");
	}
	close(backing);
	d->sectors = bytes / 512;
	snprintf(d->path, sizeof(d->path), "%s", d->lower);
	snprintf(d->stat, sizeof(d->stat), "/sys/block/%s/stat",
		 strrchr(d->path, '/') + 1);
	return FINE;
}

static int set_delay(struct disk *d, int read_ms, int write_ms)
{
	return dm_delay(d->name, d->lower, d->sectors, read_ms, write_ms);
}

/* From now on pages @from to @to of the area cannot be read */
static int set_bad(struct disk *d, __u64 from, __u64 to)
{
	__u64 per_page = psize() / 512;
	struct span span[3] = {
		{ .type = "linear", .sectors = from * per_page },
		{ .type = "error", .sectors = (to - from) * per_page },
		{ .type = "linear",
		  .sectors = d->sectors - to * per_page },
	}, used[3];
	__u64 at = 0;
	int i, n = 0;

	for (i = 0; i < 3; i++) {
		span[i].from = at;
		if (i != 1)
			snprintf(span[i].params, sizeof(span[i].params),
				 "%s %llu", d->lower, (unsigned long long)at);
		at += span[i].sectors;
		if (span[i].sectors)
			used[n++] = span[i];
	}
	return dm_load(d->name, used, n);
}

/* A swapoff which somebody left behind still reads: let it be fast */
static void pay_delay(const struct debt *d)
{
	struct span span = { .type = "delay" };

	snprintf(span.params, sizeof(span.params), "%.32s 0 0",
		 strchr(d->text, '/'));
	span.sectors = strtoull(d->text, NULL, 10);
	dm_command(d->path, DM_TABLE_LOAD, &span, 1, NULL);
	dm_command(d->path, DM_DEV_SUSPEND, NULL, 0, NULL);
}

static int make_mapped(struct disk *d, int mib)
{
	int verdict = make_disk(d, mib), try, dev;
	char table[64];

	if (verdict)
		return verdict;
	snprintf(d->name, sizeof(d->name), "swapoff-%d-%d", getpid(),
		 (int)(d - disk));
	dev = dm_create(d->name);
	if (dev < 0)
		return UNFIT;
	snprintf(table, sizeof(table), "%llu %s",
		 (unsigned long long)d->sectors, d->lower);
	owe(pay_delay, d->name, table);
	verdict = set_delay(d, 0, 0);
	snprintf(d->path, sizeof(d->path), "/dev/dm-%d", dev);
	snprintf(d->stat, sizeof(d->stat), "/sys/block/dm-%d/stat", dev);
	for (try = 0; try < 100 && access(d->path, F_OK); try++)
		usleep(10000);
	return verdict;
}

static void pay_zram(const struct debt *d)
{
	char path[64];
	int try;

	snprintf(path, sizeof(path), "/sys/block/zram%.16s/reset", d->path);
	for (try = 0; try < 100 && !put_text(path, "1"); try++)
		usleep(10000);
	for (try = 0; try < 100; try++) {
		if (put_text(ZRAM_CONTROL "hot_remove", d->path) ||
		    errno != EBUSY)
			break;
		usleep(10000);
	}
}

static int make_zram(struct disk *d, int mib)
{
	__u64 bytes = (__u64)mib << 20;
	char number[16], path[64], size[24];
	int fd, try;

	memset(d, 0, sizeof(*d));
	if (get_text(ZRAM_CONTROL "hot_add", number, sizeof(number)) <= 0)
		return say(UNFIT, "no zram");
	number[strcspn(number, "\n")] = '\0';
	owe(pay_zram, number, "");
	snprintf(path, sizeof(path), "/sys/block/zram%s/disksize", number);
	snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
	snprintf(d->path, sizeof(d->path), "/dev/zram%s", number);
	snprintf(d->stat, sizeof(d->stat), "/sys/block/zram%s/stat", number);
	if (!put_text(path, size))
		return say(UNFIT, "%s: %s", path, strerror(errno));
	for (try = 0; try < 100 && access(d->path, F_OK); try++)
		usleep(10000);
	fd = open(d->path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || !label(fd, bytes))
		return say(UNFIT, "%s: %s", d->path, strerror(errno));
	close(fd);
	d->sectors = bytes / 512;
	return FINE;
}

/* A line of /proc/swaps */
static bool listed(const struct disk *d, int *prio, long *used)
{
	FILE *f = fopen("/proc/swaps", "r");
	char line[512], name[256];
	bool found = false;
	long kb;
	int p;

	while (f && !found && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%255s %*s %*s %ld %d", name, &kb, &p) != 3 ||
		    strcmp(name, d->path))
			continue;
		found = true;
		if (prio)
			*prio = p;
		if (used)
			*used = kb / (psize() >> 10);
	}
	if (f)
		fclose(f);
	return found;
}

static bool any_listed(void)
{
	char buf[4096];

	/* There is a headline */
	return get_text("/proc/swaps", buf, sizeof(buf)) > 0 &&
	       strchr(buf, '/');
}

static int switch_disk_on(struct disk *d, int prio)
{
	bool others = any_listed();

	d->prio = prio;
	if (swapon(d->path, SWAP_FLAG_PREFER | prio))
		return say(UNFIT, "swapon %s: %s", d->path, strerror(errno));
	owe(pay_swapoff, d->path, "");
	if (!others)
		return FINE;
	/* Slots of another area in the caches would be used first */
	if (!ledger->plug[0])
		make_plug();
	empty_slot_caches();
	return FINE;
}

/*
 * Areas on zram instead: the kernel reads these without waiting, and a page
 * with a single user past the swap cache.
 */
static bool on_zram;

static int make_area(struct disk *d, int mib)
{
	return on_zram ? make_zram(d, mib) : make_disk(d, mib);
}

static int fast_area(struct disk *d, int mib)
{
	return make_area(d, mib) ?:
	       switch_disk_on(d, SWAP_PRIO_TOP - (int)(d - disk));
}

static int mapped_area(struct disk *d, int mib)
{
	return make_mapped(d, mib) ?:
	       switch_disk_on(d, SWAP_PRIO_TOP - (int)(d - disk));
}

/* Of the statistics: which is 0 for reads, 2 for sectors read, 4 for writes */
static long block_stat(const struct disk *d, int which)
{
	char buf[256], *at = buf;
	long n = -1;

	if (get_text(d->stat, buf, sizeof(buf)) <= 0)
		return -1;
	while (which-- >= 0)
		n = strtol(at, &at, 10);
	return n;
}

/* Memory */

static struct mem {
	char *at;
	size_t pages;
	unsigned int tag;	/* tells what is in it */
} mem, more;

static unsigned int next_tag;

static char *page_at(const struct mem *m, size_t page)
{
	return m->at + page * psize();
}

static void make_page(__u64 *to, unsigned int tag, size_t page)
{
	size_t words = psize() / sizeof(*to), i;
	__u64 s = stamp(tag, page) | 1;

	for (i = 0; i < words; i++, s += 0x2545f4914f6cdd1dULL)
		poke(&to[i], s);
}

static bool page_is(const char *at, unsigned int tag, size_t page)
{
	const __u64 *word = (const __u64 *)at;
	size_t words = psize() / sizeof(*word), i;
	__u64 s = stamp(tag, page) | 1;

	for (i = 0; i < words; i++, s += 0x2545f4914f6cdd1dULL)
		if (peek(&word[i]) != s)
			return false;
	return true;
}

static bool page_is_zero(const char *at)
{
	const __u64 *word = (const __u64 *)at;
	size_t words = psize() / sizeof(*word), i;

	for (i = 0; i < words; i++)
		if (peek(&word[i]))
			return false;
	return true;
}

static void fill(struct mem *m)
{
	size_t i;

	m->tag = ++next_tag;
	for (i = 0; i < m->pages; i++)
		make_page((__u64 *)page_at(m, i), m->tag, i);
}

static int intact_part(const struct mem *m, size_t from, size_t to,
		       const char *when)
{
	size_t bad = 0, first = 0, i;

	for (i = from; i < to; i++)
		if (!page_is(page_at(m, i), m->tag, i) && !bad++)
			first = i;
	if (!bad)
		return FINE;
	return say(BROKEN, "%s: %zu of %zu pages are wrong, first is %zu", when,
		   bad, to - from, first);
}

static int intact(const struct mem *m, const char *when)
{
	return intact_part(m, 0, m->pages, when);
}

static int map_mem(struct mem *m, size_t pages)
{
	m->at = map_aligned(read_pmd_pagesize() / psize(), pages);
	if (!m->at)
		return say(UNFIT, "mmap: %s", strerror(errno));
	m->pages = pages;
	madvise(m->at, pages * psize(), MADV_NOHUGEPAGE);
	fill(m);
	return FINE;
}

/* A file without a name, and a mapping of it */
static int map_file(struct mem *m, size_t pages, int *file)
{
	int fd = memfd_create("swapoff", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, pages * psize()))
		return say(UNFIT, "memfd_create: %s", strerror(errno));
	m->at = mmap(NULL, pages * psize(), PROT_READ | PROT_WRITE, MAP_SHARED,
		     fd, 0);
	if (m->at == MAP_FAILED)
		return say(UNFIT, "mmap: %s", strerror(errno));
	m->pages = pages;
	fill(m);
	if (file)
		*file = fd;
	return FINE;
}

/* Memory cgroups */

static int enter_group(void)
{
	return put_text(in_group("cgroup.procs"), "0") ? FINE :
	       say(UNFIT, "cannot enter %s: %s", group, strerror(errno));
}

/* To swap */

static int all_swapped(const struct mem *m, bool want)
{
	size_t from, n, swapped = 0;

	for (from = 0; from < m->pages; from += n) {
		n = m->pages - from < MAX_PAGES ? m->pages - from : MAX_PAGES;
		swapped += count_swapped(page_at(m, from), n);
	}
	if (swapped == (want ? m->pages : 0))
		return FINE;
	return say(want ? UNFIT : BROKEN, "%zu of %zu pages are swap entries",
		   swapped, m->pages);
}

static int push_out(const struct mem *m)
{
	size_t from, n;
	int verdict = FINE;

	for (from = 0; from < m->pages && !verdict; from += n) {
		n = m->pages - from < MAX_PAGES ? m->pages - from : MAX_PAGES;
		verdict = evict(page_at(m, from), n);
	}
	return verdict;
}

static size_t *shuffled(size_t n)
{
	size_t *order = calloc(n, sizeof(*order)), i, j, tmp;

	for (i = 0; order && i < n; i++)
		order[i] = i;
	for (i = n; order && i-- > 1;) {
		j = chance(i + 1);
		tmp = order[i];
		order[i] = order[j];
		order[j] = tmp;
	}
	return order;
}

/* One page at a time, so that slots are not in the order of addresses */
static int push_out_shuffled(const struct mem *m)
{
	size_t *order = shuffled(m->pages), i;

	if (!order)
		return say(UNFIT, "no memory");
	for (i = 0; i < m->pages; i++)
		madvise(page_at(m, order[i]), psize(), MADV_PAGEOUT);
	free(order);
	return FINE;
}

static int push_out_mixed(const struct mem *m)
{
	size_t i, next = 0;
	int verdict = push_out_shuffled(m) ?: push_out(m);

	if (verdict || !get_entries(m->at, m->pages))
		return verdict ?: say(UNFIT, "pagemap cannot be read");
	for (i = 1; i < m->pages; i++)
		next += PAGEMAP_PFN(entry[i]) >> 5 ==
			(PAGEMAP_PFN(entry[i - 1]) >> 5) + 1;
	return next < m->pages / 4 ? FINE :
	       say(UNFIT, "%zu of %zu pages are in order", next, m->pages);
}

/*
 * Pages of a file.  They stay in the swap cache until they are written and
 * reclaim comes along; reading them would free their slots.  So this wants
 * them to be charged to our memory cgroup, see make_group().
 */
static int push_out_file(const struct mem *m, bool mixed)
{
	static unsigned char in_memory[8192];
	size_t n = 0, i;
	int try, verdict;

	for (try = 0; try < nr_cpus(); try++) {
		hop(try);
		verdict = mixed ? push_out_shuffled(m) : FINE;
		madvise(m->at, m->pages * psize(), MADV_PAGEOUT);
		if (verdict)
			return verdict;
	}
	hop(0);
	for (try = 0; try < 200; try++) {
		if (mincore(m->at, m->pages * psize(), in_memory))
			return say(UNFIT, "mincore: %s", strerror(errno));
		for (i = n = 0; i < m->pages; i++)
			n += in_memory[i] & 1;
		if (!n)
			return FINE;
		usleep(5000);
		set_group("memory.reclaim", n * psize());
	}
	return say(UNFIT, "%zu of %zu pages stay in memory", n, m->pages);
}

/* swapoff() in a process of its own */

static struct run {
	pid_t pid;
	int from;		/* where the answer comes from */
	long in;		/* pages swapped in before */
	int err;		/* errno, or 0, or -1 if killed */
	long msecs;
	long cpu_usecs;
} run[MAX_AREAS];

struct answer {
	int err;
	long msecs;
};

static void no_op(int sig)
{
}

/*
 * A process that is forked does not get our pages.  This cannot be undone while
 * swapoff may hold mmap_lock, so it is when it has ended.
 */
static void advise_all(int advice)
{
	madvise(mem.at, mem.pages * psize(), advice);
	madvise(more.at, more.pages * psize(), advice);
}

static int start_off(struct run *r, const struct disk *d)
{
	struct sigaction sa = { .sa_handler = no_op };
	struct answer answer;
	pid_t boss = getpid();
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return say(UNFIT, "pipe: %s", strerror(errno));
	r->in = number_of("/proc/vmstat", "pswpin");
	/* Or it would be one more sharer */
	if (!run[0].pid && !run[1].pid)
		advise_all(MADV_DONTFORK);
	r->pid = fork();
	if (!r->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != boss)
			_exit(1);
		sigaction(SIGINT, &sa, NULL);
		answer.msecs = msecs();
		answer.err = swapoff(d->path) ? errno : 0;
		answer.msecs = msecs() - answer.msecs;
		_exit(write(ends[1], &answer, sizeof(answer)) !=
		      sizeof(answer));
	}
	close(ends[1]);
	r->from = ends[0];
	if (r->pid > 0)
		return FINE;
	r->pid = 0;
	return say(UNFIT, "fork: %s", strerror(errno));
}

static bool has_ended(const struct run *r, long within)
{
	struct pollfd p = { .fd = r->from, .events = POLLIN };

	return poll(&p, 1, within) > 0;
}

static void reap(struct run *r)
{
	struct answer answer = { .err = -1 };
	struct rusage ru = {};

	if (read(r->from, &answer, sizeof(answer)) != sizeof(answer))
		answer.err = -1;
	close(r->from);
	wait4(r->pid, NULL, 0, &ru);
	r->pid = 0;
	if (!run[0].pid && !run[1].pid)
		advise_all(MADV_DOFORK);
	r->err = answer.err;
	r->msecs = answer.msecs;
	r->cpu_usecs = (ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000 +
		       ru.ru_utime.tv_usec + ru.ru_stime.tv_usec;
}

static void lose_kids(void);

/* What does not end by itself */
static void make_end(struct run *r, struct disk *d)
{
	if (!r->pid)
		return;
	if (d->name[0])
		set_delay(d, 0, 0);
	if (!has_ended(r, 1500)) {
		lose_kids();
		kill(r->pid, SIGINT);
		if (!has_ended(r, 3000))
			kill(r->pid, SIGKILL);
	}
	reap(r);
}

static int wait_off(struct run *r, struct disk *d, long within)
{
	if (!has_ended(r, within)) {
		make_end(r, d);
		return say(BROKEN, "swapoff does not end within %ld ms",
			   within);
	}
	reap(r);
	return FINE;
}

static int off_is(const struct run *r, int err)
{
	if (r->err == err)
		return FINE;
	return say(BROKEN, "swapoff: %s, not %s",
		   r->err < 0 ? "killed" : strerror(r->err), strerror(err));
}

static int is_off(const struct disk *d)
{
	return listed(d, NULL, NULL) ?
	       say(BROKEN, "%s is in /proc/swaps still", d->path) : FINE;
}

static int is_on(const struct disk *d)
{
	int prio;

	if (!listed(d, &prio, NULL))
		return say(BROKEN, "%s is not in /proc/swaps", d->path);
	if (prio != d->prio)
		return say(BROKEN, "%s has priority %d, not %d", d->path, prio,
			   d->prio);
	return FINE;
}

#define OFF_MSECS	(10000 * patience())

/* From start to end, in the usual case */
static int turn_off(struct disk *d)
{
	return start_off(&run[0], d) ?: wait_off(&run[0], d, OFF_MSECS) ?:
	       off_is(&run[0], 0) ?: is_off(d);
}

/* It reads: that is counted when a read starts */
static int reads_start(const struct run *r)
{
	long end = msecs() + 2000;

	while (msecs() < end) {
		if (number_of("/proc/vmstat", "pswpin") > r->in)
			return FINE;
		if (has_ended(r, 0))
			return say(UNFIT, "swapoff has ended at once");
		usleep(1000);
	}
	return say(UNFIT, "swapoff does not read");
}

/* Other processes which have the same memory */

enum op { LOOK, WRITE, PUSH, STALL };

static struct kid {
	pid_t pid;
	int sock;
} kid[MAX_KIDS];

static int kids;

/* What all of them see */
static struct board {
	bool stop;
	long turns;
	long stall;
} *board;

/* How long mmap() and munmap() can take while others do what they do */
static void measure_stall(void)
{
	long start, took;
	void *p;

	while (!__atomic_load_n(&board->stop, __ATOMIC_SEQ_CST)) {
		start = msecs();
		p = mmap(NULL, psize(), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p != MAP_FAILED)
			munmap(p, psize());
		took = msecs() - start;
		if (took > board->stall)
			board->stall = took;
		__atomic_add_fetch(&board->turns, 1, __ATOMIC_SEQ_CST);
		usleep(500);
	}
}

static int obey(enum op op)
{
	switch (op) {
	case LOOK:
		return intact(&mem, "in the child");
	case WRITE:
		fill(&mem);
		return FINE;
	case PUSH:
		return push_out(&mem);
	case STALL:
		measure_stall();
		return FINE;
	}
	return BROKEN;
}

static int add_kid(void)
{
	pid_t boss = getpid();
	int ends[2], verdict;
	enum op op;

	if (kids == MAX_KIDS ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return say(UNFIT, "socketpair: %s", strerror(errno));
	kid[kids].sock = ends[0];
	kid[kids].pid = fork();
	if (!kid[kids].pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != boss)
			_exit(1);
		close(ends[0]);
		next_tag += 1000 * (kids + 1);
		while (recv(ends[1], &op, sizeof(op), 0) == sizeof(op)) {
			verdict = obey(op);
			send(ends[1], &verdict, sizeof(verdict), MSG_NOSIGNAL);
		}
		_exit(0);
	}
	close(ends[1]);
	if (kid[kids].pid < 0) {
		close(ends[0]);
		return say(UNFIT, "fork: %s", strerror(errno));
	}
	kids++;
	return FINE;
}

static int add_kids(int n)
{
	int verdict = FINE;

	while (n-- > 0 && !verdict)
		verdict = add_kid();
	return verdict;
}

static int tell(int who, enum op op)
{
	return send(kid[who].sock, &op, sizeof(op), MSG_NOSIGNAL) == sizeof(op) ?
	       FINE : say(BROKEN, "child %d is gone", who);
}

static int answer_of(int who)
{
	int verdict;

	return recv(kid[who].sock, &verdict, sizeof(verdict), 0) ==
	       sizeof(verdict) ? verdict :
	       say(BROKEN, "child %d is gone", who);
}

static int ask(int who, enum op op)
{
	return tell(who, op) ?: answer_of(who);
}

static int ask_all(enum op op)
{
	int who, verdict = FINE;

	for (who = 0; who < kids && !verdict; who++)
		verdict = ask(who, op);
	return verdict;
}

static void lose_kids(void)
{
	while (kids > 0) {
		close(kid[--kids].sock);
		kill(kid[kids].pid, SIGKILL);
		waitpid(kid[kids].pid, NULL, 0);
	}
}

/* Before and after each test */

static int prepare(void)
{
	int verdict = prepare_common() ?: calm_swap();

	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!verdict && board == MAP_FAILED)
		verdict = say(UNFIT, "mmap: %s", strerror(errno));
	/* Of a test that came before */
	ledger->plug[0] = '\0';
	return verdict;
}

static void set_up(struct __test_metadata *_metadata)
{
	int verdict = prepare();

	if (verdict)
		undo();
	conclude(_metadata, verdict);
}

/* What a test has started ends before its verdict is told */
static void end_with(struct __test_metadata *_metadata, int verdict)
{
	char why[sizeof(ledger->why)];
	int i;

	memcpy(why, ledger->why, sizeof(why));
	for (i = 0; i < MAX_AREAS; i++)
		make_end(&run[i], &disk[i]);
	lose_kids();
	memcpy(ledger->why, why, sizeof(why));
	conclude(_metadata, verdict);
}

/*
 * A tour of the fixtures.
 *
 * "content": whatever kind of page it is, and wherever it is when swapoff()
 * comes: it is the same afterwards.
 */
FIXTURE(content) {};

FIXTURE_SETUP(content)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(content)
{
	undo();
}

static int bring_back(bool mixed)
{
	long used = 0;
	int verdict;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 512);
	verdict = verdict ?: (mixed ? push_out_mixed(&mem) : push_out(&mem)) ?:
		  all_swapped(&mem, true);
	listed(&disk[0], NULL, &used);
	if (!verdict && used < 512)
		verdict = say(BROKEN, "%ld slots are used, not 512", used);
	return verdict ?: turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
	       intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(content, in_order, CASE_SECONDS)
{
	end_with(_metadata, bring_back(false));
}

TEST_F_TIMEOUT(content, shuffled, CASE_SECONDS)
{
	end_with(_metadata, bring_back(true));
}

static int bring_back_file(void)
{
	int verdict;

	verdict = make_group() ?: fast_area(&disk[0], 8) ?: enter_group() ?:
		  map_file(&mem, 512, NULL) ?: push_out_file(&mem, true) ?:
		  turn_off(&disk[0]);
	if (!verdict && count_incore(mem.at, mem.pages) != mem.pages)
		verdict = say(BROKEN, "not all pages are in memory");
	return verdict ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(content, memfd, CASE_SECONDS)
{
	end_with(_metadata, bring_back_file());
}

TEST_F_TIMEOUT(content, zram, CASE_SECONDS)
{
	on_zram = true;
	end_with(_metadata, bring_back(false));
}

/* Pages which zswap can keep small, so that it does */
static int bring_back_zswap(void)
{
	unsigned int tag;
	long writes;
	size_t i;
	int verdict;

	if (!turn(ZSWAP "enabled", "Y"))
		return say(UNFIT, "no zswap");
	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 512);
	if (verdict)
		return verdict;
	tag = mem.tag;
	for (i = 0; i < mem.pages; i++)
		memset(page_at(&mem, i) + 64, (char)i, psize() - 64);
	writes = block_stat(&disk[0], 4);
	verdict = push_out(&mem);
	if (!verdict && block_stat(&disk[0], 4) != writes)
		verdict = say(UNFIT, "zswap does not take the pages");
	verdict = verdict ?: turn_off(&disk[0]) ?: all_swapped(&mem, false);
	for (i = 0; i < mem.pages && !verdict; i++) {
		char want[64], *at = page_at(&mem, i) + 64;

		memset(want, (char)i, sizeof(want));
		if (peek((__u64 *)page_at(&mem, i)) != (stamp(tag, i) | 1) ||
		    memcmp(at, want, 64) ||
		    memcmp(at, at + 64, psize() - 128))
			verdict = say(BROKEN, "page %zu is wrong", i);
	}
	return verdict;
}

TEST_F_TIMEOUT(content, zswap, CASE_SECONDS)
{
	end_with(_metadata, bring_back_zswap());
}

static int shell(const char *fmt, const char *a, const char *b)
{
	char line[256];

	snprintf(line, sizeof(line), fmt, a, b);
	return system(line);
}

static void pay_umount(const struct debt *d)
{
	umount2(d->path, MNT_DETACH);
	rmdir(d->path);
}

static int mount_on(char *dir, const char *what, const char *type,
		    const char *options)
{
	memcpy(dir, "/tmp/swapoff.XXXXXX", sizeof("/tmp/swapoff.XXXXXX"));
	if (!mkdtemp(dir))
		return say(UNFIT, "%s: %s", dir, strerror(errno));
	owe(pay_umount, dir, "");
	if (mount(what, dir, type, 0, options))
		return say(UNFIT, "mount %s: %s", type, strerror(errno));
	return FINE;
}

/* A file as swap area, in a file system on a loop device */
static int file_area(struct disk *d, int mib)
{
	__u64 bytes = (__u64)mib << 20;
	size_t size = 1 << 20;
	char dir[32], *zeroes;
	int fd, verdict, i;

	verdict = make_disk(d, mib + 8);
	if (verdict)
		return verdict;
	/* It cannot be mounted while it is open for writing */
	fd = open(d->lower, O_RDONLY | O_CLOEXEC);
	if (shell("{ mkfs.ext4 -q -F %s || mke2fs -F %s; } > /dev/null 2>&1",
		  d->lower, d->lower))
		return say(UNFIT, "neither mkfs.ext4 nor mke2fs");
	close(d->fd);
	d->fd = fd;
	verdict = mount_on(dir, d->lower, "ext4", NULL);
	if (verdict)
		return verdict;
	snprintf(d->path, sizeof(d->path), "%s/file", dir);
	fd = open(d->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	zeroes = calloc(1, size);
	for (i = 0; zeroes && fd >= 0 && i < mib; i++)
		if (write(fd, zeroes, size) != (ssize_t)size)
			return say(UNFIT, "write: %s", strerror(errno));
	free(zeroes);
	if (fd < 0 || !label(fd, bytes))
		return say(UNFIT, "%s: %s", d->path, strerror(errno));
	close(fd);
	return switch_disk_on(d, SWAP_PRIO_TOP);
}

/* Twice: the second time there is old data in the file */
static int bring_back_from_file(void)
{
	int verdict;

	verdict = file_area(&disk[0], 5) ?: map_mem(&mem, 512) ?:
		  push_out(&mem) ?: turn_off(&disk[0]) ?:
		  intact(&mem, "first swapoff");
	if (verdict)
		return verdict;
	fill(&mem);
	return switch_disk_on(&disk[0], SWAP_PRIO_TOP) ?: push_out(&mem) ?:
	       turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
	       intact(&mem, "second swapoff");
}

TEST_F_TIMEOUT(content, swap_file, CASE_SECONDS)
{
	end_with(_metadata, bring_back_from_file());
}

static int map_huge(size_t pages)
{
	size_t unit = read_pmd_pagesize() / psize(), heads;
	int verdict;

	if (unit < 2 || access(THP_DIR "enabled", R_OK))
		return say(UNFIT, "no transparent huge pages");
	verdict = choose_unit(unit);
	if (verdict)
		return verdict;
	mem.at = map_aligned(unit, pages);
	if (!mem.at)
		return say(UNFIT, "mmap: %s", strerror(errno));
	mem.pages = pages;
	madvise(mem.at, pages * psize(), MADV_HUGEPAGE);
	fill(&mem);
	madvise(mem.at, pages * psize(), MADV_NOHUGEPAGE);
	verdict = flags_come(mem.at, pages, F_LARGE, 0, &heads);
	if (verdict || heads != pages / unit)
		return say(UNFIT, "no huge pages");
	return FINE;
}

/* Gone, or, if @cached, in the swap cache since they are being written */
static int bring_back_huge(bool cached)
{
	size_t unit = read_pmd_pagesize() / psize();
	long whole = number_of("/proc/vmstat", "thp_swpout");
	int verdict;

	verdict = mapped_area(&disk[0], 8) ?: map_huge(unit);
	if (!verdict && cached)
		verdict = set_delay(&disk[0], 0, 300);
	if (verdict)
		return verdict;
	verdict = unmap_to_swap(mem.at, mem.pages);
	if (!verdict && number_of("/proc/vmstat", "thp_swpout") == whole)
		verdict = say(UNFIT, "not swapped out in one piece");
	if (!verdict && cached && count_incore(mem.at, unit) != unit)
		verdict = say(UNFIT, "not in the swap cache");
	if (!verdict && !cached)
		verdict = push_out(&mem);
	return verdict ?: turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
	       intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(content, huge_page, CASE_SECONDS)
{
	end_with(_metadata, bring_back_huge(false));
}

TEST_F_TIMEOUT(content, huge_page_under_writeback, CASE_SECONDS)
{
	end_with(_metadata, bring_back_huge(true));
}

/* What is in the swap cache needs no reading */
static int bring_back_cached(void)
{
	long reads;
	int verdict;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 512) ?:
		  push_out(&mem) ?: add_kid();
	/* In the swap cache and mapped here, a swap entry in the child */
	verdict = verdict ?: intact(&mem, "read back") ?:
		  flags_come(mem.at, mem.pages, F_SWAPCACHE, F_WRITEBACK, NULL);
	reads = number_of("/proc/vmstat", "pswpin");
	verdict = verdict ?: turn_off(&disk[0]);
	reads = number_of("/proc/vmstat", "pswpin") - reads;
	if (!verdict && reads)
		verdict = say(BROKEN, "%ld pages were read again", reads);
	verdict = verdict ?: intact(&mem, "swapoff") ?: ask(0, LOOK);
	fill(&mem);
	return verdict ?: ask(0, LOOK) ?: intact(&mem, "written");
}

TEST_F_TIMEOUT(content, in_swap_cache, CASE_SECONDS)
{
	end_with(_metadata, bring_back_cached());
}

/* Entries of another area stay, of anonymous memory and of files */
static int other_area_stays(void)
{
	struct mem third = {}, fourth = {};
	long used = 0;
	int verdict;

	verdict = make_group() ?: fast_area(&disk[1], 8) ?: enter_group() ?:
		  map_mem(&more, 128) ?: map_file(&fourth, 128, NULL) ?:
		  push_out(&more) ?: push_out_file(&fourth, false) ?:
		  make_disk(&disk[0], 8) ?:
		  switch_disk_on(&disk[0], SWAP_PRIO_TOP) ?:
		  map_mem(&mem, 128) ?: map_file(&third, 128, NULL) ?:
		  push_out(&mem) ?: push_out_file(&third, false) ?:
		  turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
		  is_on(&disk[1]);
	if (!verdict && count_swapped(more.at, 128) != 128)
		verdict = say(BROKEN, "pages of another area were brought in");
	listed(&disk[1], NULL, &used);
	if (!verdict && used < 256)
		verdict = say(BROKEN, "%ld slots of another area are used",
			      used);
	return verdict ?: intact(&mem, "anonymous") ?: intact(&third, "file") ?:
	       turn_off(&disk[1]) ?: all_swapped(&more, false) ?:
	       intact(&more, "other area") ?:
	       intact(&fourth, "file of other area");
}

TEST_F_TIMEOUT(content, other_area_stays, CASE_SECONDS)
{
	end_with(_metadata, other_area_stays());
}

/* The memory cgroup which the pages were charged to is no more, nor its limit */
static int group_removed(void)
{
	int verdict, try;

	verdict = make_group() ?: fast_area(&disk[0], 8) ?: enter_group() ?:
		  map_mem(&mem, 512) ?: push_out(&mem);
	if (verdict)
		return verdict;
	put_text(CGROUP_ROOT "/cgroup.procs", "0");
	if (!set_group("memory.max", 16 * psize()))
		return say(UNFIT, "memory.max: %s", strerror(errno));
	for (try = 0; try < 200 && rmdir(group); try++)
		usleep(5000);
	if (!access(group, F_OK))
		return say(UNFIT, "%s: %s", group, strerror(errno));
	return turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
	       intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(content, cgroup_removed, CASE_SECONDS)
{
	end_with(_metadata, group_removed());
}

static int merge_both(void)
{
	size_t same = 0, i;
	__u64 pfn;
	int try;

	if (!turn(KSM_DIR "pages_to_scan", "2000") ||
	    !turn(KSM_DIR "sleep_millisecs", "5"))
		return say(UNFIT, "no KSM");
	turn(KSM_DIR "smart_scan", "0");
	if (madvise(mem.at, mem.pages * psize(), MADV_MERGEABLE) ||
	    madvise(more.at, more.pages * psize(), MADV_MERGEABLE))
		return say(UNFIT, "MADV_MERGEABLE: %s", strerror(errno));
	put_text(KSM_DIR "run", "1");
	/* 6.12 shows KPF_KSM for all anonymous pages, so that says nothing */
	for (try = 0; try < 300 && same < mem.pages; try++) {
		usleep(10000);
		for (i = same = 0; i < mem.pages; i++) {
			pfn = get_entries(page_at(&mem, i), 1) ? entry[0] : 0;
			if (pfn & PM_PRESENT &&
			    get_entries(page_at(&more, i), 1))
				same += PAGEMAP_PFN(entry[0]) ==
					PAGEMAP_PFN(pfn);
		}
	}
	put_text(KSM_DIR "run", "0");
	return same == mem.pages ? FINE :
	       say(UNFIT, "%zu of %zu pages are merged", same, mem.pages);
}

/* Two places with the same pages; each page is swapped out once for both */
static int bring_back_merged(void)
{
	size_t i, n = 0;
	int verdict, try;

	verdict = make_group() ?: fast_area(&disk[0], 8) ?: enter_group() ?:
		  map_mem(&mem, 64) ?: map_mem(&more, 64);
	if (verdict)
		return verdict;
	more.tag = mem.tag;
	for (i = 0; i < 64; i++)
		make_page((__u64 *)page_at(&more, i), more.tag, i);
	verdict = merge_both();
	if (verdict)
		return verdict;
	for (try = 0; try < 200 && n < 128; try++) {
		/* Nobody has touched them, or they would be kept */
		put_text("/proc/self/clear_refs", "1");
		set_group("memory.reclaim", 512 * psize());
		n = count_swapped(mem.at, 64) + count_swapped(more.at, 64);
		usleep(5000);
	}
	if (n < 128)
		return say(UNFIT, "%zu of 128 places were swapped out", n);
	verdict = add_kid() ?: turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
		  all_swapped(&more, false) ?: intact(&mem, "swapoff") ?:
		  intact(&more, "second place") ?: ask(0, LOOK);
	fill(&mem);
	return verdict ?: intact(&mem, "written") ?:
	       intact(&more, "not written") ?: ask(0, LOOK);
}

TEST_F_TIMEOUT(content, ksm, CASE_SECONDS)
{
	end_with(_metadata, bring_back_merged());
}

static int errors(void)
{
	int verdict = make_disk(&disk[0], 2), status;
	pid_t pid;

	if (verdict)
		return verdict;
	if (!swapoff(disk[0].path) || errno != EINVAL)
		return say(BROKEN, "no swap area: %s, not EINVAL",
			   strerror(errno));
	if (!swapoff("/nowhere") || errno != ENOENT)
		return say(BROKEN, "no file: %s, not ENOENT", strerror(errno));
	verdict = switch_disk_on(&disk[0], SWAP_PRIO_TOP);
	if (verdict)
		return verdict;
	pid = fork();
	if (!pid)
		_exit(setuid(65534) || !swapoff(disk[0].path) ? 0 : errno);
	waitpid(pid, &status, 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != EPERM)
		return say(BROKEN, "without privilege: %d, not EPERM",
			   WEXITSTATUS(status));
	return is_on(&disk[0]) ?: turn_off(&disk[0]);
}

TEST_F_TIMEOUT(content, errors, CASE_SECONDS)
{
	end_with(_metadata, errors());
}

/*
 * "lost": pages which cannot be read are lost, and only these.
 */
FIXTURE(lost) {};

FIXTURE_SETUP(lost)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(lost)
{
	undo();
}

/* Whoever touches a lost page of a mapping gets SIGBUS, or EFAULT here */
static size_t count_lost(const struct mem *m, int *verdict)
{
	size_t lost = 0, i;
	int ends[2];
	char c;

	if (pipe2(ends, O_CLOEXEC)) {
		*verdict = say(UNFIT, "pipe: %s", strerror(errno));
		return 0;
	}
	for (i = 0; i < m->pages && !*verdict; i++) {
		if (write(ends[1], page_at(m, i), 1) != 1)
			lost++;
		else if (read(ends[0], &c, 1) != 1 ||
			 !page_is(page_at(m, i), m->tag, i))
			*verdict = say(BROKEN, "page %zu is wrong", i);
	}
	close(ends[0]);
	close(ends[1]);
	return lost;
}

static int lose_anonymous(void)
{
	__u64 low = ~0ULL, slot;
	size_t lost, bad = 0, i;
	int verdict, status;
	pid_t pid;

	verdict = mapped_area(&disk[0], 8) ?: map_mem(&mem, 512) ?:
		  push_out_mixed(&mem);
	if (verdict || !get_entries(mem.at, mem.pages))
		return verdict ?: say(UNFIT, "pagemap cannot be read");
	for (i = 0; i < mem.pages; i++) {
		slot = PAGEMAP_PFN(entry[i]) >> 5;
		low = slot < low ? slot : low;
	}
	low += 100;
	for (i = 0; i < mem.pages; i++) {
		slot = PAGEMAP_PFN(entry[i]) >> 5;
		bad += slot >= low && slot < low + 20;
	}
	verdict = set_bad(&disk[0], low, low + 20) ?: add_kid() ?:
		  turn_off(&disk[0]);
	lost = count_lost(&mem, &verdict);
	if (!verdict && lost != bad)
		verdict = say(BROKEN, "%zu pages are lost, not %zu", lost, bad);
	if (verdict)
		return verdict;
	/* A process of its own for SIGBUS; its parent has the same pages */
	pid = fork();
	if (!pid) {
		signal(SIGBUS, SIG_DFL);
		prctl(PR_SET_DUMPABLE, 0);
		for (i = 0; i < mem.pages; i++)
			peek((__u64 *)page_at(&mem, i));
		_exit(0);
	}
	waitpid(pid, &status, 0);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGBUS)
		return say(BROKEN, "no SIGBUS from a lost page");
	/* Gone for good, but the place can be used again */
	madvise(mem.at, mem.pages * psize(), MADV_DONTNEED);
	fill(&mem);
	return intact(&mem, "filled again");
}

TEST_F_TIMEOUT(lost, anonymous, CASE_SECONDS)
{
	end_with(_metadata, lose_anonymous());
}

static long blocks_used(const char *dir)
{
	struct statfs fs;

	return statfs(dir, &fs) ? -1 : (long)(fs.f_blocks - fs.f_bfree);
}

/* A file of which one half is in memory, and the other half is lost */
static int lose_half_of_file(void)
{
	size_t half = 32, lost;
	char dir[32], path[48], *buf = malloc(psize());
	struct mem part;
	struct stat st;
	int verdict, fd;

	verdict = make_group() ?: mapped_area(&disk[0], 8) ?: enter_group() ?:
		  mount_on(dir, "tmpfs", "tmpfs", "size=16m");
	if (verdict)
		return verdict;
	snprintf(path, sizeof(path), "%s/file", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, 2 * half * psize()))
		return say(UNFIT, "%s: %s", path, strerror(errno));
	mem.pages = 2 * half;
	mem.at = mmap(NULL, mem.pages * psize(), PROT_READ | PROT_WRITE,
		      MAP_SHARED, fd, 0);
	if (mem.at == MAP_FAILED)
		return say(UNFIT, "mmap: %s", strerror(errno));
	fill(&mem);
	part = mem;
	part.pages = half;
	verdict = push_out_file(&part, false);
	/* Reclaim may have taken more than that */
	verdict = verdict ?: intact_part(&mem, half, 2 * half, "not swapped");
	verdict = verdict ?: set_bad(&disk[0], 0,
				     disk[0].sectors * 512 / psize()) ?:
		  turn_off(&disk[0]);
	lost = count_lost(&mem, &verdict);
	if (!verdict && lost != half)
		verdict = say(BROKEN, "%zu pages are lost, not %zu", lost,
			      half);
	if (!verdict && pread(fd, buf, psize(), 0) != -1)
		verdict = say(BROKEN, "a lost page can be read");
	if (!verdict && errno != EIO)
		verdict = say(BROKEN, "read of a lost page: %s",
			      strerror(errno));
	free(buf);
	if (!verdict && (fstat(fd, &st) ||
			 st.st_blocks != (long)(half * psize() / 512)))
		verdict = say(BROKEN, "st_blocks is %ld, not %zu",
			      (long)st.st_blocks, half * psize() / 512);
	munmap(mem.at, mem.pages * psize());
	unlink(path);
	close(fd);
	if (!verdict && blocks_used(dir))
		verdict = say(BROKEN, "%ld blocks of an empty tmpfs are used",
			      blocks_used(dir));
	return verdict;
}

TEST_F_TIMEOUT(lost, half_of_file, CASE_SECONDS)
{
	end_with(_metadata, lose_half_of_file());
}

static void pay_poison(const struct debt *d)
{
	put_text(HWPOISON "unpoison-pfn", d->path);
}

/* The memory of page 5 goes bad */
static int poison_page(void)
{
	char pfn[32];

	if (!get_entries(mem.at, mem.pages))
		return say(UNFIT, "pagemap cannot be read");
	snprintf(pfn, sizeof(pfn), "%#llx",
		 (unsigned long long)PAGEMAP_PFN(entry[5]));
	turn(HWPOISON "corrupt-filter-enable", "0");
	prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_LATE, 0, 0);
	signal(SIGBUS, SIG_IGN);
	if (!put_text(HWPOISON "corrupt-pfn", pfn))
		return say(UNFIT, "corrupt-pfn: %s", strerror(errno));
	owe(pay_poison, pfn, "");
	return FINE;
}

/* It is on the disk, too, and has not been written to since */
static int lose_clean(void)
{
	size_t lost;
	int verdict;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 16) ?:
		  push_out(&mem) ?: add_kid() ?: intact(&mem, "read back") ?:
		  flags_come(mem.at, mem.pages, F_SWAPCACHE, F_WRITEBACK,
			     NULL) ?:
		  poison_page() ?: turn_off(&disk[0]);
	lost = count_lost(&mem, &verdict);
	if (!verdict && lost)
		verdict = say(BROKEN, "%zu pages are lost", lost);
	return verdict ?: ask(0, LOOK);
}

/* It has been written to while it was on its way to the disk */
static int lose_dirty(void)
{
	size_t lost, i;
	int verdict;

	verdict = mapped_area(&disk[0], 8) ?: map_mem(&mem, 16) ?:
		  set_delay(&disk[0], 0, 200) ?:
		  unmap_to_swap(mem.at, mem.pages);
	if (verdict)
		return verdict;
	for (i = 0; i < mem.pages; i++)
		poke((__u64 *)page_at(&mem, i), peek((__u64 *)page_at(&mem, i)));
	verdict = flags_come(mem.at, mem.pages, F_SWAPCACHE, F_WRITEBACK,
			     NULL) ?: poison_page();
	if (!verdict && count_swapped(mem.at, mem.pages) != 1)
		return say(UNFIT, "the page is not in the swap cache");
	verdict = verdict ?: turn_off(&disk[0]);
	lost = count_lost(&mem, &verdict);
	if (!verdict && lost != 1)
		verdict = say(BROKEN, "%zu pages are lost, not 1", lost);
	return verdict;
}

static int lose_memory(bool dirty)
{
	int verdict;

	if (access(HWPOISON "corrupt-pfn", W_OK))
		return say(UNFIT, "no " HWPOISON " (CONFIG_HWPOISON_INJECT)");
	verdict = dirty ? lose_dirty() : lose_clean();
	munmap(mem.at, mem.pages * psize());
	return verdict;
}

TEST_F_TIMEOUT(lost, bad_memory_clean, CASE_SECONDS)
{
	end_with(_metadata, lose_memory(false));
}

TEST_F_TIMEOUT(lost, bad_memory_dirty, CASE_SECONDS)
{
	end_with(_metadata, lose_memory(true));
}

/*
 * "order": the device is read in large pieces, in its order, whatever the order
 * in memory; and no faster device is needed for what could be asked at once.
 */
FIXTURE(order) {};

FIXTURE_SETUP(order)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(order)
{
	undo();
}

#define READS_PER_100	2

/* Turns the area off, and counts how it is read */
static int few_reads(struct disk *d, long pages)
{
	long reads, sectors, in = number_of("/proc/vmstat", "pswpin");
	struct disk lower = *d;
	int verdict;

	/* What a device mapper device or a file is on is what counts */
	snprintf(lower.stat, sizeof(lower.stat), "/sys/block/%s/stat",
		 strrchr(d->lower, '/') + 1);
	/* What a system has that is not told otherwise */
	put_text(PAGE_CLUSTER, "3");
	reads = block_stat(&lower, 0);
	sectors = block_stat(&lower, 2);
	verdict = turn_off(d);
	reads = block_stat(&lower, 0) - reads;
	sectors = block_stat(&lower, 2) - sectors;
	in = number_of("/proc/vmstat", "pswpin") - in;
	if (verdict)
		return verdict;
	if (sectors < pages * psize() / 512)
		return say(UNFIT, "only %ld sectors were read for %ld pages",
			   sectors, pages);
	if (reads * 100 > pages * READS_PER_100)
		return say(BROKEN, "%ld reads for %ld pages", reads, pages);
	if (in > pages + pages / 20 ||
	    sectors > (pages + pages / 20) * psize() / 512)
		return say(BROKEN, "%ld pages and %ld sectors read for %ld",
			   in, sectors, pages);
	return FINE;
}

static int read_in_order(bool mixed)
{
	int verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 512);

	verdict = verdict ?: (mixed ? push_out_mixed(&mem) : push_out(&mem));
	return verdict ?: few_reads(&disk[0], 512) ?:
	       all_swapped(&mem, false) ?: intact(&mem, "swapoff");
}

/* 6.12: reads of 8 pages */
TEST_F_TIMEOUT(order, in_order, CASE_SECONDS)
{
	end_with(_metadata, read_in_order(false));
}

/* 6.12: reads of 1 page */
TEST_F_TIMEOUT(order, shuffled, CASE_SECONDS)
{
	end_with(_metadata, read_in_order(true));
}

static int read_file_in_order(void)
{
	return make_group() ?: fast_area(&disk[0], 8) ?: enter_group() ?:
	       map_file(&mem, 512, NULL) ?: push_out_file(&mem, true) ?:
	       few_reads(&disk[0], 512) ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(order, memfd, CASE_SECONDS)
{
	end_with(_metadata, read_file_in_order());
}

static int read_swap_file(void)
{
	return file_area(&disk[0], 5) ?: map_mem(&mem, 512) ?:
	       push_out_mixed(&mem) ?: few_reads(&disk[0], 512) ?:
	       intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(order, swap_file, CASE_SECONDS)
{
	end_with(_metadata, read_swap_file());
}

/* The slots of two processes and a file are side by side */
static int read_for_many(void)
{
	struct mem file = {};
	size_t i;
	int verdict;

	verdict = make_group() ?: fast_area(&disk[0], 12) ?: enter_group() ?:
		  map_mem(&mem, 256) ?: add_kid() ?: ask(0, WRITE) ?:
		  map_file(&file, 256, NULL);
	for (i = 0; i < 256 && !verdict; i++) {
		madvise(page_at(&mem, i), psize(), MADV_PAGEOUT);
		madvise(page_at(&file, i), psize(), MADV_PAGEOUT);
	}
	/* Own pages that the child has no more, and pages of the child */
	return verdict ?: push_out(&mem) ?: ask(0, PUSH) ?:
	       push_out_file(&file, false) ?: few_reads(&disk[0], 3 * 256) ?:
	       intact(&mem, "swapoff") ?: intact(&file, "file") ?: ask(0, LOOK);
}

TEST_F_TIMEOUT(order, many_owners, CASE_SECONDS)
{
	end_with(_metadata, read_for_many());
}

/* A disk which takes 40 ms a read, but takes many at a time */
static int read_at_once(bool is_file)
{
	const int pages = 20, delay = 40 * patience();
	int verdict;

	verdict = make_group() ?: mapped_area(&disk[0], 8) ?: enter_group() ?:
		  (is_file ? map_file(&mem, pages, NULL) :
			     map_mem(&mem, pages)) ?:
		  (is_file ? push_out_file(&mem, true) :
			     push_out_mixed(&mem)) ?:
		  set_delay(&disk[0], delay, 0) ?:
		  start_off(&run[0], &disk[0]) ?:
		  wait_off(&run[0], &disk[0], pages * delay * 2) ?:
		  off_is(&run[0], 0) ?: intact(&mem, "swapoff");
	if (!verdict && run[0].msecs > pages * delay / 2)
		verdict = say(BROKEN, "%ld ms for %d pages, %d ms each read",
			      run[0].msecs, pages, delay);
	return verdict;
}

/* 6.12: one read after the other */
TEST_F_TIMEOUT(order, many_reads_in_flight, CASE_SECONDS)
{
	end_with(_metadata, read_at_once(false));
}

TEST_F_TIMEOUT(order, many_reads_in_flight_memfd, CASE_SECONDS)
{
	end_with(_metadata, read_at_once(true));
}

/*
 * The page tables of a process are walked once, not for each slot. How long a
 * walk takes differs much from machine to machine: mincore() tells, which does
 * no more than look at each entry.
 */
#define WIDE		(256UL << 20)	/* mapped for next to nothing: zero pages */
#define WIDE_SLOTS	1024

static long cpu_usecs(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000L + ts.tv_nsec / 1000;
}

/* The quickest of several */
static long usecs_of_walk(char *wide)
{
	unsigned char *vec = malloc(WIDE / psize());
	long best = LONG_MAX, usecs;
	int i;

	for (i = 0; vec && i < 8; i++) {
		usecs = cpu_usecs();
		if (mincore(wide, WIDE, vec))
			break;
		usecs = cpu_usecs() - usecs;
		best = usecs < best ? usecs : best;
	}
	free(vec);
	return best;
}

static int walk_once(void)
{
	long small, large, walk;
	char *wide;
	int verdict;

	verdict = fast_area(&disk[0], 16) ?: map_mem(&mem, WIDE_SLOTS) ?:
		  push_out(&mem) ?: turn_off(&disk[0]);
	small = run[0].cpu_usecs;
	munmap(mem.at, mem.pages * psize());

	wide = mmap(NULL, WIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		    MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (verdict || wide == MAP_FAILED)
		return verdict ?: say(UNFIT, "mmap: %s", strerror(errno));
	madvise(wide, WIDE, MADV_NOHUGEPAGE);
	*wide = 1;		/* it is anonymous memory */
	if (madvise(wide, WIDE, MADV_POPULATE_READ))
		return say(UNFIT, "populate: %s", strerror(errno));
	walk = usecs_of_walk(wide);
	if (walk > 10000000)
		return say(UNFIT, "mincore: %s", strerror(errno));

	verdict = fast_area(&disk[0], 16) ?: map_mem(&mem, WIDE_SLOTS) ?:
		  push_out(&mem) ?: turn_off(&disk[0]);
	large = run[0].cpu_usecs;
	munmap(wide, WIDE);
	if (!verdict && large > 2 * small + WIDE_SLOTS / 16 * walk)
		verdict = say(BROKEN, "%ld us of CPU with 256 MiB mapped, %ld without; %ld a walk",
			      large, small, walk);
	return verdict ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(order, page_tables_once, CASE_SECONDS)
{
	end_with(_metadata, walk_once());
}

/*
 * "sharers": processes which have the same pages.
 */
FIXTURE(sharers) {};

FIXTURE_SETUP(sharers)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(sharers)
{
	undo();
}

/* Each one's writes are seen by nobody else */
static int all_apart(void)
{
	int verdict = intact(&mem, "before writes") ?: ask_all(LOOK);

	if (verdict)
		return verdict;
	fill(&mem);
	verdict = ask_all(LOOK);
	if (!verdict && kids > 1)
		verdict = ask(kids - 1, WRITE);
	return verdict ?: ask_all(LOOK) ?: intact(&mem, "after writes");
}

static int share(size_t pages, int n)
{
	long in;
	int verdict;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, pages) ?:
		  push_out_mixed(&mem) ?: add_kids(n);
	in = number_of("/proc/vmstat", "pswpin");
	verdict = verdict ?: turn_off(&disk[0]);
	in = number_of("/proc/vmstat", "pswpin") - in;
	if (!verdict && in > (long)(pages + pages / 20))
		verdict = say(BROKEN, "%ld pages were read for %zu", in, pages);
	return verdict ?: all_swapped(&mem, false) ?: all_apart();
}

TEST_F_TIMEOUT(sharers, eight, CASE_SECONDS)
{
	end_with(_metadata, share(512, 8));
}

/* More than the count of a swap slot can hold without a continuation */
TEST_F_TIMEOUT(sharers, sixty_four, CASE_SECONDS)
{
	end_with(_metadata, share(16, 64));
}

/* Some sharers have read the pages, some have written, some are gone */
static int share_unevenly(void)
{
	size_t i;
	int verdict;

	verdict = fast_area(&disk[0], 12) ?: map_mem(&mem, 256) ?:
		  push_out_mixed(&mem) ?: add_kids(4) ?: ask(1, LOOK) ?:
		  ask(2, WRITE) ?: ask(2, PUSH);
	for (i = 0; i < 256 && !verdict; i += 2)
		peek((__u64 *)page_at(&mem, i));
	if (!verdict) {
		kill(kid[3].pid, SIGKILL);
		waitpid(kid[3].pid, NULL, 0);
		close(kid[3].sock);
		kids = 3;
	}
	return verdict ?: turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
	       all_apart();
}

TEST_F_TIMEOUT(sharers, uneven, CASE_SECONDS)
{
	end_with(_metadata, share_unevenly());
}

static void *compact(void *arg)
{
	bool *stop = arg;

	while (!__atomic_load_n(stop, __ATOMIC_RELAXED))
		put_text("/proc/sys/vm/compact_memory", "1");
	return NULL;
}

/*
 * Forked while pages migrate, so that the child may get entries for that in
 * place of pages.  Its pages are swapped out from there.
 */
static int fork_while_migrating(void)
{
	pthread_t thread;
	bool stop = false;
	int verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 128), round;

	if (verdict || pthread_create(&thread, NULL, compact, &stop))
		return verdict ?: say(UNFIT, "no thread");
	for (round = 0; round < 3 && !verdict; round++)
		verdict = add_kid();
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	/* The child's own pages are only swapped out if they are only its own */
	verdict = verdict ?: ask_all(WRITE) ?: ask_all(PUSH) ?:
		  turn_off(&disk[0]);
	return verdict ?: ask_all(LOOK) ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(sharers, forked_while_migrating, CASE_SECONDS)
{
	end_with(_metadata, fork_while_migrating());
}

/* A process that needs more memory all the time, in our cgroup */
static pid_t start_hog(size_t pages)
{
	pid_t boss = getpid(), pid = fork();
	size_t i, turn;
	char *at;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != boss || enter_group())
		_exit(1);
	at = map_aligned(1, pages);
	for (turn = 1; at; turn++)
		for (i = 0; i < pages; i++)
			poke((__u64 *)(at + i * psize()), turn * pages + i);
	_exit(1);
}

/*
 * There is another swap area, and reclaim is at work on the pages that swapoff
 * brings in: each has to be let go while it is in hand, or it is read again.
 */
static int share_under_pressure(size_t pages, int n)
{
	const size_t hog_pages = 1024;
	long sectors, left = 0;
	pid_t hog;
	int verdict, i;

	verdict = make_group() ?: make_disk(&disk[1], 32) ?:
		  make_disk(&disk[0], 16) ?:
		  switch_disk_on(&disk[0], SWAP_PRIO_TOP - 1) ?:
		  enter_group() ?: map_mem(&mem, pages) ?:
		  push_out_mixed(&mem) ?: add_kids(n);
	put_text(CGROUP_ROOT "/cgroup.procs", "0");
	/* What the hog has goes here, nothing goes to the first area any more */
	verdict = verdict ?: switch_disk_on(&disk[1], SWAP_PRIO_TOP);
	if (verdict)
		return verdict;
	if (!set_group("memory.max", group_number("memory.current") +
		       (long)hog_pages / 2 * psize()))
		return say(UNFIT, "memory.max: %s", strerror(errno));
	hog = start_hog(hog_pages);
	if (hog < 0)
		return say(UNFIT, "fork: %s", strerror(errno));
	usleep(200000);
	sectors = block_stat(&disk[0], 2);
	verdict = start_off(&run[0], &disk[0]);
	if (!verdict && !has_ended(&run[0], 2500 * patience())) {
		listed(&disk[0], NULL, &left);
		verdict = say(BROKEN, "no end, %ld slots are left, %ld pages were read",
			      left, (block_stat(&disk[0], 2) - sectors) * 512 /
			      psize());
		kill(hog, SIGKILL);
		set_group("memory.max", 1L << 40);
		make_end(&run[0], &disk[0]);
	} else if (!verdict) {
		reap(&run[0]);
		verdict = off_is(&run[0], 0);
	}
	sectors = (block_stat(&disk[0], 2) - sectors) / (psize() / 512);
	if (!verdict && number_of(in_group("memory.events"), "oom_kill"))
		verdict = say(BROKEN, "somebody was killed");
	kill(hog, SIGKILL);
	waitpid(hog, NULL, 0);
	set_group("memory.max", 1L << 40);
	if (!verdict && sectors > (long)(pages + pages / 20))
		verdict = say(BROKEN, "%ld pages were read for %zu", sectors,
			      pages);
	for (i = 0; i < kids && !verdict; i++)
		verdict = ask(i, LOOK);
	return verdict ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(sharers, eight_under_pressure, CASE_SECONDS)
{
	end_with(_metadata, share_under_pressure(768, 8));
}

/*
 * "signal": swapoff ends soon when it is told to, and nothing is lost by that.
 */
FIXTURE(signal) {};

FIXTURE_SETUP(signal)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(signal)
{
	undo();
}

#define SLOW_MSECS	(200 * patience())

/*
 * One process, or one file, with more pages than are read at a time.  Each read
 * takes long, and so the signal comes in the middle of the first ones.
 */
static int interrupt(bool is_file, int sig)
{
	const size_t pages = 1280;
	long start;
	int verdict;

	verdict = make_group() ?: mapped_area(&disk[0], 24) ?: enter_group() ?:
		  (is_file ? map_file(&mem, pages, NULL) :
			     map_mem(&mem, pages)) ?:
		  (is_file ? push_out_file(&mem, false) : push_out(&mem)) ?:
		  set_delay(&disk[0], SLOW_MSECS, 0) ?:
		  start_off(&run[0], &disk[0]) ?: reads_start(&run[0]);
	if (verdict)
		return verdict;
	start = msecs();
	kill(run[0].pid, sig);
	verdict = wait_off(&run[0], &disk[0], 3 * SLOW_MSECS) ?:
		  off_is(&run[0], sig == SIGKILL ? -1 : EINTR) ?:
		  is_on(&disk[0]);
	start = msecs() - start;
	if (verdict)
		return verdict;
	ksft_print_msg("ended %ld ms after the signal\n", start);

	verdict = set_delay(&disk[0], 0, 0) ?: map_mem(&more, 64) ?:
		  push_out(&more) ?: intact(&mem, "interrupted");
	/* The area is used as before, and the next swapoff is as any other */
	if (!verdict && !is_file)
		verdict = push_out(&mem);
	return verdict ?: is_on(&disk[0]) ?: turn_off(&disk[0]) ?:
	       intact(&mem, "swapoff") ?: intact(&more, "second area");
}

/* 6.12: looks for signals between one process and the next */
TEST_F_TIMEOUT(signal, sigint, CASE_SECONDS)
{
	end_with(_metadata, interrupt(false, SIGINT));
}

TEST_F_TIMEOUT(signal, sigkill, CASE_SECONDS)
{
	end_with(_metadata, interrupt(false, SIGKILL));
}

TEST_F_TIMEOUT(signal, sigint_memfd, CASE_SECONDS)
{
	end_with(_metadata, interrupt(true, SIGINT));
}

/*
 * "memory": where there is too little, swapoff gives up or makes room, and
 * nobody is killed.
 */
FIXTURE(memory) {};

FIXTURE_SETUP(memory)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(memory)
{
	undo();
}

/* The cgroup of the pages has room for a part of them only */
static int over_limit(bool room_elsewhere)
{
	const size_t pages = 1024;
	int verdict;

	if (any_listed())
		return say(UNFIT, "other swap space is on, there is room");
	/* The child is forked within the group, and has the pages from there */
	verdict = make_group() ?: fast_area(&disk[0], 16) ?: enter_group() ?:
		  map_mem(&mem, pages) ?: push_out(&mem) ?: add_kid();
	put_text(CGROUP_ROOT "/cgroup.procs", "0");
	if (verdict)
		return verdict;
	munmap(mem.at, pages * psize());
	if (room_elsewhere)
		verdict = fast_area(&disk[1], 16);
	if (!set_group("memory.max", group_number("memory.current") +
		       (long)pages / 4 * psize()))
		return say(UNFIT, "memory.max: %s", strerror(errno));
	verdict = verdict ?: start_off(&run[0], &disk[0]) ?:
		  wait_off(&run[0], &disk[0], 4000 * patience());
	if (!verdict && number_of(in_group("memory.events"), "oom_kill"))
		verdict = say(BROKEN, "%ld tasks were killed",
			      number_of(in_group("memory.events"), "oom_kill"));
	if (!verdict && run[0].err != (room_elsewhere ? 0 : ENOMEM))
		verdict = off_is(&run[0], room_elsewhere ? 0 : ENOMEM);
	if (!verdict && !room_elsewhere)
		verdict = is_on(&disk[0]);
	set_group("memory.max", 1L << 40);
	verdict = verdict ?: ask(0, LOOK);
	if (!verdict && !room_elsewhere)
		verdict = turn_off(&disk[0]) ?: ask(0, LOOK);
	return verdict;
}

/* 6.12: a task of the cgroup is killed */
TEST_F_TIMEOUT(memory, cgroup_limit, CASE_SECONDS)
{
	end_with(_metadata, over_limit(false));
}

TEST_F_TIMEOUT(memory, cgroup_limit_and_other_area, CASE_SECONDS)
{
	end_with(_metadata, over_limit(true));
}

/*
 * What is in swap fits below the limit, if only just, and all of it has left
 * the swap cache: it comes back, however little room that leaves.
 */
static int just_fits(void)
{
	const size_t pages = 4096, out = 64;
	int verdict;

	if (any_listed())
		return say(UNFIT, "other swap space is on, there is room");
	verdict = make_group() ?: fast_area(&disk[0], 16) ?: enter_group() ?:
		  map_mem(&mem, pages) ?: evict(mem.at, out);
	put_text(CGROUP_ROOT "/cgroup.procs", "0");
	/* CPUs take memory in advance, 64 pages each */
	if (!verdict &&
	    !set_group("memory.max", group_number("memory.current") +
		       (long)(out + 64 * nr_cpus() + 2) * psize()))
		return say(UNFIT, "memory.max: %s", strerror(errno));
	verdict = verdict ?: turn_off(&disk[0]) ?: all_swapped(&mem, false);
	if (!verdict && number_of(in_group("memory.events"), "oom_kill"))
		verdict = say(BROKEN, "somebody was killed");
	set_group("memory.max", 1L << 40);
	return verdict ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(memory, cgroup_just_fits, CASE_SECONDS)
{
	end_with(_metadata, just_fits());
}

/*
 * Huge pages are a way to take memory which costs no time.  What is not found
 * in such large pieces is mapped.
 */
static int leave_free(long mib)
{
	long huge = read_pmd_pagesize() >> 10, free_kb, n;
	char buf[32];
	void *rest;
	int try;

	if (number_of("/proc/meminfo", "MemTotal") > 2L << 20)
		return say(UNFIT, "only where there are at most 2 GiB");
	/* It is as high as the target where there are huge pages */
	if (!turn("/proc/sys/vm/min_free_kbytes", "2048") ||
	    !turn("/proc/sys/vm/watermark_scale_factor", "1"))
		return say(UNFIT, "vm.min_free_kbytes: %s", strerror(errno));
	put_text("/proc/sys/vm/drop_caches", "3");
	if (!turn(HUGE_PAGES, "0"))
		return say(UNFIT, "no " HUGE_PAGES);
	n = (number_of("/proc/meminfo", "MemFree") - (mib << 10)) / huge;
	snprintf(buf, sizeof(buf), "%ld", n);
	put_text(HUGE_PAGES, buf);
	for (try = 0; try < 5; try++) {
		free_kb = number_of("/proc/meminfo", "MemFree");
		if (free_kb < (mib + 4) << 10)
			return FINE;
		n = (free_kb - (mib << 10)) << 10;
		rest = mmap(NULL, n, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (rest == MAP_FAILED || mlock(rest, n))
			return say(UNFIT, "mlock: %s", strerror(errno));
	}
	return say(UNFIT, "%ld kB are free, not %ld MiB", free_kb, mib);
}

/* @swapped MiB are swapped out, and @mib are free when they come back */
static int with_free(long swapped, long mib, int err)
{
	const size_t pages = (swapped << 20) / psize();
	long kills = number_of("/proc/vmstat", "oom_kill");
	int verdict;

	if (any_listed())
		return say(UNFIT, "other swap space is on, there is room");
	lock_areas = true;
	verdict = fast_area(&disk[0], 3 * swapped) ?: map_mem(&mem, pages) ?:
		  push_out(&mem) ?: leave_free(mib) ?:
		  start_off(&run[0], &disk[0]) ?:
		  wait_off(&run[0], &disk[0], 6000 * patience());
	kills = number_of("/proc/vmstat", "oom_kill") - kills;
	put_text(HUGE_PAGES, "0");
	if (!verdict && kills)
		verdict = say(BROKEN, "%ld tasks were killed", kills);
	verdict = verdict ?: off_is(&run[0], err);
	if (!verdict && err)
		verdict = is_on(&disk[0]) ?: intact(&mem, "still there") ?:
			  turn_off(&disk[0]);
	return verdict ?: all_swapped(&mem, false) ?: intact(&mem, "swapoff");
}

/* 6.12: the OOM killer comes, mostly for swapoff itself */
TEST_F_TIMEOUT(memory, too_little, CASE_SECONDS)
{
	/* The test needs some of it, and a kernel with checks even more */
	end_with(_metadata, with_free(48, 12, ENOMEM));
}

TEST_F_TIMEOUT(memory, just_enough, CASE_SECONDS)
{
	end_with(_metadata, with_free(12, 12 + 16, 0));
}

/*
 * Without overcommitment: @kb may be committed, beside the size of @d.  Other
 * swap space counts as well, so memory of that size is to be promised before.
 */
static long other_swap_kb(const struct disk *d)
{
	return number_of("/proc/meminfo", "SwapTotal") - d->sectors / 2;
}

static int set_overcommit(const struct disk *d, long kb)
{
	char buf[32] = "";

	kb -= other_swap_kb(d);

	/* To set the one sets the other to 0: which has been in use? */
	get_text("/proc/sys/vm/overcommit_kbytes", buf, sizeof(buf));
	if (!strtol(buf, NULL, 10) &&
	    get_text("/proc/sys/vm/overcommit_ratio", buf, sizeof(buf)) > 0)
		owe(pay_text, "/proc/sys/vm/overcommit_ratio", buf);
	snprintf(buf, sizeof(buf), "%ld", kb);
	if (!turn("/proc/sys/vm/overcommit_kbytes", buf) ||
	    !turn("/proc/sys/vm/overcommit_memory", "2"))
		return say(UNFIT, "vm.overcommit: %s", strerror(errno));
	return FINE;
}

/* Memory which is committed to, and never used */
static struct {
	char *at;
	long kb;
} promise;

static int make_promise(const struct disk *d)
{
	promise.kb = (256 << 10) + other_swap_kb(d);
	promise.at = mmap(NULL, promise.kb << 10, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return promise.at == MAP_FAILED ?
	       say(UNFIT, "mmap: %s", strerror(errno)) : FINE;
}

/*
 * Without overcommitment: what is committed must not exceed, by as much as
 * @excess_kb, what there is without the swap area.  Used slots want memory,
 * the others do not.
 */
static int strict_overcommit(long excess_kb, int err)
{
	long committed;
	int verdict, got;

	verdict = fast_area(&disk[0], 64) ?: map_mem(&mem, 256) ?:
		  push_out(&mem) ?: make_promise(&disk[0]);
	if (verdict)
		return verdict;
	committed = number_of("/proc/meminfo", "Committed_AS");
	verdict = set_overcommit(&disk[0], committed - excess_kb);
	if (verdict)
		return verdict;
	got = swapoff(disk[0].path) ? errno : 0;
	put_text("/proc/sys/vm/overcommit_memory", "0");
	if (got != err)
		return say(BROKEN, "swapoff: %s, not %s", strerror(got),
			   strerror(err));
	return (err ? is_on(&disk[0]) : is_off(&disk[0])) ?:
	       intact(&mem, "swapoff");
}

/* 6.12: looks at the size of the area */
TEST_F_TIMEOUT(memory, overcommit_by_used_slots, CASE_SECONDS)
{
	end_with(_metadata, strict_overcommit(16 << 10, 0));
}

TEST_F_TIMEOUT(memory, overcommit_refused, CASE_SECONDS)
{
	end_with(_metadata, strict_overcommit(100 << 10, ENOMEM));
}

/*
 * "bystander": who has nothing to do with swapoff, or has his pages read, is
 * not kept from anything else by the disk.
 */
FIXTURE(bystander) {};

FIXTURE_SETUP(bystander)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(bystander)
{
	undo();
}

static int stall_while(const size_t pages, const int delay, long *stall)
{
	int verdict;

	verdict = set_delay(&disk[0], 0, 0) ?: ask(0, WRITE) ?: ask(0, PUSH) ?:
		  set_delay(&disk[0], delay, 0);
	board->stop = false;
	board->turns = 0;
	board->stall = 0;
	verdict = verdict ?: tell(0, STALL) ?: start_off(&run[0], &disk[0]) ?:
		  wait_off(&run[0], &disk[0], delay * (pages + 8));
	__atomic_store_n(&board->stop, true, __ATOMIC_SEQ_CST);
	*stall = board->stall;
	return answer_of(0) ?: verdict ?: off_is(&run[0], 0) ?: ask(0, LOOK);
}

/* The best of some tries: the machine may have other things to do */
static int mmap_goes_on(void)
{
	const int delay = 200 * patience();
	long stall, least = 1L << 30;
	int verdict, try;

	verdict = mapped_area(&disk[0], 4) ?: map_mem(&mem, 4) ?: add_kid();
	for (try = 0; try < 3 && !verdict; try++) {
		if (try)
			verdict = switch_disk_on(&disk[0], SWAP_PRIO_TOP);
		verdict = verdict ?: stall_while(mem.pages, delay, &stall);
		least = stall < least ? stall : least;
		if (least < delay / 3)
			return verdict;
		if (least > 2 * delay)
			break;
	}
	return verdict ?: say(BROKEN, "mmap takes %ld ms, a read %d", least,
			      delay);
}

/* 6.12: mmap_lock is held while a process' pages are read */
TEST_F_TIMEOUT(bystander, mmap_in_swapped_process, CASE_SECONDS)
{
	end_with(_metadata, mmap_goes_on());
}

/*
 * The second of two swap areas is turned off while the first is being read.
 * What is on the first belongs to a child, since one with its own pages being
 * read may not be able to do a thing.
 */
static int second_area(size_t pages)
{
	const int delay = 400 * patience();
	int verdict;

	verdict = make_mapped(&disk[0], 4) ?:
		  switch_disk_on(&disk[0], SWAP_PRIO_TOP - 1) ?:
		  map_mem(&mem, 4) ?: add_kid() ?: ask(0, WRITE) ?:
		  ask(0, PUSH) ?: make_disk(&disk[1], 4) ?:
		  switch_disk_on(&disk[1], SWAP_PRIO_TOP);
	if (!verdict && pages)
		verdict = map_mem(&more, pages) ?: push_out(&more);
	verdict = verdict ?: set_delay(&disk[0], delay, 0) ?:
		  start_off(&run[0], &disk[0]) ?: reads_start(&run[0]) ?:
		  start_off(&run[1], &disk[1]);
	if (verdict)
		return verdict;
	/* Before the first read of the other one can have ended */
	if (!has_ended(&run[1], delay - 100))
		verdict = say(BROKEN, "the second swapoff waits for the first");
	make_end(&run[0], &disk[0]);
	make_end(&run[1], &disk[1]);
	verdict = verdict ?: off_is(&run[0], 0) ?: off_is(&run[1], 0) ?:
		  is_off(&disk[0]) ?: is_off(&disk[1]) ?: ask(0, LOOK);
	return verdict || !pages ? verdict : intact(&more, "second area");
}

/* 6.12: a mutex is held all the time */
TEST_F_TIMEOUT(bystander, swapoff_of_empty_area, CASE_SECONDS)
{
	end_with(_metadata, second_area(0));
}

TEST_F_TIMEOUT(bystander, swapoff_of_other_area, CASE_SECONDS)
{
	end_with(_metadata, second_area(64));
}

/*
 * "Used" of /proc/swaps tells how far it is, until the disk becomes fast.  It
 * may come in steps, as freed slots are collected by each CPU, and up to 1024
 * pages are read at once.
 */
static int used_falls(void)
{
	const size_t pages = 1536;
	long used, last, values = 0, most = 0, end;
	int verdict;

	/* The child's pages, or mmap_lock might keep us from looking */
	verdict = mapped_area(&disk[0], 20) ?: map_mem(&mem, pages) ?:
		  push_out(&mem) ?: add_kid();
	munmap(mem.at, pages * psize());
	verdict = verdict ?: set_delay(&disk[0], 1, 0);
	listed(&disk[0], NULL, &last);
	verdict = verdict ?: start_off(&run[0], &disk[0]);
	for (end = msecs() + 900 * patience(); !verdict && msecs() < end;) {
		if (!listed(&disk[0], NULL, &used) || !used)
			break;
		if (used < last) {
			values++;
			most = last - used > most ? last - used : most;
			last = used;
		}
		usleep(1000);
	}
	make_end(&run[0], &disk[0]);
	if (!verdict && (values < 2 || most > (long)pages / 4 * 3))
		verdict = say(BROKEN, "it fell %ld times, by up to %ld of %zu",
			      values, most, pages);
	return verdict ?: off_is(&run[0], 0) ?: ask(0, LOOK);
}

TEST_F_TIMEOUT(bystander, used_falls_steadily, CASE_SECONDS)
{
	end_with(_metadata, used_falls());
}

/*
 * "mapped": the pages are mapped as a fault would map them.
 */
FIXTURE(mapped) {};

FIXTURE_VARIANT(mapped)
{
	bool zram;
};

FIXTURE_VARIANT_ADD(mapped, disk)
{
	.zram = false,
};

FIXTURE_VARIANT_ADD(mapped, zram)
{
	.zram = true,
};

FIXTURE_SETUP(mapped)
{
	set_up(_metadata);
	on_zram = variant->zram;
}

FIXTURE_TEARDOWN_PARENT(mapped)
{
	undo();
}

static long faults(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_minflt + ru.ru_majflt;
}

/* Pages which nobody shares can be written to at once */
static int write_without_fault(void)
{
	const size_t pages = 512;
	long n;
	int verdict;
	size_t i;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, pages) ?:
		  push_out(&mem) ?: turn_off(&disk[0]) ?:
		  intact(&mem, "swapoff");
	n = faults();
	for (i = 0; i < pages && !verdict; i++)
		poke((__u64 *)page_at(&mem, i), i);
	n = faults() - n;
	if (!verdict && n > (long)pages / 16)
		verdict = say(BROKEN, "%ld faults for %zu pages", n, pages);
	if (!verdict && get_entries(mem.at, pages))
		for (i = 0; i < pages && !verdict; i++)
			if (!(entry[i] & PM_MMAP_EXCLUSIVE))
				verdict = say(BROKEN, "page %zu is shared", i);
	return verdict;
}

/* 6.12: all are mapped read-only */
TEST_F_TIMEOUT(mapped, exclusive_writable, CASE_SECONDS)
{
	end_with(_metadata, write_without_fault());
}

static int collapse(void)
{
	size_t len = read_pmd_pagesize(), heads;
	int verdict;

	if (access(THP_DIR "enabled", R_OK))
		return say(UNFIT, "no transparent huge pages");
	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, len / psize()) ?:
		  push_out(&mem) ?: turn_off(&disk[0]);
	if (verdict)
		return verdict;
	madvise(mem.at, len, MADV_HUGEPAGE);
	if (madvise(mem.at, len, MADV_COLLAPSE))
		return say(errno == ENOMEM ? UNFIT : BROKEN,
			   "MADV_COLLAPSE: %s", strerror(errno));
	verdict = flags_come(mem.at, mem.pages, F_LARGE, 0, &heads);
	if (!verdict && heads != 1)
		verdict = say(BROKEN, "%zu folios, not 1", heads);
	return verdict ?: intact(&mem, "collapsed");
}

/* 6.12: EINVAL, as no entry is writable */
TEST_F_TIMEOUT(mapped, can_be_collapsed, CASE_SECONDS)
{
	end_with(_metadata, collapse());
}

static int soft_dirty(void)
{
	int verdict;
	size_t i;

	if (!softdirty_supported())
		return say(UNFIT, "no soft-dirty bits");
	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 64);
	clear_softdirty();
	for (i = 0; i < 64; i += 2)
		poke((__u64 *)page_at(&mem, i),
		     peek((__u64 *)page_at(&mem, i)));
	verdict = verdict ?: push_out(&mem) ?: turn_off(&disk[0]);
	if (verdict || !get_entries(mem.at, 64))
		return verdict ?: say(UNFIT, "pagemap cannot be read");
	for (i = 0; i < 64; i++)
		if ((entry[i] & PM_SOFT_DIRTY ? 0 : 1) != i % 2)
			return say(BROKEN, "page %zu: soft-dirty is %d", i,
				   !!(entry[i] & PM_SOFT_DIRTY));
	/* A write to a clean one is seen */
	poke((__u64 *)page_at(&mem, 1), peek((__u64 *)page_at(&mem, 1)));
	if (!get_entries(mem.at, 64) || !(entry[1] & PM_SOFT_DIRTY))
		return say(BROKEN, "a write is not seen");
	return intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(mapped, soft_dirty, CASE_SECONDS)
{
	end_with(_metadata, soft_dirty());
}

static int open_uffd(const struct mem *m, __u64 mode)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = mode };
	int fd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	reg.range.start = (uintptr_t)m->at;
	reg.range.len = m->pages * psize();
	if (fd >= 0 && (ioctl(fd, UFFDIO_API, &api) ||
			ioctl(fd, UFFDIO_REGISTER, &reg))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void *write_page(void *arg)
{
	__u64 *at = arg;

	poke(at, peek(at));
	return NULL;
}

static int uffd_wp(void)
{
	struct uffdio_writeprotect wp = { .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	struct uffd_msg msg = {};
	struct pollfd p = { .events = POLLIN };
	pthread_t thread;
	int verdict, fd;
	size_t i;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 64);
	if (verdict)
		return verdict;
	fd = open_uffd(&mem, UFFDIO_REGISTER_MODE_WP);
	wp.range.start = (uintptr_t)mem.at;
	wp.range.len = 32 * psize();
	if (fd < 0 || ioctl(fd, UFFDIO_WRITEPROTECT, &wp))
		return say(UNFIT, "userfaultfd: %s", strerror(errno));
	verdict = push_out(&mem) ?: turn_off(&disk[0]);
	if (verdict || !get_entries(mem.at, 64))
		return verdict ?: say(UNFIT, "pagemap cannot be read");
	for (i = 0; i < 64; i++)
		if ((entry[i] & PM_UFFD_WP ? 0 : 1) != i / 32)
			return say(BROKEN, "page %zu: uffd-wp is %d", i,
				   !!(entry[i] & PM_UFFD_WP));
	/* Free to be written */
	poke((__u64 *)page_at(&mem, 40), peek((__u64 *)page_at(&mem, 40)));
	/* Held until the handler lets it go on */
	if (pthread_create(&thread, NULL, write_page, page_at(&mem, 7)))
		return say(UNFIT, "no thread");
	p.fd = fd;
	if (poll(&p, 1, 2000) <= 0 ||
	    read(fd, &msg, sizeof(msg)) != sizeof(msg) ||
	    msg.event != UFFD_EVENT_PAGEFAULT ||
	    !(msg.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP))
		verdict = say(BROKEN, "the handler is not told of a write");
	wp.mode = 0;
	ioctl(fd, UFFDIO_WRITEPROTECT, &wp);
	pthread_join(thread, NULL);
	close(fd);
	return verdict ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(mapped, uffd_wp, CASE_SECONDS)
{
	end_with(_metadata, uffd_wp());
}

static bool dies_by_write(char *at)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		prctl(PR_SET_DUMPABLE, 0);
		poke((__u64 *)at, 1);
		_exit(0);
	}
	return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
	       WTERMSIG(status) == SIGSEGV;
}

/* Pages 0 to 15 cannot be accessed, 16 to 31 can only be read */
static int keep_protection(void)
{
	int verdict;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 48) ?:
		  push_out(&mem);
	if (verdict)
		return verdict;
	mprotect(mem.at, 16 * psize(), PROT_NONE);
	mprotect(page_at(&mem, 16), 16 * psize(), PROT_READ);
	verdict = turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
		  intact_part(&mem, 16, 48, "swapoff");
	if (!verdict && (!dies_by_write(page_at(&mem, 3)) ||
			 !dies_by_write(page_at(&mem, 20))))
		verdict = say(BROKEN, "protection is gone");
	mprotect(mem.at, 32 * psize(), PROT_READ | PROT_WRITE);
	verdict = verdict ?: intact(&mem, "access again");
	fill(&mem);
	return verdict ?: intact(&mem, "written");
}

TEST_F_TIMEOUT(mapped, protection, CASE_SECONDS)
{
	end_with(_metadata, keep_protection());
}

/*
 * Locked after they were swapped out; what comes back is locked then.  It may
 * be reclaim that marks the pages, but it has to leave them where they are.
 */
static int locked(void)
{
	int verdict, try;

	verdict = make_group() ?: fast_area(&disk[0], 8) ?: enter_group() ?:
		  map_mem(&mem, 64) ?: push_out(&mem);
	if (verdict)
		return verdict;
	if (mlock2(mem.at, mem.pages * psize(), MLOCK_ONFAULT))
		return say(UNFIT, "mlock2: %s", strerror(errno));
	verdict = all_swapped(&mem, true) ?: turn_off(&disk[0]) ?:
		  all_swapped(&mem, false) ?: fast_area(&disk[1], 8) ?:
		  map_mem(&more, 64);
	for (try = 0; try < 20 && !verdict; try++) {
		set_group("memory.reclaim", 256 * psize());
		verdict = all_swapped(&mem, false);
	}
	/* That others go shows that reclaim has been at work */
	if (!verdict && !count_swapped(more.at, more.pages))
		verdict = say(UNFIT, "nothing was reclaimed");
	return verdict ?: intact(&mem, "swapoff") ?: intact(&more, "others");
}

TEST_F_TIMEOUT(mapped, locked, CASE_SECONDS)
{
	end_with(_metadata, locked());
}

/* Elsewhere, and not in a child: the VMA has changed since */
static int moved(void)
{
	size_t len = 64 * psize();
	char *to = map_aligned(1, 64);
	int verdict;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 64) ?:
		  push_out(&mem);
	if (verdict)
		return verdict;
	if (!to || mremap(mem.at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) !=
	    to)
		return say(UNFIT, "mremap: %s", strerror(errno));
	mem.at = to;
	madvise(page_at(&mem, 32), 32 * psize(), MADV_DONTFORK);
	mem.pages = 32;
	verdict = add_kid();
	mem.pages = 64;
	return verdict ?: turn_off(&disk[0]) ?: all_swapped(&mem, false) ?:
	       intact(&mem, "swapoff") ?: ask(0, LOOK);
}

TEST_F_TIMEOUT(mapped, moved_and_forked, CASE_SECONDS)
{
	end_with(_metadata, moved());
}

/* Mapped again, reclaimed again, migrated: rmap has to be right */
static int reclaimable(void)
{
	int verdict;

	verdict = fast_area(&disk[0], 8) ?: map_mem(&mem, 256) ?:
		  push_out(&mem) ?: add_kids(2) ?: turn_off(&disk[0]);
	put_text("/proc/sys/vm/compact_memory", "1");
	verdict = verdict ?: intact(&mem, "compacted") ?: ask_all(LOOK);
	lose_kids();
	return verdict ?: fast_area(&disk[1], 8) ?: push_out(&mem) ?:
	       intact(&mem, "reclaimed") ?: push_out(&mem) ?:
	       turn_off(&disk[1]) ?: intact(&mem, "swapoff");
}

TEST_F_TIMEOUT(mapped, reclaimable, CASE_SECONDS)
{
	end_with(_metadata, reclaimable());
}

/*
 * "tmpfs": files which change meanwhile.
 */
FIXTURE(tmpfs) {};

FIXTURE_SETUP(tmpfs)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(tmpfs)
{
	undo();
}

#define FILES		24
#define FILE_PAGES	8

/* Many files, of which some have no name any more */
static int many_files(int areas)
{
	char dir[32], path[64];
	struct mem file[FILES];
	int verdict, i, fd;

	verdict = make_group() ?: fast_area(&disk[0], 8);
	if (!verdict && areas > 1)
		verdict = make_disk(&disk[1], 8) ?:
			  switch_disk_on(&disk[1], SWAP_PRIO_TOP);
	verdict = verdict ?: enter_group() ?:
		  mount_on(dir, "tmpfs", "tmpfs", "size=16m");
	for (i = 0; i < FILES && !verdict; i++) {
		snprintf(path, sizeof(path), "%s/%d", dir, i);
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, FILE_PAGES * psize()))
			return say(UNFIT, "%s: %s", path, strerror(errno));
		file[i].pages = FILE_PAGES;
		file[i].at = mmap(NULL, FILE_PAGES * psize(), PROT_READ |
				  PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
		if (file[i].at == MAP_FAILED)
			return say(UNFIT, "mmap: %s", strerror(errno));
		fill(&file[i]);
		if (i % 3 == 0)
			unlink(path);
	}
	for (i = 0; i < FILES && !verdict; i++)
		verdict = push_out_file(&file[i], false);
	if (areas == 1)
		verdict = verdict ?: turn_off(&disk[0]);
	else
		verdict = verdict ?: start_off(&run[0], &disk[0]) ?:
			  start_off(&run[1], &disk[1]) ?:
			  wait_off(&run[0], &disk[0], OFF_MSECS) ?:
			  wait_off(&run[1], &disk[1], OFF_MSECS) ?:
			  off_is(&run[0], 0) ?: off_is(&run[1], 0);
	for (i = 0; i < FILES && !verdict; i++) {
		verdict = intact(&file[i], "swapoff");
		munmap(file[i].at, FILE_PAGES * psize());
	}
	for (i = 0; i < FILES && !verdict; i++) {
		snprintf(path, sizeof(path), "%s/%d", dir, i);
		unlink(path);
	}
	if (!verdict && blocks_used(dir))
		verdict = say(BROKEN, "%ld blocks of an empty tmpfs are used",
			      blocks_used(dir));
	return verdict;
}

TEST_F_TIMEOUT(tmpfs, many_files, CASE_SECONDS)
{
	end_with(_metadata, many_files(1));
}

TEST_F_TIMEOUT(tmpfs, many_files_two_areas, CASE_SECONDS)
{
	end_with(_metadata, many_files(2));
}

/* Huge pages of a file, in large entries */
static int huge_file(bool change)
{
	size_t unit = read_pmd_pagesize() / psize(), pages = 2 * unit, i;
	char dir[32], path[48];
	int verdict, fd;

	if (access(THP_DIR "shmem_enabled", R_OK) || pages > 8192)
		return say(UNFIT, "no transparent huge pages for tmpfs");
	verdict = make_group() ?: mapped_area(&disk[0], 16) ?: enter_group() ?:
		  mount_on(dir, "tmpfs", "tmpfs", "size=32m,huge=always");
	if (verdict)
		return verdict;
	snprintf(path, sizeof(path), "%s/file", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, pages * psize()))
		return say(UNFIT, "%s: %s", path, strerror(errno));
	mem.pages = pages;
	mem.at = mmap(NULL, pages * psize(), PROT_READ | PROT_WRITE, MAP_SHARED,
		      fd, 0);
	if (mem.at == MAP_FAILED)
		return say(UNFIT, "mmap: %s", strerror(errno));
	fill(&mem);
	verdict = push_out_file(&mem, false);
	if (!change) {
		verdict = verdict ?: turn_off(&disk[0]) ?:
			  intact(&mem, "swapoff");
		goto out;
	}

	/* Meanwhile: every 7th page becomes a hole, and the end is cut off */
	verdict = verdict ?: set_delay(&disk[0], 5, 0) ?:
		  start_off(&run[0], &disk[0]);
	for (i = 0; i < pages - 64 && !verdict; i += 7)
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			      i * psize(), psize()))
			verdict = say(BROKEN, "fallocate: %s", strerror(errno));
	for (i = pages - 1; i >= pages - 64 && !verdict; i -= 9)
		if (ftruncate(fd, i * psize()))
			verdict = say(BROKEN, "ftruncate: %s", strerror(errno));
	i += 9;
	make_end(&run[0], &disk[0]);
	verdict = verdict ?: off_is(&run[0], 0) ?: is_off(&disk[0]);
	for (pages = i, i = 0; i < pages && !verdict; i++)
		if (i % 7 == 0 && i < mem.pages - 64 ?
		    !page_is_zero(page_at(&mem, i)) :
		    !page_is(page_at(&mem, i), mem.tag, i))
			verdict = say(BROKEN, "page %zu is wrong", i);
out:
	munmap(mem.at, mem.pages * psize());
	close(fd);
	unlink(path);
	if (!verdict && blocks_used(dir))
		verdict = say(BROKEN, "%ld blocks of an empty tmpfs are used",
			      blocks_used(dir));
	return verdict;
}

TEST_F_TIMEOUT(tmpfs, huge_pages, CASE_SECONDS)
{
	end_with(_metadata, huge_file(false));
}

TEST_F_TIMEOUT(tmpfs, huge_pages_cut, CASE_SECONDS)
{
	end_with(_metadata, huge_file(true));
}

/*
 * "race": swap areas come and go while memory and processes do the same.
 */
FIXTURE(race) {};

FIXTURE_SETUP(race)
{
	set_up(_metadata);
}

FIXTURE_TEARDOWN_PARENT(race)
{
	undo();
}

/* Turns areas on and off until it is told to stop */
struct switcher {
	pthread_t thread;
	int areas;
	bool stop;
	int err;		/* what went wrong */
	long rounds;
};

static void *switch_areas(void *arg)
{
	struct switcher *s = arg;
	int i = 0;

	hop(1);
	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED) && !s->err) {
		i = (i + 1) % s->areas;
		if (swapoff(disk[i].path)) {
			s->err = errno;
			break;
		}
		if (swapon(disk[i].path, SWAP_FLAG_PREFER | SWAP_PRIO_TOP))
			s->err = errno;
		usleep(2000);
		s->rounds++;
	}
	return NULL;
}

static int start_switcher(struct switcher *s, int areas)
{
	int verdict = FINE, i;

	memset(s, 0, sizeof(*s));
	s->areas = areas;
	for (i = 0; i < areas && !verdict; i++)
		verdict = make_area(&disk[i], 8) ?:
			  switch_disk_on(&disk[i], SWAP_PRIO_TOP);
	if (!verdict && pthread_create(&s->thread, NULL, switch_areas, s))
		verdict = say(UNFIT, "no thread");
	return verdict;
}

static int stop_switcher(struct switcher *s)
{
	__atomic_store_n(&s->stop, true, __ATOMIC_RELAXED);
	pthread_join(s->thread, NULL);
	if (s->err)
		return say(BROKEN, "swapoff or swapon: %s", strerror(s->err));
	return s->rounds ? FINE : say(UNFIT, "swapoff has not ended once");
}

#define MODEL_PAGES	48

/* What each page holds: the tag of the last fill, or 0 for zeroes */
static unsigned int model[MODEL_PAGES];

static int model_holds(const char *when)
{
	size_t i;

	for (i = 0; i < MODEL_PAGES; i++)
		if (model[i] ? !page_is(page_at(&mem, i), model[i], i) :
			       !page_is_zero(page_at(&mem, i)))
			return say(BROKEN, "%s: page %zu is wrong", when, i);
	return FINE;
}

static int holds_in_child(void)
{
	pid_t pid = fork();
	size_t i;
	int status;

	if (!pid) {
		/* Some only see, some exit with what is out */
		if (chance(2))
			_exit(model_holds("in the child"));
		for (i = 0; i < MODEL_PAGES; i += 3)
			poke((__u64 *)page_at(&mem, i), 1);
		madvise(mem.at, MODEL_PAGES * psize(), MADV_PAGEOUT);
		_exit(FINE);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return say(BROKEN, "no child, or it died");
	return WEXITSTATUS(status);
}

static int move_model(char *to)
{
	const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
	size_t at;

	/* One at a time: they may be in several VMAs */
	for (at = 0; at < MODEL_PAGES * psize(); at += psize())
		if (mremap(mem.at + at, psize(), psize(), flags, to + at) !=
		    to + at)
			return say(BROKEN, "mremap: %s", strerror(errno));
	mem.at = to;
	return FINE;
}

static int one_step(char *places[2])
{
	size_t i = chance(MODEL_PAGES), n;
	char *at = page_at(&mem, i);

	switch (chance(10)) {
	case 0:
	case 1:
		model[i] = ++next_tag;
		make_page((__u64 *)at, model[i], i);
		return FINE;
	case 2:
		if (mmap(at, psize(), PROT_READ | PROT_WRITE, MAP_FIXED |
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != at)
			return say(UNFIT, "mmap: %s", strerror(errno));
		model[i] = 0;
		return FINE;
	case 3:
		madvise(at, psize(), MADV_DONTNEED);
		model[i] = 0;
		return FINE;
	case 4:
		/* The kernel without MADV_FREE is fine, too */
		madvise(at, psize(), MADV_FREE);
		make_page((__u64 *)at, ++next_tag, i);
		model[i] = next_tag;
		return FINE;
	case 5:
	case 6:
		madvise(mem.at, MODEL_PAGES * psize(), MADV_PAGEOUT);
		return FINE;
	case 7:
		return holds_in_child();
	case 8:
		return move_model(mem.at == places[0] ? places[1] : places[0]);
	default:
		n = MODEL_PAGES - i;
		mprotect(at, n * psize(), PROT_NONE);
		madvise(mem.at, MODEL_PAGES * psize(), MADV_WILLNEED);
		mprotect(at, n * psize(), PROT_READ | PROT_WRITE);
		return FINE;
	}
}

static int follow_model(int areas)
{
	struct switcher s;
	char *places[2];
	long end;
	int verdict, i;

	verdict = map_mem(&mem, MODEL_PAGES);
	places[0] = mem.at;
	places[1] = map_aligned(1, MODEL_PAGES);
	for (i = 0; i < MODEL_PAGES; i++)
		model[i] = mem.tag;
	verdict = verdict ?: start_switcher(&s, areas);
	if (verdict)
		return verdict;
	end = msecs() + 2 * RACE_MSECS;
	while (!verdict && msecs() < end) {
		verdict = one_step(places);
		if (!chance(8))
			verdict = verdict ?: model_holds("model");
	}
	i = stop_switcher(&s);
	return verdict ?: i ?: model_holds("in the end");
}

TEST_F_TIMEOUT(race, changing_process, CASE_SECONDS)
{
	end_with(_metadata, follow_model(1));
}

TEST_F_TIMEOUT(race, changing_process_two_areas, CASE_SECONDS)
{
	end_with(_metadata, follow_model(2));
}

TEST_F_TIMEOUT(race, changing_process_zram, CASE_SECONDS)
{
	on_zram = true;
	end_with(_metadata, follow_model(1));
}

TEST_F_TIMEOUT(race, changing_process_zswap, CASE_SECONDS)
{
	int verdict = FINE;

	if (!turn(ZSWAP "enabled", "Y"))
		verdict = say(UNFIT, "no zswap");
	turn(ZSWAP "shrinker_enabled", "Y");
	end_with(_metadata, verdict ?: follow_model(1));
}

/* Processes which end, in all possible ways, with their pages out */
static int exit_at_once(void)
{
	struct switcher s;
	long end = msecs() + RACE_MSECS;
	int verdict, i;

	verdict = map_mem(&mem, 128) ?: start_switcher(&s, 1);
	if (verdict)
		return verdict;
	while (!verdict && msecs() < end) {
		verdict = add_kids(4);
		madvise(mem.at, 128 * psize(), MADV_PAGEOUT);
		for (i = 0; i < kids && !verdict; i++)
			verdict = tell(i, i % 2 ? WRITE : LOOK);
		usleep(chance(3000));
		lose_kids();
	}
	i = stop_switcher(&s);
	return verdict ?: i ?: intact(&mem, "in the end");
}

TEST_F_TIMEOUT(race, exit, CASE_SECONDS)
{
	end_with(_metadata, exit_at_once());
}

TEST_F_TIMEOUT(race, exit_zram, CASE_SECONDS)
{
	on_zram = true;
	end_with(_metadata, exit_at_once());
}

/*
 * fork() fails in the middle, when some of the memory has been copied and some
 * has not, and leaves a process which swapoff must not get into.
 */
static int fail_to_fork(void)
{
	struct switcher s;
	long end, failed = 0, tries;
	int verdict, status;
	pid_t pid;

	/* Above what is swapped, since it has to be copied after that */
	verdict = make_promise(&disk[0]) ?: map_mem(&mem, 128);
	if (!verdict && promise.at < mem.at)
		verdict = say(UNFIT, "mmap goes upwards");
	verdict = verdict ?: start_switcher(&s, 1);
	if (verdict)
		return verdict;
	verdict = set_overcommit(&disk[0],
				 number_of("/proc/meminfo", "Committed_AS") +
				 promise.kb / 2);
	end = msecs() + RACE_MSECS;
	for (tries = 0; !verdict && (tries < 5 || msecs() < end); tries++) {
		madvise(mem.at, 128 * psize(), MADV_PAGEOUT);
		pid = fork();
		if (!pid)
			_exit(0);
		if (pid > 0)
			waitpid(pid, &status, 0);
		else
			failed++;
	}
	put_text("/proc/sys/vm/overcommit_memory", "0");
	status = stop_switcher(&s);
	if (!verdict && !failed)
		verdict = say(UNFIT, "fork does not fail");
	return verdict ?: status ?: intact(&mem, "in the end");
}

TEST_F_TIMEOUT(race, failing_fork, CASE_SECONDS)
{
	end_with(_metadata, fail_to_fork());
}

static void *change_file(void *arg)
{
	struct switcher *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED)) {
		madvise(mem.at, mem.pages * psize(), MADV_PAGEOUT);
		set_group("memory.reclaim", 64 * psize());
	}
	return NULL;
}

/* A file which is cut, punched and written to */
static int changing_file(void)
{
	struct switcher s, pusher = {};
	int verdict, fd = -1, i, size = MODEL_PAGES;
	long end;

	verdict = make_group() ?: start_switcher(&s, 1);
	if (verdict)
		return verdict;
	verdict = enter_group() ?: map_file(&mem, MODEL_PAGES, &fd);
	for (i = 0; i < MODEL_PAGES; i++)
		model[i] = mem.tag;
	if (!verdict && pthread_create(&pusher.thread, NULL, change_file,
				       &pusher))
		verdict = say(UNFIT, "no thread");
	end = msecs() + RACE_MSECS;
	while (!verdict && msecs() < end) {
		i = chance(MODEL_PAGES);
		switch (chance(4)) {
		case 0:
			ftruncate(fd, i * psize());
			ftruncate(fd, MODEL_PAGES * psize());
			for (; i < MODEL_PAGES; i++)
				model[i] = 0;
			break;
		case 1:
			fallocate(fd, FALLOC_FL_PUNCH_HOLE |
				  FALLOC_FL_KEEP_SIZE, i * psize(), psize());
			model[i] = 0;
			break;
		default:
			model[i] = ++next_tag;
			make_page((__u64 *)page_at(&mem, i), next_tag, i);
		}
		if (!chance(6))
			verdict = model_holds("model");
	}
	__atomic_store_n(&pusher.stop, true, __ATOMIC_RELAXED);
	if (pusher.thread)
		pthread_join(pusher.thread, NULL);
	size = stop_switcher(&s);
	return verdict ?: size ?: model_holds("in the end");
}

TEST_F_TIMEOUT(race, changing_file, CASE_SECONDS)
{
	end_with(_metadata, changing_file());
}

TEST_HARNESS_MAIN
