// SPDX-License-Identifier: GPL-2.0
/*
 * madvise(MADV_FREE): pages whose content is not wanted any more.
 *
 * Three things are looked at, and all of them are exact:
 *
 * - Content.  Every byte of a page is written, and is different from page to
 *   page.  A page which was given to MADV_FREE is as it was or has nothing but
 *   zeroes.  If it was written to after the call it has what was written, and
 *   around that what it had at the time of writing.
 *
 * - How many pages are lazily free: LazyFree of smaps, and pglazyfree.  Whoever
 *   asks first lets every CPU work off its LRU batches, as this is not what is
 *   tested.
 *
 * - What becomes of the pages: MADV_PAGEOUT drops a lazily free page and swaps
 *   out any other.  So after it a page is a hole (dropped) or a swap entry (not
 *   dropped, a miss).
 *
 * A defect known of Linux 6.12 is named where it is tested for, as "6.12:".
 *
 * See swap_util.h for SWAP_DEV, and for how swap slots are counted.
 */
#include <pthread.h>
#include <linux/userfaultfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "../kselftest_harness.h"
#include "../../../../lib/test_hmm_uapi.h"
#include "../../../../mm/gup_test.h"
#include "swap_util.h"

#ifndef MADV_FREE
#define MADV_FREE		8
#endif
#ifndef MADV_COLD
#define MADV_COLD		20
#endif
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT		21
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE		25
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE	0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP	4
#endif
#ifndef __NR_mseal
#define __NR_mseal		462
#endif

#define CASE_SECONDS	300	/* only a hang takes that long */
#define RACE_MSECS	300
#define MAX_KIDS	96
#define LRU_GEN		"/sys/kernel/mm/lru_gen/enabled"
#define KHUGEPAGED	THP_DIR "khugepaged/"
#define SPLIT_HUGE	"/sys/kernel/debug/split_huge_pages"
#define DMIRROR		"/dev/hmm_dmirror0"
#define SLOW_NAME	"madv_free_slow"
#define SLOW_MSECS	300

static unsigned int pmd_pages(void)
{
	return read_pmd_pagesize() / psize();
}

/* Memory: @pages pages, in folios of @unit pages each */

static struct area {
	char *mem;
	size_t pages;
	size_t unit;
	unsigned int tag;	/* tells what is in it */
} area;

static unsigned int next_tag;

static char *page_at(const struct area *a, size_t page)
{
	return a->mem + page * psize();
}

/* What a page can look like */
#define GONE	1		/* zeroes */
#define KEPT	2		/* as it was filled */
#define TOUCHED	4		/* the same, but for the byte of touch() */
#define FRESH	8		/* zeroes, but for the byte of touch() */
#define MARK	0xa5

static size_t mark_of(size_t page)
{
	return (page * 37 + 11) % psize();
}

static void make_page(__u64 *to, unsigned int tag, size_t page)
{
	size_t words = psize() / sizeof(*to), i;
	__u64 s = stamp(tag, page) | 1;

	for (i = 0; i < words; i++)
		to[i] = s * (2 * i + 1);
	((char *)to)[mark_of(page)] = (char)~MARK;
}

/* The least that counts as writing to a page */
static void touch(const struct area *a, size_t page)
{
	char *at = page_at(a, page) + mark_of(page);

	__atomic_store_n(at, (char)MARK, __ATOMIC_RELAXED);
}

static void fill(struct area *a)
{
	size_t i;

	a->tag = ++next_tag;
	for (i = 0; i < a->pages; i++)
		make_page((__u64 *)page_at(a, i), a->tag, i);
}

static int look_of(const struct area *a, size_t page)
{
	static __thread __u64 want[8192];
	const char *at = page_at(a, page);
	char *byte = (char *)want + mark_of(page);

	make_page(want, a->tag, page);
	if (!memcmp(at, want, psize()))
		return KEPT;
	*byte = (char)MARK;
	if (!memcmp(at, want, psize()))
		return TOUCHED;
	memset(want, 0, psize());
	if (!memcmp(at, want, psize()))
		return GONE;
	*byte = (char)MARK;
	if (!memcmp(at, want, psize()))
		return FRESH;
	return 0;
}

static int all_look(const struct area *a, size_t from, size_t pages, int like,
		    const char *when)
{
	static const char * const looks[] = {
		[0] = "spoilt", [GONE] = "zero", [KEPT] = "as it was",
		[TOUCHED] = "written to", [FRESH] = "zero but for one byte",
	};
	size_t bad = 0, first = 0, i;
	int look = 0, seen;

	for (i = from; i < from + pages; i++) {
		seen = look_of(a, i);
		if (seen & like || bad++)
			continue;
		first = i;
		look = seen;
	}
	if (!bad)
		return FINE;
	return say(BROKEN, "%s: %zu of %zu pages are wrong, page %zu is %s",
		   when, bad, pages, first, looks[look]);
}

static int map_area(struct area *a, size_t unit, size_t pages)
{
	size_t len = pages * psize(), heads;
	int verdict = FINE;

	if (unit > 1)
		verdict = choose_unit(unit);
	if (verdict)
		return verdict;
	a->mem = map_aligned(unit, pages);
	if (!a->mem)
		return say(UNFIT, "mmap: %s", strerror(errno));
	a->pages = pages;
	a->unit = unit;
	madvise(a->mem, len, unit > 1 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	fill(a);
	if (unit == 1)
		return FINE;
	/* khugepaged has no business here, unless it is asked to */
	madvise(a->mem, len, MADV_NOHUGEPAGE);
	verdict = flags_come(a->mem, pages, F_LARGE, 0, &heads);
	if (verdict || heads != pages / unit)
		return say(UNFIT, "no memory in folios of %zu pages", unit);
	return FINE;
}

static void unmap_area(struct area *a)
{
	if (a->mem)
		munmap(a->mem, a->pages * psize());
	a->mem = NULL;
}

static int still_whole(const struct area *a)
{
	size_t heads;

	if (a->unit == 1)
		return FINE;
	if (flags_come(a->mem, a->pages, F_LARGE, 0, &heads) ||
	    heads != a->pages / a->unit)
		return say(BROKEN, "a folio of %zu pages was split", a->unit);
	return FINE;
}

/* The system call */

static int give(const struct area *a, size_t from, size_t pages)
{
	if (madvise(page_at(a, from), pages * psize(), MADV_FREE))
		return say(BROKEN, "MADV_FREE: %s", strerror(errno));
	return FINE;
}

static int give_all(const struct area *a)
{
	return give(a, 0, a->pages);
}

static int refuses(void *at, size_t len, int err)
{
	errno = 0;
	if (!madvise(at, len, MADV_FREE))
		return say(BROKEN, "MADV_FREE succeeds, not %s", strerror(err));
	if (errno != err)
		return say(BROKEN, "MADV_FREE gives %s, not %s",
			   strerror(errno), strerror(err));
	return FINE;
}

/* Measuring */

/* Sum over the VMAs of a range, in pages */
static long smaps_sum(const char *mem, size_t len, const char *name)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	uintptr_t from = (uintptr_t)mem, start, end;
	size_t name_len = strlen(name);
	bool inside = false;
	char line[512];
	long kb = 0;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start < from + len && end > from;
		else if (inside && !strncmp(line, name, name_len) &&
			 line[name_len] == ':')
			kb += strtol(line + name_len + 1, NULL, 10);
	}
	fclose(f);
	return kb / (psize() >> 10);
}

static int lazy_is(const struct area *a, size_t from, size_t pages, long due)
{
	long lazy;

	drain_all();
	lazy = smaps_sum(page_at(a, from), pages * psize(), "LazyFree");
	if (lazy == due)
		return FINE;
	return say(BROKEN, "%ld pages are lazily free, not %ld", lazy, due);
}

static int all_lazy(const struct area *a)
{
	return lazy_is(a, 0, a->pages, a->pages);
}

enum { MARKED, DROPPED, OUT, SPLIT, SPLIT_PMD, REFAULT, NR_COUNTS };

struct counts {
	long n[NR_COUNTS];
};

static void count(struct counts *c)
{
	static const char * const names[] = {
		[MARKED] = "pglazyfree", [DROPPED] = "pglazyfreed",
		[OUT] = "pswpout", [SPLIT] = "thp_split_page",
		[SPLIT_PMD] = "thp_split_pmd",
		[REFAULT] = "workingset_refault_file",
	};
	FILE *f = fopen("/proc/vmstat", "r");
	char line[128];
	size_t len;
	int i;

	memset(c, 0, sizeof(*c));
	if (!f)
		return;
	while (fgets(line, sizeof(line), f)) {
		for (i = 0; i < NR_COUNTS; i++) {
			len = strlen(names[i]);
			if (!strncmp(line, names[i], len) && line[len] == ' ')
				c->n[i] = strtol(line + len, NULL, 10);
		}
	}
	fclose(f);
}

static int counted(const struct counts *from, int what, long due)
{
	static const char * const names[] = {
		[MARKED] = "pages marked lazily free",
		[DROPPED] = "lazily free pages dropped",
		[OUT] = "pages swapped out", [SPLIT] = "huge pages split",
		[SPLIT_PMD] = "PMDs split", [REFAULT] = "refaults of files",
	};
	struct counts now;
	long n;

	count(&now);
	n = now.n[what] - from->n[what];
	if (n == due)
		return FINE;
	return say(BROKEN, "%s: %ld, not %ld", names[what], n, due);
}

/* Folios of this size that were split so far */
static long splits(size_t unit)
{
	char path[128], buf[32];

	if (unit < 2)
		return 0;
	snprintf(path, sizeof(path), THP_DIR "hugepages-%zukB/stats/split",
		 unit * (psize() >> 10));
	return get_text(path, buf, sizeof(buf)) > 0 ? atol(buf) : 0;
}

static void need_plug(void)
{
	static bool made;

	if (!made)
		make_plug();
	made = true;
}

static long slots_used(void)
{
	need_plug();
	empty_slot_caches();
	return (number_of("/proc/meminfo", "SwapTotal") -
		number_of("/proc/meminfo", "SwapFree")) / (psize() >> 10);
}

static int slots_are(long due, const char *when)
{
	long used = slots_used();

	if (labs(used - due) <= slack)
		return FINE;
	return say(BROKEN, "%s: %ld slots in use, not %ld", when, used, due);
}

/*
 * Reclaim until no page is mapped.  Those which cannot be reclaimed at first
 * may be in the LRU batch of another CPU, or in use for a moment.
 */
static int push_part(const struct area *a, size_t from, size_t pages)
{
	/* A zero page is present, but is nobody's */
	const __u64 ours = PM_PRESENT | PM_MMAP_EXCLUSIVE;
	char *at = page_at(a, from);
	size_t mapped = pages, i;
	int try;

	for (try = 0; try < 60; try++) {
		if (try > nr_cpus())
			usleep(5000);
		hop(try);
		if (madvise(at, pages * psize(), MADV_PAGEOUT))
			return say(UNFIT, "MADV_PAGEOUT: %s", strerror(errno));
		if (!get_entries(at, pages))
			return say(UNFIT, "pagemap cannot be read");
		for (i = mapped = 0; i < pages; i++)
			mapped += (entry[i] & ours) == ours;
		if (!mapped) {
			hop(0);
			return FINE;
		}
	}
	hop(0);
	return say(BROKEN, "%zu of %zu pages are not reclaimed", mapped, pages);
}

static int push_out(const struct area *a)
{
	return push_part(a, 0, a->pages);
}

static int none_swapped(const struct area *a, size_t from, size_t pages)
{
	size_t n = count_swapped(page_at(a, from), pages);

	if (!n)
		return FINE;
	return say(BROKEN, "%zu of %zu pages were swapped out, not dropped", n,
		   pages);
}

/* They go, all of them, and without being written to swap */
static int part_drops(const struct area *a, size_t from, size_t pages)
{
	struct counts before;

	drain_all();
	count(&before);
	return push_part(a, from, pages) ?: none_swapped(a, from, pages) ?:
	       counted(&before, OUT, 0) ?:
	       all_look(a, from, pages, GONE, "after reclaim");
}

static int drops(const struct area *a)
{
	return part_drops(a, 0, a->pages);
}

/* Before and after each test */

static int probe(void)
{
	char *mem = map_aligned(1, 1);
	int verdict = FINE;

	if (!mem)
		return say(UNFIT, "mmap: %s", strerror(errno));
	*mem = 1;
	if (madvise(mem, psize(), MADV_FREE))
		verdict = say(BROKEN, "MADV_FREE does not exist (%s)",
			      strerror(errno));
	munmap(mem, psize());
	return verdict;
}

/* The swap area stays on until the program ends */
static int prepare(bool swap)
{
	int verdict = prepare_common() ?: probe();

	if (!verdict && swap) {
		verdict = need_swap();
		if (!verdict && !ledger->kept)
			ledger->kept = ledger->debts;
	}
	return verdict ?: calm_swap();
}

static void set_up(struct __test_metadata *_metadata, bool swap)
{
	int verdict = prepare(swap);

	if (verdict)
		undo();
	conclude(_metadata, verdict);
}

/* Other processes with the same memory */

enum op { LOOK, LOOK_TOUCHED, GIVE, REFILL, PUSH };

static struct kid {
	pid_t pid;
	int sock;
} kid[MAX_KIDS];

static int kids;

/* Every second page was written to after the call */
static int still_touched(const char *when)
{
	int verdict = FINE;
	size_t i;

	for (i = 0; i < area.pages && !verdict; i++)
		verdict = all_look(&area, i, 1, i % 2 ? KEPT | GONE : TOUCHED,
				   when);
	return verdict;
}

static int obey(enum op op)
{
	switch (op) {
	case LOOK:
		return all_look(&area, 0, area.pages, KEPT, "in the child");
	case LOOK_TOUCHED:
		return still_touched("in the child");
	case GIVE:
		return give_all(&area);
	case REFILL:
		fill(&area);
		return FINE;
	case PUSH:
		madvise(area.mem, area.pages * psize(), MADV_PAGEOUT);
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
		next_tag += 1000;
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

static int ask(int who, enum op op)
{
	int verdict;

	if (send(kid[who].sock, &op, sizeof(op), MSG_NOSIGNAL) != sizeof(op) ||
	    recv(kid[who].sock, &verdict, sizeof(verdict), 0) !=
	    sizeof(verdict))
		return say(BROKEN, "child %d is gone", who);
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

/* A thread which does not stop giving advice */
struct pest {
	pthread_t thread;
	char *mem;
	size_t len;
	int advice;		/* 0: just spin */
	int cpu;
	bool stop;
	unsigned long calls;
};

static void *pester(void *arg)
{
	struct pest *p = arg;

	hop(p->cpu);
	while (!__atomic_load_n(&p->stop, __ATOMIC_RELAXED)) {
		if (p->advice)
			madvise(p->mem, p->len, p->advice);
		__atomic_add_fetch(&p->calls, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static int start_pest(struct pest *p, const struct area *a, int advice)
{
	p->mem = a->mem;
	p->len = a->pages * psize();
	p->advice = advice;
	p->cpu = 1;
	if (pthread_create(&p->thread, NULL, pester, p))
		return say(UNFIT, "no thread");
	while (!__atomic_load_n(&p->calls, __ATOMIC_RELAXED))
		sched_yield();
	return FINE;
}

static void stop_pest(struct pest *p)
{
	__atomic_store_n(&p->stop, true, __ATOMIC_RELAXED);
	pthread_join(p->thread, NULL);
}

/* Memory cgroups */

static long group_stat(const char *name)
{
	return number_of(in_group("memory.stat"), name);
}

/* Statistics may lag by some seconds if little has changed */
static int group_stat_comes(const char *name, long due)
{
	long n = -1;
	int try;

	for (try = 0; try < 50; try++) {
		if (try)
			usleep(100000);
		n = group_stat(name);
		if (n == due)
			return FINE;
	}
	return say(BROKEN, "memory.stat: %s is %ld, not %ld", name, n, due);
}

static pid_t start_inside(int (*job)(const void *), const void *arg)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!put_text(in_group("cgroup.procs"), "0"))
		_exit(say(UNFIT, "cannot enter %s", group));
	_exit(job(arg));
}

static int run_inside(int (*job)(const void *), const void *arg)
{
	pid_t pid = start_inside(job, arg);
	int status;

	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return say(UNFIT, "fork: %s", strerror(errno));
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	return say(BROKEN, "killed by signal %d (oom_kill %ld)",
		   WTERMSIG(status),
		   number_of(in_group("memory.events"), "oom_kill"));
}

static int choose_lru(bool gen)
{
	if (access(LRU_GEN, W_OK))
		return gen ? say(UNFIT, "no " LRU_GEN) : FINE;
	return turn(LRU_GEN, gen ? "y" : "n") ? FINE :
	       say(UNFIT, LRU_GEN ": %s", strerror(errno));
}

/*
 * A tour of the fixtures.  Those which need no swap come first, so that no swap
 * area is on if there was none before.
 *
 * "refused": mappings for which MADV_FREE is EINVAL, and which it leaves alone,
 * while what comes before them in the range is done.
 */
FIXTURE(refused) {};

FIXTURE_SETUP(refused)
{
	set_up(_metadata, false);
}

FIXTURE_TEARDOWN_PARENT(refused)
{
	undo();
}

enum sort { LOCKED, HUGETLB, PFNMAP, SHARED_ANON, SHARED_FILE, PRIVATE_FILE };

FIXTURE_VARIANT(refused)
{
	enum sort sort;
};

FIXTURE_VARIANT_ADD(refused, locked) { .sort = LOCKED };
FIXTURE_VARIANT_ADD(refused, hugetlb) { .sort = HUGETLB };
FIXTURE_VARIANT_ADD(refused, pfnmap) { .sort = PFNMAP };
FIXTURE_VARIANT_ADD(refused, shared_anon) { .sort = SHARED_ANON };
FIXTURE_VARIANT_ADD(refused, shared_file) { .sort = SHARED_FILE };
FIXTURE_VARIANT_ADD(refused, private_file) { .sort = PRIVATE_FILE };

/* The kernel maps its clock to every process, by page frame number */
static char *find_vvar(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long start = 0;
	char line[256];

	if (!f)
		return NULL;
	while (fgets(line, sizeof(line), f)) {
		if (strstr(line, "[vvar]"))
			start = strtoul(line, NULL, 16);
	}
	fclose(f);
	return (char *)start;
}

static int map_refused(enum sort sort, struct area *bad, size_t *len)
{
	int flags = MAP_FIXED | MAP_PRIVATE, fd = -1;
	int prot = PROT_READ | PROT_WRITE;
	size_t huge = default_huge_page_size();

	bad->pages = 4;
	bad->unit = 1;
	*len = bad->pages * psize();
	if (sort == PFNMAP) {
		bad->mem = find_vvar();
		bad->pages = 0;
		*len = psize();
		return bad->mem ? FINE : say(UNFIT, "no [vvar]");
	}
	if (!huge)
		huge = *len;
	/* The first huge page is for what comes before */
	bad->mem = map_aligned(huge / psize(), 2 * huge / psize());
	if (!bad->mem)
		return say(UNFIT, "mmap: %s", strerror(errno));
	bad->mem += huge;

	if (sort == HUGETLB) {
		*len = huge;
		flags |= MAP_HUGETLB;
		if (!turn("/proc/sys/vm/nr_hugepages", "1"))
			return say(UNFIT, "no hugetlb pages");
	} else if (sort == SHARED_ANON) {
		flags = MAP_FIXED | MAP_SHARED;
	} else if (sort != LOCKED) {
		fd = memfd_create("madv_free", MFD_CLOEXEC);
		if (fd < 0 || ftruncate(fd, *len))
			return say(UNFIT, "memfd: %s", strerror(errno));
		if (sort == SHARED_FILE)
			flags = MAP_FIXED | MAP_SHARED;
	}
	if (fd < 0)
		flags |= MAP_ANONYMOUS;
	if (mmap(bad->mem, *len, prot, flags, fd, 0) == MAP_FAILED)
		return say(UNFIT, "mmap: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
	fill(bad);
	if (sort == LOCKED && mlock(bad->mem, *len))
		return say(UNFIT, "mlock: %s", strerror(errno));
	return FINE;
}

static int refused(enum sort sort)
{
	struct area good = { .pages = 4, .unit = 1 }, bad = {};
	size_t room = 4 * psize(), len;
	int verdict = map_refused(sort, &bad, &len);

	if (verdict)
		return verdict;
	good.mem = bad.mem - room;
	if (sort != PFNMAP)
		munmap(good.mem, room);
	if (mmap(good.mem, room, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE |
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != good.mem) {
		/* Only [vvar] can have a neighbour */
		ksft_print_msg("no room in front of the mapping\n");
		return refuses(bad.mem, len, EINVAL);
	}
	madvise(good.mem, room, MADV_NOHUGEPAGE);
	fill(&good);
	drain_all();

	verdict = refuses(bad.mem, len, EINVAL) ?:
		  all_look(&good, 0, 4, KEPT, "not asked for") ?:
		  refuses(good.mem, room + len, EINVAL);
	drain_all();
	if (!verdict && smaps_sum(good.mem, room + len, "LazyFree") != 4)
		verdict = say(BROKEN, "%ld pages are lazily free, not 4",
			      smaps_sum(good.mem, room + len, "LazyFree"));
	if (verdict || !bad.pages)
		return verdict;
	madvise(bad.mem, len, MADV_PAGEOUT);
	return all_look(&bad, 0, bad.pages, KEPT, "refused");
}

TEST_F_TIMEOUT(refused, einval, CASE_SECONDS)
{
	conclude(_metadata, refused(variant->sort));
}

/*
 * "range": what is and is not a range.
 */
FIXTURE(range) {};

FIXTURE_SETUP(range)
{
	set_up(_metadata, false);
}

FIXTURE_TEARDOWN_PARENT(range)
{
	undo();
}

/* Pages 0 to 3 and 6 to 9 are there, 4 and 5 and those from 10 on are not */
static int map_with_holes(struct area *a)
{
	int verdict = map_area(a, 1, 12);

	if (!verdict && (munmap(page_at(a, 4), 2 * psize()) ||
			 munmap(page_at(a, 10), 2 * psize())))
		verdict = say(UNFIT, "munmap: %s", strerror(errno));
	drain_all();
	return verdict;
}

static int holes(size_t from, size_t to, long before, long after)
{
	struct area a;
	int verdict;

	verdict = map_with_holes(&a) ?:
		  refuses(page_at(&a, from), (to - from) * psize(), ENOMEM) ?:
		  lazy_is(&a, 0, 4, before) ?: lazy_is(&a, 6, 4, after);
	unmap_area(&a);
	return verdict;
}

TEST_F_TIMEOUT(range, hole_within, CASE_SECONDS)
{
	conclude(_metadata, holes(0, 10, 4, 4));
}

TEST_F_TIMEOUT(range, hole_at_start, CASE_SECONDS)
{
	conclude(_metadata, holes(4, 10, 0, 4));
}

TEST_F_TIMEOUT(range, hole_at_end, CASE_SECONDS)
{
	conclude(_metadata, holes(2, 12, 2, 4));
}

static int no_range(void)
{
	struct area a;
	int verdict = map_with_holes(&a);

	if (verdict)
		return verdict;
	if (madvise(a.mem, 0, MADV_FREE) ||
	    madvise(page_at(&a, 4), 0, MADV_FREE))
		return say(BROKEN, "empty range: %s", strerror(errno));
	return lazy_is(&a, 0, 4, 0);
}

TEST_F_TIMEOUT(range, empty, CASE_SECONDS)
{
	conclude(_metadata, no_range());
}

static int bad_range(void)
{
	struct area a;

	return map_area(&a, 1, 4) ?: refuses(a.mem + 1, psize(), EINVAL) ?:
	       refuses(a.mem + psize() / 2, 0, EINVAL) ?:
	       refuses(a.mem, -1UL, EINVAL) ?:
	       refuses(a.mem, -(size_t)psize(), EINVAL) ?: lazy_is(&a, 0, 4, 0);
}

TEST_F_TIMEOUT(range, unaligned_or_too_long, CASE_SECONDS)
{
	conclude(_metadata, bad_range());
}

static int odd_length(void)
{
	struct area a;
	int verdict = map_area(&a, 1, 6);

	drain_all();
	if (verdict)
		return verdict;
	if (madvise(a.mem, 1, MADV_FREE) ||
	    madvise(page_at(&a, 3), psize() + 1, MADV_FREE))
		return say(BROKEN, "MADV_FREE: %s", strerror(errno));
	verdict = lazy_is(&a, 0, 6, 3) ?: part_drops(&a, 0, 1) ?:
		  part_drops(&a, 3, 2) ?:
		  all_look(&a, 1, 2, KEPT, "not asked for");
	return verdict ?: all_look(&a, 5, 1, KEPT, "not asked for");
}

TEST_F_TIMEOUT(range, length_rounds_up, CASE_SECONDS)
{
	conclude(_metadata, odd_length());
}

/*
 * "swapless": nothing can be swapped out, and a cgroup is at its limit.  There
 * is room only if lazily free memory is dropped; a page written to stays.
 */
FIXTURE(swapless) {};

FIXTURE_SETUP(swapless)
{
	set_up(_metadata, false);
}

FIXTURE_TEARDOWN_PARENT(swapless)
{
	undo();
}

FIXTURE_VARIANT(swapless)
{
	bool gen;
	bool noio;
};

FIXTURE_VARIANT_ADD(swapless, classic_lru) { };
FIXTURE_VARIANT_ADD(swapless, mglru) { .gen = true };
FIXTURE_VARIANT_ADD(swapless, classic_lru_noio) { .noio = true };
/* 6.12: MGLRU takes lazily free pages only if it may do I/O, so OOM kills */
FIXTURE_VARIANT_ADD(swapless, mglru_noio) { .gen = true, .noio = true };

/* Whoever uses the backing file of a loop device must not do I/O to reclaim */
static int write_noio(size_t pages)
{
	size_t len = pages * psize();
	char path[32], *buf = map_aligned(1, 16);
	int fd, loop;
	size_t at;
	ssize_t n;

	loop = make_loop(path, sizeof(path), 2 * len, &fd);
	if (!buf || loop < 0)
		return say(UNFIT, "no loop device");
	memset(buf, MARK, 16 * psize());
	if (!set_group("memory.max", group_number("memory.current") + 262144))
		return say(UNFIT, "memory.max: %s", strerror(errno));
	for (at = 0; at < len; at += n) {
		n = pwrite(fd, buf, 16 * psize(), at);
		if (n <= 0)
			return say(BROKEN, "at the limit: %s", strerror(errno));
	}
	return FINE;
}

static int live_within(const void *arg)
{
	bool noio = *(const bool *)arg;
	struct area b, c;
	int verdict = map_area(&b, 1, 1024);
	size_t i;

	drain_all();
	verdict = verdict ?: give_all(&b);
	drain_all();
	for (i = 0; i < 64; i++)
		touch(&b, i);
	if (verdict)
		return verdict;
	if (noio) {
		verdict = write_noio(512);
	} else {
		if (!set_group("memory.max",
			       group_number("memory.current") + 262144))
			return say(UNFIT, "memory.max: %s", strerror(errno));
		verdict = map_area(&c, 1, 768) ?:
			  all_look(&c, 0, 768, KEPT, "allocated");
	}
	/* Room to look at it */
	put_text(in_group("memory.max"), "max");
	return verdict ?: all_look(&b, 0, 64, TOUCHED, "written to") ?:
	       all_look(&b, 64, 960, KEPT | GONE, "not written to");
}

static int swapless(bool gen, bool noio)
{
	struct counts before, after;
	int verdict = choose_lru(gen) ?: make_group();

	if (verdict)
		return verdict;
	put_text(in_group("memory.swap.max"), "0");
	count(&before);
	verdict = run_inside(live_within, &noio);
	count(&after);
	if (verdict)
		return verdict;
	if (number_of(in_group("memory.events"), "oom_kill"))
		return say(BROKEN, "the OOM killer was needed");
	if (after.n[DROPPED] - before.n[DROPPED] < 256)
		return say(BROKEN, "%ld lazily free pages were dropped",
			   after.n[DROPPED] - before.n[DROPPED]);
	return FINE;
}

TEST_F_TIMEOUT(swapless, limit, CASE_SECONDS)
{
	conclude(_metadata, swapless(variant->gen, variant->noio));
}

/*
 * "folio": small pages, folios of 64 KiB, and huge pages.
 */
FIXTURE(folio) {};

FIXTURE_SETUP(folio)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(folio)
{
	undo();
}

FIXTURE_VARIANT(folio)
{
	size_t kib;		/* of a folio; 0: a page, 1: a huge page */
	size_t units;
};

FIXTURE_VARIANT_ADD(folio, base) { .units = 77 };
FIXTURE_VARIANT_ADD(folio, size_64k) { .kib = 64, .units = 4 };
FIXTURE_VARIANT_ADD(folio, pmd) { .kib = 1, .units = 1 };

static size_t unit_of(size_t kib)
{
	if (kib < 2)
		return kib ? pmd_pages() : 1;
	return (kib << 10) / psize();
}

static int map_variant(size_t kib, size_t units)
{
	size_t unit = unit_of(kib);

	if (!unit || unit * units > MAX_PAGES)
		return say(UNFIT, "no folio of a suitable size");
	return map_area(&area, unit, unit * units);
}

/* All are marked, and all go: without a split, and without swap */
static int marked_and_dropped(void)
{
	long pages = area.pages, split = splits(area.unit);
	struct counts before;
	int verdict;

	drain_all();
	count(&before);
	verdict = give_all(&area) ?: all_lazy(&area) ?:
		  counted(&before, MARKED, pages) ?: still_whole(&area) ?:
		  drops(&area) ?: counted(&before, DROPPED, pages) ?:
		  counted(&before, OUT, 0) ?: counted(&before, SPLIT, 0) ?:
		  counted(&before, SPLIT_PMD, 0);
	if (!verdict && splits(area.unit) != split)
		verdict = say(BROKEN, "%ld folios were split",
			      splits(area.unit) - split);
	return verdict;
}

TEST_F_TIMEOUT(folio, drops_whole, CASE_SECONDS)
{
	conclude(_metadata, map_variant(variant->kib, variant->units) ?:
		 marked_and_dropped());
}

/* One byte is enough to keep a page, wherever the page goes */
static int rewrite(size_t step)
{
	size_t n = 0, i;
	int verdict;

	drain_all();
	verdict = give_all(&area);
	drain_all();
	for (i = step / 3; i < area.pages; i += step, n++)
		touch(&area, i);
	verdict = verdict ?: push_out(&area);
	if (!verdict && count_swapped(area.mem, area.pages) < n)
		verdict = say(BROKEN, "%zu pages are in swap, %zu were written",
			      count_swapped(area.mem, area.pages), n);
	for (i = 0; i < area.pages && !verdict; i++)
		verdict = all_look(&area, i, 1, i % step == step / 3 ? TOUCHED :
				   KEPT | GONE, "swapped in");
	return verdict;
}

TEST_F_TIMEOUT(folio, rewrite_each_page, CASE_SECONDS)
{
	conclude(_metadata, map_variant(variant->kib, variant->units) ?:
		 rewrite(1));
}

TEST_F_TIMEOUT(folio, rewrite_some_pages, CASE_SECONDS)
{
	conclude(_metadata, map_variant(variant->kib, variant->units) ?:
		 rewrite(variant->kib ? area.unit : 3));
}

/* What a child has too stays as it is for the child, until that is gone */
static int share(void)
{
	int verdict, i;

	drain_all();
	verdict = add_kid() ?: give_all(&area);
	drain_all();
	for (i = 0; i < 3 && !verdict; i++) {
		put_text(in_group("memory.reclaim"), "1M");
		madvise(area.mem, area.pages * psize(), MADV_PAGEOUT);
		verdict = ask(0, PUSH) ?: ask(0, LOOK) ?:
			  all_look(&area, 0, area.pages, KEPT | GONE, "shared");
	}
	verdict = verdict ?: ask(0, REFILL) ?:
		  all_look(&area, 0, area.pages, KEPT | GONE, "child wrote") ?:
		  ask(0, LOOK);
	lose_kids();
	/* Now they are ours alone */
	drain_all();
	return verdict ?: give_all(&area) ?: drops(&area);
}

struct folio_arg {
	size_t kib;
	size_t units;
};

static int map_and_share(const void *arg)
{
	const struct folio_arg *f = arg;

	return map_variant(f->kib, f->units) ?: share();
}

TEST_F_TIMEOUT(folio, shared_by_fork, CASE_SECONDS)
{
	struct folio_arg arg = { variant->kib, variant->units };

	conclude(_metadata, make_group() ?: run_inside(map_and_share, &arg));
}

/* Reclaim meets pages which a pipe has a reference to, and leaves them lazy */
static int hold_and_drop(void)
{
	size_t i;
	int verdict, n;

	drain_all();
	verdict = give_all(&area);
	drain_all();
	if (area.unit == 1)
		verdict = verdict ?: take_grip(area.mem, area.pages);
	for (i = 0; i < area.pages && area.unit > 1 && !verdict; i += area.unit)
		verdict = take_grip(page_at(&area, i + area.unit / 3), 1);
	for (n = 0; n < nr_cpus() && !verdict; n++) {
		hop(n);
		madvise(area.mem, area.pages * psize(), MADV_PAGEOUT);
	}
	drop_grip();
	return verdict ?: drops(&area);
}

/* 6.12: one reference too many makes the page an ordinary one again */
TEST_F_TIMEOUT(folio, extra_reference, CASE_SECONDS)
{
	conclude(_metadata, map_variant(variant->kib, variant->units) ?:
		 hold_and_drop());
}

/*
 * "half": of a large folio; the other half is none of MADV_FREE's business.
 */
FIXTURE(half) {};

FIXTURE_SETUP(half)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(half)
{
	undo();
}

FIXTURE_VARIANT(half)
{
	size_t kib;
	enum { NO_PIN, PIN_FREED, PIN_OTHER } pin;
};

FIXTURE_VARIANT_ADD(half, size_64k) { .kib = 64 };
FIXTURE_VARIANT_ADD(half, pmd) { .kib = 1 };
FIXTURE_VARIANT_ADD(half, pmd_pinned_within) { .kib = 1, .pin = PIN_FREED };
FIXTURE_VARIANT_ADD(half, pmd_pinned_beside) { .kib = 1, .pin = PIN_OTHER };

static int give_pinned(size_t pages, size_t pinned)
{
	int fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	struct pin_longterm_test pin = {
		.addr = (uintptr_t)page_at(&area, pinned),
		.size = psize(),
	};
	struct area copy = area;
	__u64 at;
	int verdict;

	if (fd < 0)
		return say(UNFIT, "no " GUP_TEST);
	if (ioctl(fd, PIN_LONGTERM_TEST_START, &pin))
		return say(UNFIT, "cannot pin: %s", strerror(errno));
	verdict = give(&area, 0, pages);
	madvise(area.mem, pages * psize(), MADV_PAGEOUT);
	/* Page by page: what the pin has is what was there */
	copy.mem = map_aligned(1, area.pages);
	at = (uintptr_t)page_at(&copy, pinned);
	if (!verdict && ioctl(fd, PIN_LONGTERM_TEST_READ, &at))
		verdict = say(BROKEN, "pinned page: %s", strerror(errno));
	verdict = verdict ?: all_look(&copy, pinned, 1, KEPT, "pinned");
	ioctl(fd, PIN_LONGTERM_TEST_STOP);
	close(fd);
	drain_all();
	if (!verdict && smaps_sum(area.mem, pages * psize(), "Rss") !=
	    smaps_sum(area.mem, pages * psize(), "LazyFree")) {
		ksft_print_msg("a second call is needed after the unpin\n");
		verdict = give(&area, 0, pages);
	}
	return verdict;
}

static int half_of_folio(size_t kib, int pin)
{
	size_t half;
	int verdict = map_variant(kib, 1);

	half = area.pages / 2;
	drain_all();
	if (pin)
		verdict = verdict ?:
			  give_pinned(half, pin == PIN_FREED ? 3 : half + 3);
	else
		verdict = verdict ?: give(&area, 0, half) ?:
			  lazy_is(&area, 0, 2 * half, half);
	return verdict ?: all_look(&area, half, half, KEPT, "other half") ?:
	       part_drops(&area, 0, half) ?: push_part(&area, half, half) ?:
	       all_look(&area, half, half, KEPT, "other half in swap");
}

TEST_F_TIMEOUT(half, drops, CASE_SECONDS)
{
	conclude(_metadata, half_of_folio(variant->kib, variant->pin));
}

/*
 * "remote": pages which sit in the LRU batch of another CPU.
 */
FIXTURE(remote) {};

FIXTURE_SETUP(remote)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(remote)
{
	undo();
}

FIXTURE_VARIANT(remote)
{
	size_t pages;
};

FIXTURE_VARIANT_ADD(remote, pages_1) { .pages = 1 };
FIXTURE_VARIANT_ADD(remote, pages_14) { .pages = 14 };
FIXTURE_VARIANT_ADD(remote, pages_100) { .pages = 100 };

static int give_remote(size_t pages)
{
	struct counts before;
	int verdict;

	if (nr_cpus() < 2)
		return say(UNFIT, "needs two CPUs");
	drain_all();
	count(&before);
	hop(1);
	verdict = map_area(&area, 1, pages);
	hop(0);
	return verdict ?: give_all(&area) ?: all_lazy(&area) ?:
	       counted(&before, MARKED, pages) ?: drops(&area) ?:
	       counted(&before, DROPPED, pages) ?: counted(&before, OUT, 0);
}

/* 6.12: they do not become lazily free, and are swapped out later */
TEST_F_TIMEOUT(remote, lru_batch, CASE_SECONDS)
{
	conclude(_metadata, give_remote(variant->pages));
}

/*
 * "lazy": one at a time.
 */
FIXTURE(lazy) {};

FIXTURE_SETUP(lazy)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(lazy)
{
	undo();
}

static int every_order(void)
{
	unsigned long orders = thp_supported_orders();
	int verdict = FINE, order, n = 0;

	for (order = 1; order < NR_ORDERS && !verdict; order++) {
		if (!(orders & (1UL << order)) || 1UL << order > MAX_PAGES)
			continue;
		verdict = map_area(&area, 1UL << order, 1UL << order) ?:
			  marked_and_dropped();
		unmap_area(&area);
		n++;
	}
	return n || verdict ? verdict : say(UNFIT, "no large folios");
}

TEST_F_TIMEOUT(lazy, every_order, CASE_SECONDS)
{
	conclude(_metadata, every_order());
}

static int reclaim_own(const void *unused)
{
	long marked, dropped;
	int verdict, try;

	marked = group_stat("pglazyfree");
	dropped = group_stat("pglazyfreed");
	verdict = map_area(&area, 1, 512);
	drain_all();
	verdict = verdict ?: give_all(&area) ?: all_lazy(&area) ?:
		  group_stat_comes("pglazyfree", marked + 512);
	for (try = 0; try < 20 && !verdict; try++) {
		put_text(in_group("memory.reclaim"), "1M");
		if (!smaps_sum(area.mem, 512 * psize(), "Rss"))
			break;
	}
	return verdict ?: group_stat_comes("pglazyfreed", dropped + 512) ?:
	       none_swapped(&area, 0, 512) ?:
	       all_look(&area, 0, 512, GONE, "after reclaim");
}

TEST_F_TIMEOUT(lazy, memory_cgroup, CASE_SECONDS)
{
	conclude(_metadata, make_group() ?: run_inside(reclaim_own, NULL));
}

/* The example of the first patch: swapped out, read, and not wanted any more */
static int read_then_give(void)
{
	long used = slots_used();

	return map_area(&area, 1, 40) ?: evict(area.mem, area.pages) ?:
	       all_look(&area, 0, 40, KEPT, "swapped in") ?:
	       give_all(&area) ?: all_lazy(&area) ?:
	       slots_are(used, "lazily free") ?: drops(&area);
}

TEST_F_TIMEOUT(lazy, read_from_swap, CASE_SECONDS)
{
	conclude(_metadata, read_then_give());
}

/* Twice the same: what is lazily free already is still that */
static int give_twice(void)
{
	int verdict = map_area(&area, 1, 40);

	drain_all();
	return verdict ?: give_all(&area) ?: all_lazy(&area) ?:
	       give_all(&area) ?: all_lazy(&area) ?: drops(&area) ?:
	       give_all(&area) ?: all_look(&area, 0, 40, GONE, "again");
}

TEST_F_TIMEOUT(lazy, again, CASE_SECONDS)
{
	conclude(_metadata, give_twice());
}

/* Every page but one was given; the one is in use all the time */
static int one_hot(void)
{
	size_t pages = pmd_pages(), hot = pages / 2;
	long start, scans;
	char buf[32];
	int verdict;

	verdict = choose_unit(pages);
	area.mem = map_aligned(pages, pages);
	area.pages = pages;
	if (verdict || !area.mem)
		return verdict ?: say(UNFIT, "mmap: %s", strerror(errno));
	madvise(area.mem, pages * psize(), MADV_NOHUGEPAGE);
	fill(&area);
	drain_all();
	verdict = give(&area, 0, hot) ?:
		  give(&area, hot + 1, pages - hot - 1) ?:
		  lazy_is(&area, 0, pages, pages - 1);
	if (verdict)
		return verdict;

	turn(KHUGEPAGED "max_ptes_none", "511");
	turn(KHUGEPAGED "pages_to_scan", "4096");
	turn(KHUGEPAGED "alloc_sleep_millisecs", "0");
	if (madvise(area.mem, pages * psize(), MADV_HUGEPAGE) ||
	    get_text(KHUGEPAGED "full_scans", buf, sizeof(buf)) <= 0 ||
	    !turn(KHUGEPAGED "scan_sleep_millisecs", "0"))
		return say(UNFIT, "no khugepaged");
	scans = atol(buf);
	for (start = msecs(); msecs() < start + 5000; usleep(1000)) {
		touch(&area, hot);
		get_text(KHUGEPAGED "full_scans", buf, sizeof(buf));
		if (atol(buf) > scans + 2)
			break;
	}
	madvise(area.mem, pages * psize(), MADV_NOHUGEPAGE);
	turn(KHUGEPAGED "scan_sleep_millisecs", "10000");
	if (atol(buf) <= scans + 2)
		return say(UNFIT, "khugepaged does not come round");
	if (smaps_sum(area.mem, pages * psize(), "AnonHugePages"))
		return say(BROKEN, "collapsed into a huge page");
	return lazy_is(&area, 0, pages, pages - 1) ?:
	       part_drops(&area, 0, hot) ?:
	       part_drops(&area, hot + 1, pages - hot - 1) ?:
	       all_look(&area, hot, 1, TOUCHED, "the one in use");
}

/* 6.12: khugepaged makes an ordinary huge page of them */
TEST_F_TIMEOUT(lazy, khugepaged, CASE_SECONDS)
{
	conclude(_metadata, one_hot());
}

static long tlb_interrupts(void)
{
	FILE *f = fopen("/proc/interrupts", "r");
	char line[1024], *at, *end;
	long sum = -1, n;

	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f)) {
		at = line + strspn(line, " ");
		if (strncmp(at, "TLB:", 4))
			continue;
		for (sum = 0, at += 4;; at = end) {
			n = strtol(at, &end, 10);
			if (end == at)
				break;
			sum += n;
		}
	}
	fclose(f);
	return sum;
}

/* A range of 64 mappings, and a thread on another CPU which has them cached */
static int many_mappings(void)
{
	struct pest spin = {};
	long before = 0, after = 0;
	size_t i;
	int verdict, try;

	if (nr_cpus() < 2 || tlb_interrupts() < 0)
		return say(UNFIT, "TLB interrupts are not counted");
	verdict = map_area(&area, 1, 64);
	for (i = 0; i < 64; i += 2)
		madvise(page_at(&area, i), psize(), MADV_DONTDUMP);
	drain_all();
	hop(0);
	verdict = verdict ?: start_pest(&spin, &area, 0);
	if (verdict)
		return verdict;
	/* None, if the thread is not on its CPU in that moment */
	for (try = 0; try < 10 && !verdict && after == before; try++) {
		fill(&area);
		before = tlb_interrupts();
		verdict = give_all(&area);
		after = tlb_interrupts();
	}
	stop_pest(&spin);
	if (!verdict && after == before)
		verdict = say(BROKEN, "no TLB was flushed");
	if (!verdict && after - before > 2)
		verdict = say(BROKEN, "%ld TLB flushes, not one",
			      after - before);
	return verdict ?: all_lazy(&area) ?: drops(&area);
}

/* 6.12: one flush for each mapping */
TEST_F_TIMEOUT(lazy, one_tlb_flush, CASE_SECONDS)
{
	conclude(_metadata, many_mappings());
}

/*
 * "swapped": pages which are in swap when they are given.
 */
FIXTURE(swapped) {};

FIXTURE_SETUP(swapped)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(swapped)
{
	undo();
}

/* VmSwap is of a counter with a part for each CPU: not exact to the page */
static int vm_swap_fell(long from, long pages)
{
	long to = number_of("/proc/self/status", "VmSwap") / (psize() >> 10);
	long fuzz = 64 * sysconf(_SC_NPROCESSORS_CONF);

	if (labs(from - to - pages) <= fuzz)
		return FINE;
	return say(BROKEN, "VmSwap %ld -> %ld, not %ld less", from, to, pages);
}

static int give_swapped(const void *unused)
{
	long used, vm_swap, charged, pages = 1024;
	int verdict;

	verdict = map_area(&area, 1, pages) ?: evict(area.mem, pages);
	if (verdict)
		return verdict;
	used = slots_used();
	charged = group_number("memory.swap.current");
	vm_swap = number_of("/proc/self/status", "VmSwap") / (psize() >> 10);
	verdict = give_all(&area);
	if (!verdict && smaps_sum(area.mem, pages * psize(), "Swap"))
		verdict = say(BROKEN, "there are swap entries left");
	verdict = verdict ?: vm_swap_fell(vm_swap, pages) ?:
		  slots_are(used - pages, "given");
	charged -= group_number("memory.swap.current");
	if (!verdict && !slack && charged != pages * psize())
		verdict = say(BROKEN, "memory.swap.current fell by %ld pages",
			      charged / psize());
	return verdict ?: all_look(&area, 0, pages, GONE, "given");
}

TEST_F_TIMEOUT(swapped, slots_freed, CASE_SECONDS)
{
	conclude(_metadata, make_group() ?: run_inside(give_swapped, NULL));
}

/* Entries of others stay: one sharer, and more than a byte can count */
static int give_shared(int sharers, size_t pages)
{
	long used, before;
	int verdict, i;

	before = slots_used();
	verdict = map_area(&area, 1, pages) ?: evict(area.mem, pages);
	for (i = 0; i < sharers && !verdict; i++)
		verdict = add_kid();
	used = slots_used();
	verdict = verdict ?: give_all(&area);
	for (i = 1; i < sharers && !verdict; i += 2)
		verdict = ask(i, GIVE);
	verdict = verdict ?: slots_are(used, "others have them");
	if (!verdict && count_swapped(area.mem, pages))
		verdict = say(BROKEN, "there are swap entries left");
	for (i = 0; i < sharers && !verdict; i += 2)
		verdict = ask(i, LOOK);
	verdict = verdict ?: all_look(&area, 0, pages, GONE, "given");
	for (i = 0; i < sharers && !verdict; i += 2)
		verdict = ask(i, GIVE);
	/* The children read them, so there may be pages which are still shared */
	lose_kids();
	return verdict ?: slots_are(before, "all have given them");
}

TEST_F_TIMEOUT(swapped, shared_with_child, CASE_SECONDS)
{
	conclude(_metadata, give_shared(1, 64));
}

TEST_F_TIMEOUT(swapped, shared_by_many, CASE_SECONDS)
{
	conclude(_metadata, give_shared(70, 2));
}

/* Every second page was read again */
static int give_mixed(void)
{
	long used = slots_used();
	int verdict;
	size_t i;

	verdict = map_area(&area, 1, 200) ?: evict(area.mem, 200);
	for (i = 0; i < 200 && !verdict; i += 2)
		verdict = all_look(&area, i, 1, KEPT, "swapped in");
	return verdict ?: give_all(&area) ?: slots_are(used, "given") ?:
	       none_swapped(&area, 0, 200) ?: lazy_is(&area, 0, 200, 100) ?:
	       drops(&area);
}

TEST_F_TIMEOUT(swapped, every_second_page, CASE_SECONDS)
{
	conclude(_metadata, give_mixed());
}

/* A large folio was swapped out in one piece, part of it is not wanted */
static int give_half_swapped(void)
{
	long used = slots_used();
	size_t half;
	int verdict;

	verdict = map_variant(1, 1);
	half = area.pages / 2;
	return verdict ?: evict(area.mem, area.pages) ?:
	       slots_are(used + 2 * half, "swapped out") ?:
	       give(&area, half, half) ?: slots_are(used + half, "given") ?:
	       all_look(&area, 0, half, KEPT, "not given") ?:
	       all_look(&area, half, half, GONE, "given") ?:
	       give_all(&area) ?: slots_are(used, "all given");
}

TEST_F_TIMEOUT(swapped, half_of_huge_page, CASE_SECONDS)
{
	conclude(_metadata, give_half_swapped());
}

/* Some of the pages are being written at the time: no slot is lost */
static int give_at_once(void)
{
	long used = slots_used(), start;
	int verdict, i;

	verdict = map_area(&area, 1, 64);
	for (i = 0; i < 20 && !verdict; i++) {
		fill(&area);
		madvise(area.mem, 64 * psize(), MADV_PAGEOUT);
		verdict = give_all(&area) ?:
			  all_look(&area, 0, 64, GONE | KEPT, "given");
	}
	verdict = verdict ?: push_out(&area);
	madvise(area.mem, 64 * psize(), MADV_DONTNEED);
	for (start = msecs(); !verdict && msecs() < start + 1500;) {
		if (!slots_are(used, "in the end"))
			return FINE;
		usleep(50000);
	}
	return verdict ?: slots_are(used, "in the end");
}

/* 6.12: the slot of a page under writeback stays until reclaim finds it */
TEST_F_TIMEOUT(swapped, no_slot_lost, CASE_SECONDS)
{
	conclude(_metadata, give_at_once());
}

/* A marker of a lost page is given up like the page */
static int give_poison(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_poison poison = {};
	int fd, ends[2], verdict;
	size_t i;

	verdict = map_area(&area, 1, 8);
	if (verdict)
		return verdict;
	fd = syscall(__NR_userfaultfd, O_CLOEXEC);
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || pipe2(ends, O_CLOEXEC))
		return say(UNFIT, "userfaultfd: %s", strerror(errno));
	madvise(page_at(&area, 3), 2 * psize(), MADV_DONTNEED);
	reg.range.start = (uintptr_t)area.mem;
	reg.range.len = 8 * psize();
	poison.range.start = (uintptr_t)page_at(&area, 3);
	poison.range.len = 2 * psize();
	if (ioctl(fd, UFFDIO_REGISTER, &reg) ||
	    ioctl(fd, UFFDIO_POISON, &poison))
		return say(UNFIT, "UFFDIO_POISON: %s", strerror(errno));
	ioctl(fd, UFFDIO_UNREGISTER, &reg.range);
	close(fd);
	for (i = 3; i < 5; i++)
		if (write(ends[1], page_at(&area, i), 1) == 1)
			return say(UNFIT, "poison does not hurt");
	drain_all();
	verdict = give_all(&area) ?: lazy_is(&area, 0, 8, 6);
	for (i = 3; i < 5 && !verdict; i++)
		if (write(ends[1], page_at(&area, i), 1) != 1)
			verdict = say(BROKEN, "page %zu is poisoned still", i);
	return verdict ?: all_look(&area, 3, 2, GONE, "no more poisoned") ?:
	       drops(&area);
}

TEST_F_TIMEOUT(swapped, poison_marker, CASE_SECONDS)
{
	conclude(_metadata, give_poison());
}

/*
 * "slow": swap is on a disk which takes its time, so that it is sure that pages
 * are being written or read when they are given.
 */
FIXTURE(slow) {};

static int slow_swap(void)
{
	__u64 bytes = 8 << 20;
	char loop_path[32], path[32];
	int loop = make_loop(loop_path, sizeof(loop_path), bytes, NULL);
	int verdict, dev, try;

	if (loop < 0 || !label(loop, bytes))
		return say(UNFIT, "no loop device");
	dev = dm_create(SLOW_NAME);
	if (dev < 0)
		return UNFIT;
	verdict = dm_delay(SLOW_NAME, loop_path, bytes / 512, SLOW_MSECS,
			   SLOW_MSECS);
	if (verdict)
		return verdict;
	snprintf(path, sizeof(path), "/dev/dm-%d", dev);
	for (try = 0; try < 100 && access(path, F_OK); try++)
		usleep(10000);
	owe(pay_swapoff, path, "");
	if (swapon(path, SWAP_FLAG_PREFER | SWAP_PRIO_TOP))
		return say(UNFIT, "swapon %s: %s", path, strerror(errno));
	/* Slots of another area in the caches would be used first */
	need_plug();
	empty_slot_caches();
	return slack ? say(UNFIT, "swap slot caches cannot be emptied") : FINE;
}

FIXTURE_SETUP(slow)
{
	int verdict;

	set_up(_metadata, true);
	if (_metadata->exit_code)
		return;
	verdict = slow_swap();
	if (verdict)
		undo();
	conclude(_metadata, verdict);
}

FIXTURE_TEARDOWN_PARENT(slow)
{
	undo();
}

/* Swap entries of pages which are in the swap cache: on their way out */
static int in_flight(const struct area *a)
{
	size_t swapped = count_swapped(a->mem, a->pages);
	size_t cached = count_incore(a->mem, a->pages);

	if (swapped == a->pages && cached == a->pages)
		return FINE;
	return say(UNFIT, "of %zu pages %zu are swapped, %zu in flight",
		   a->pages, swapped, cached);
}

static int slots_come_back(long due)
{
	long start = msecs();
	int verdict;

	usleep(2 * SLOW_MSECS * 1000);
	do {
		verdict = slots_are(due, "the disk is done");
		if (!verdict)
			break;
		usleep(50000);
	} while (msecs() < start + 2000);
	return verdict;
}

static int give_while_written(void)
{
	long used = slots_used();
	int verdict = map_area(&area, 1, 8);

	drain_all();
	madvise(area.mem, 8 * psize(), MADV_PAGEOUT);
	return verdict ?: in_flight(&area) ?: give_all(&area) ?:
	       none_swapped(&area, 0, 8) ?:
	       all_look(&area, 0, 8, GONE, "given") ?: slots_come_back(used);
}

/* 6.12: the slot of a page under writeback stays until reclaim finds it */
TEST_F_TIMEOUT(slow, swap_entry_under_writeback, CASE_SECONDS)
{
	conclude(_metadata, give_while_written());
}

/* Locked in the swap cache until they are read, hence not in core */
static int give_while_read(void)
{
	long used = slots_used(), cached;
	int verdict = map_area(&area, 1, 8) ?: evict(area.mem, 8);

	cached = swap_cached();
	madvise(area.mem, 8 * psize(), MADV_WILLNEED);
	cached = swap_cached() - cached;
	if (!verdict && (cached != 8 || count_incore(area.mem, 8)))
		return say(UNFIT, "%ld of 8 pages are being read", cached);
	return verdict ?: give_all(&area) ?: none_swapped(&area, 0, 8) ?:
	       all_look(&area, 0, 8, GONE, "given") ?: slots_come_back(used);
}

/* 6.12: the slot of a page which is locked stays until reclaim finds it */
TEST_F_TIMEOUT(slow, swap_entry_being_read, CASE_SECONDS)
{
	conclude(_metadata, give_while_read());
}

/* Mapped again while they are being written */
static int give_mapped_while_written(void)
{
	long used = slots_used(), start;
	int verdict = map_area(&area, 1, 8);

	drain_all();
	madvise(area.mem, 8 * psize(), MADV_PAGEOUT);
	verdict = verdict ?: in_flight(&area) ?:
		  all_look(&area, 0, 8, KEPT, "on the way") ?:
		  flags_come(area.mem, 8, F_WRITEBACK | F_SWAPCACHE, 0, NULL) ?:
		  give_all(&area);
	for (start = msecs(); !verdict && msecs() < start + 2000;) {
		if (!all_lazy(&area))
			break;
		usleep(50000);
	}
	return verdict ?: all_lazy(&area) ?: slots_are(used, "lazily free") ?:
	       drops(&area);
}

/* Somebody in the same process, who has to do with the mapping */
static bool passed;
static long held_up;

static void *pass_by(void *unused)
{
	long start;

	for (; !__atomic_load_n(&passed, __ATOMIC_RELAXED); usleep(2000)) {
		start = msecs();
		mprotect(page_at(&area, 7), psize(), PROT_READ);
		munmap(map_aligned(1, 1), psize());
		mprotect(page_at(&area, 7), psize(), PROT_READ | PROT_WRITE);
		start = msecs() - start;
		if (start > held_up)
			held_up = start;
	}
	return unused;
}

/* What waits for the disk holds up nobody else */
static int give_and_let_pass(void)
{
	int verdict = map_area(&area, 1, 8);
	pthread_t thread;
	long took;

	drain_all();
	madvise(area.mem, 8 * psize(), MADV_PAGEOUT);
	verdict = verdict ?: in_flight(&area);
	passed = false;
	held_up = 0;
	if (verdict || pthread_create(&thread, NULL, pass_by, NULL))
		return verdict ?: say(UNFIT, "no thread");
	took = msecs();
	verdict = give_all(&area);
	took = msecs() - took;
	__atomic_store_n(&passed, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	ksft_print_msg("took %ld ms, others were held up for %ld ms\n", took,
		       held_up);
	if (!verdict && held_up > SLOW_MSECS / 2)
		verdict = say(BROKEN, "others were held up for %ld ms", held_up);
	return verdict ?: all_look(&area, 0, 8, GONE, "given");
}

TEST_F_TIMEOUT(slow, others_pass, CASE_SECONDS)
{
	conclude(_metadata, give_and_let_pass());
}

/* 6.12: a page under writeback is passed over */
TEST_F_TIMEOUT(slow, page_under_writeback, CASE_SECONDS)
{
	conclude(_metadata, give_mapped_while_written());
}

/*
 * "order": what reclaim takes first.  There is more lazily free memory than is
 * asked for, besides ordinary memory and page cache which is still in use.
 */
FIXTURE(order) {};

FIXTURE_SETUP(order)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(order)
{
	undo();
}

FIXTURE_VARIANT(order)
{
	bool gen;
	bool limit;
};

FIXTURE_VARIANT_ADD(order, classic_lru) { };
FIXTURE_VARIANT_ADD(order, classic_lru_limit) { .limit = true };
FIXTURE_VARIANT_ADD(order, mglru) { .gen = true };
FIXTURE_VARIANT_ADD(order, mglru_limit) { .gen = true, .limit = true };

#define CACHE_PAGES	512
#define ANON_PAGES	512
#define LAZY_PAGES	1536
#define DEMAND_PAGES	768

static bool read_file_through(int fd)
{
	static char buf[65536];
	size_t at, len = CACHE_PAGES * psize();
	ssize_t n;

	for (at = 0; at < len; at += n) {
		n = pread(fd, buf, sizeof(buf), at);
		if (n <= 0)
			return false;
	}
	return true;
}

static size_t cached_pages(void *map)
{
	static unsigned char vec[CACHE_PAGES];
	size_t n = 0, i;

	if (mincore(map, CACHE_PAGES * psize(), vec))
		return 0;
	for (i = 0; i < CACHE_PAGES; i++)
		n += vec[i] & 1;
	return n;
}

static int demand(bool limit, struct area *c)
{
	char buf[32];

	if (limit) {
		if (!set_group("memory.max",
			       group_number("memory.current") + 262144))
			return say(UNFIT, "memory.max: %s", strerror(errno));
		return map_area(c, 1, DEMAND_PAGES + 64);
	}
	snprintf(buf, sizeof(buf), "%ld", (long)DEMAND_PAGES * psize());
	if (put_text(in_group("memory.reclaim"), buf))
		return FINE;
	return say(BROKEN, "memory.reclaim: %s", strerror(errno));
}

static int take_in_order(const void *arg)
{
	bool limit = *(const bool *)arg;
	struct area a, b, c = {};
	struct counts before;
	char path[32];
	long left;
	void *map;
	int fd, verdict;

	fd = make_loop(path, sizeof(path), CACHE_PAGES * psize(), NULL);
	if (fd < 0)
		return say(UNFIT, "no loop device");
	map = mmap(NULL, CACHE_PAGES * psize(), PROT_READ, MAP_SHARED, fd, 0);
	verdict = map_area(&a, 1, ANON_PAGES);
	if (map == MAP_FAILED || !read_file_through(fd) ||
	    cached_pages(map) != CACHE_PAGES)
		return say(UNFIT, "no page cache of a loop device");
	verdict = verdict ?: map_area(&b, 1, LAZY_PAGES);
	drain_all();
	verdict = verdict ?: give_all(&b) ?: all_lazy(&b);
	count(&before);
	verdict = verdict ?: demand(limit, &c);
	put_text(in_group("memory.max"), "max");
	if (verdict)
		return verdict;

	left = smaps_sum(b.mem, LAZY_PAGES * psize(), "Rss");
	if (cached_pages(map) != CACHE_PAGES)
		return say(BROKEN, "%zu of %d pages of the cache are left",
			   cached_pages(map), CACHE_PAGES);
	if (!read_file_through(fd))
		return say(BROKEN, "the file cannot be read");
	verdict = counted(&before, OUT, 0) ?: counted(&before, REFAULT, 0) ?:
		  none_swapped(&a, 0, ANON_PAGES);
	if (!verdict && left > LAZY_PAGES - DEMAND_PAGES + 64)
		verdict = say(BROKEN, "%ld of %d lazily free pages are left",
			      left, LAZY_PAGES);
	if (!verdict && limit)
		verdict = none_swapped(&c, 0, c.pages) ?:
			  all_look(&c, 0, c.pages, KEPT, "allocated");
	return verdict ?: all_look(&a, 0, ANON_PAGES, KEPT, "ordinary") ?:
	       all_look(&b, 0, LAZY_PAGES, KEPT | GONE, "lazily free");
}

static int in_order(bool gen, bool limit)
{
	return choose_lru(gen) ?: make_group() ?:
	       run_inside(take_in_order, &limit);
}

/* 6.12: page cache goes first if it came first, with it ordinary memory */
TEST_F_TIMEOUT(order, lazily_free_first, CASE_SECONDS)
{
	conclude(_metadata, in_order(variant->gen, variant->limit));
}

/*
 * "guard": things which are as they were, whoever implements this.
 */
FIXTURE(guard) {};

FIXTURE_SETUP(guard)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(guard)
{
	undo();
}

/* Sealed and read-only memory must not change, and this would be a change */
static int give_sealed(bool writable)
{
	int verdict = map_area(&area, 1, 8);

	drain_all();
	if (verdict)
		return verdict;
	if (!writable && mprotect(area.mem, 8 * psize(), PROT_READ))
		return say(UNFIT, "mprotect: %s", strerror(errno));
	if (syscall(__NR_mseal, area.mem, 8 * psize(), 0UL))
		return say(UNFIT, "mseal: %s", strerror(errno));
	if (writable)
		return give_all(&area) ?: all_lazy(&area) ?: drops(&area);
	return refuses(area.mem, 8 * psize(), EPERM) ?:
	       lazy_is(&area, 0, 8, 0) ?: push_out(&area) ?:
	       all_look(&area, 0, 8, KEPT, "sealed");
}

TEST_F_TIMEOUT(guard, sealed_read_only, CASE_SECONDS)
{
	conclude(_metadata, give_sealed(false));
}

TEST_F_TIMEOUT(guard, sealed_writable, CASE_SECONDS)
{
	conclude(_metadata, give_sealed(true));
}

struct listener {
	int fd;
	struct uffd_msg msg;
};

static void *listen_once(void *arg)
{
	struct listener *l = arg;

	if (read(l->fd, &l->msg, sizeof(l->msg)) != sizeof(l->msg))
		l->msg.event = 0;
	return NULL;
}

static int open_uffd(__u64 features, __u64 mode)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register reg = { .mode = mode };
	int fd = syscall(__NR_userfaultfd, O_CLOEXEC);

	reg.range.start = (uintptr_t)area.mem;
	reg.range.len = area.pages * psize();
	if (fd >= 0 && (ioctl(fd, UFFDIO_API, &api) ||
			ioctl(fd, UFFDIO_REGISTER, &reg))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Who manages the memory is told, before the call returns */
static int tell_uffd(void)
{
	struct listener l = {};
	pthread_t thread;
	int verdict = map_area(&area, 1, 8);

	drain_all();
	l.fd = open_uffd(UFFD_FEATURE_EVENT_REMOVE,
			 UFFDIO_REGISTER_MODE_MISSING);
	if (verdict || l.fd < 0)
		return say(UNFIT, "userfaultfd: %s", strerror(errno));
	if (pthread_create(&thread, NULL, listen_once, &l))
		return say(UNFIT, "no thread");
	verdict = give(&area, 2, 4);
	if (verdict)
		pthread_cancel(thread);
	pthread_join(thread, NULL);
	close(l.fd);
	if (!verdict && (l.msg.event != UFFD_EVENT_REMOVE ||
			 l.msg.arg.remove.start !=
			 (uintptr_t)page_at(&area, 2) ||
			 l.msg.arg.remove.end != (uintptr_t)page_at(&area, 6)))
		verdict = say(BROKEN, "no event of the right range (%d)",
			      l.msg.event);
	return verdict ?: lazy_is(&area, 0, 8, 4) ?: part_drops(&area, 2, 4);
}

TEST_F_TIMEOUT(guard, userfaultfd_event, CASE_SECONDS)
{
	conclude(_metadata, tell_uffd());
}

static int keep_uffd_wp(void)
{
	struct uffdio_writeprotect wp = { .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	int verdict = map_area(&area, 1, 8), fd;
	size_t i, n = 0;

	drain_all();
	fd = open_uffd(0, UFFDIO_REGISTER_MODE_WP);
	wp.range.start = (uintptr_t)area.mem;
	wp.range.len = 4 * psize();
	if (verdict || fd < 0 || ioctl(fd, UFFDIO_WRITEPROTECT, &wp))
		return say(UNFIT, "userfaultfd: %s", strerror(errno));
	verdict = give_all(&area) ?: all_lazy(&area);
	if (!get_entries(area.mem, 8))
		verdict = say(UNFIT, "pagemap cannot be read");
	for (i = 0; i < 8; i++)
		n += !!(entry[i] & PM_UFFD_WP) == (i < 4);
	close(fd);
	if (!verdict && n != 8)
		verdict = say(BROKEN, "write protection of %zu pages is wrong",
			      8 - n);
	return verdict ?: drops(&area);
}

TEST_F_TIMEOUT(guard, userfaultfd_wp, CASE_SECONDS)
{
	conclude(_metadata, keep_uffd_wp());
}

static int soft_dirty_is(size_t from, size_t to)
{
	size_t i;

	if (!get_entries(area.mem, area.pages))
		return say(UNFIT, "pagemap cannot be read");
	for (i = 0; i < area.pages; i++)
		if (!(entry[i] & PM_SOFT_DIRTY) == (i >= from && i < to))
			return say(BROKEN, "page %zu: soft-dirty is %d", i,
				   !!(entry[i] & PM_SOFT_DIRTY));
	return FINE;
}

static int keep_soft_dirty(void)
{
	int verdict = map_area(&area, 1, 16);
	size_t i;

	if (!softdirty_supported())
		return say(UNFIT, "no soft-dirty bits");
	drain_all();
	clear_softdirty();
	for (i = 4; i < 8; i++)
		touch(&area, i);
	verdict = verdict ?: soft_dirty_is(4, 8) ?: give_all(&area) ?:
		  soft_dirty_is(4, 8) ?: all_lazy(&area);
	for (i = 8; i < 12; i++)
		touch(&area, i);
	return verdict ?: soft_dirty_is(4, 12) ?:
	       all_look(&area, 8, 4, TOUCHED, "written to") ?:
	       part_drops(&area, 0, 8);
}

TEST_F_TIMEOUT(guard, soft_dirty, CASE_SECONDS)
{
	conclude(_metadata, keep_soft_dirty());
}

static int dmirror(int fd, unsigned long command, char *to, long *faults)
{
	struct hmm_dmirror_cmd cmd = {
		.addr = (uintptr_t)area.mem,
		.ptr = (uintptr_t)to,
		.npages = area.pages,
	};
	int err;

	do {
		err = ioctl(fd, command, &cmd);
	} while (err && errno == EINTR);
	if (faults)
		*faults = cmd.faults;
	return err || cmd.cpages != area.pages ? -1 : 0;
}

/* A device which maps the pages has to let them go */
static int notify_device(void)
{
	int fd = open(DMIRROR, O_RDWR | O_CLOEXEC);
	char *to = map_aligned(1, 16);
	long first, second, third;
	int verdict;

	if (fd < 0)
		return say(UNFIT, "no " DMIRROR " (CONFIG_TEST_HMM)");
	verdict = map_area(&area, 1, 16);
	drain_all();
	if (verdict || !to || dmirror(fd, HMM_DMIRROR_READ, to, &first) ||
	    dmirror(fd, HMM_DMIRROR_READ, to, &second) || !first || second)
		return say(UNFIT, "the device does not mirror");
	verdict = give_all(&area);
	if (!verdict && dmirror(fd, HMM_DMIRROR_READ, to, &third))
		verdict = say(BROKEN, "the device cannot read any more");
	if (!verdict && !third)
		verdict = say(BROKEN, "the device still has the pages mapped");
	close(fd);
	return verdict ?: all_lazy(&area) ?: drops(&area);
}

TEST_F_TIMEOUT(guard, mmu_notifier, CASE_SECONDS)
{
	conclude(_metadata, notify_device());
}

/* Pages which a device has are left with it */
static int leave_to_device(unsigned long command)
{
	int fd = open(DMIRROR, O_RDWR | O_CLOEXEC), verdict, try;
	char *to = map_aligned(1, 16);

	if (fd < 0)
		return say(UNFIT, "no " DMIRROR " (CONFIG_TEST_HMM)");
	verdict = map_area(&area, 1, 16);
	if (verdict || !to)
		return say(UNFIT, "mmap: %s", strerror(errno));
	for (try = 0; try < 10; try++) {
		drain_all();
		if (!dmirror(fd, command, to, NULL) &&
		    count_swapped(area.mem, 16) == 16)
			break;
	}
	if (count_swapped(area.mem, 16) != 16)
		return say(UNFIT, "the device does not take the pages");
	verdict = give_all(&area);
	if (!verdict && count_swapped(area.mem, 16) != 16)
		verdict = say(BROKEN, "entries of the device are gone");
	verdict = verdict ?: all_look(&area, 0, 16, KEPT, "from the device");
	close(fd);
	return verdict;
}

TEST_F_TIMEOUT(guard, device_private, CASE_SECONDS)
{
	conclude(_metadata, leave_to_device(HMM_DMIRROR_MIGRATE_TO_DEV));
}

TEST_F_TIMEOUT(guard, device_exclusive, CASE_SECONDS)
{
	conclude(_metadata, leave_to_device(HMM_DMIRROR_EXCLUSIVE));
}

/*
 * "keeps": one byte was written after the call, and then something happens to
 * the page which loses it if what tells that it was written gets lost.
 */
FIXTURE(keeps) {};

FIXTURE_SETUP(keeps)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(keeps)
{
	undo();
}

/* Every second page is written to after the call, the others are not */
static int map_touched(size_t unit, size_t pages)
{
	size_t i;
	int verdict = map_area(&area, unit, pages);

	drain_all();
	verdict = verdict ?: give_all(&area);
	drain_all();
	for (i = 0; i < pages && !verdict; i += 2)
		touch(&area, i);
	return verdict;
}

static int touched_survive(const char *when)
{
	return still_touched(when) ?: push_out(&area) ?:
	       still_touched("and swapped in");
}

static int keep_at_fork(void)
{
	int verdict = map_touched(1, 64) ?: add_kid(), i;

	for (i = 0; i < 3 && !verdict; i++) {
		verdict = ask(0, PUSH) ?: ask(0, LOOK_TOUCHED) ?:
			  still_touched("with a child");
		madvise(area.mem, 64 * psize(), MADV_PAGEOUT);
	}
	verdict = verdict ?: ask(0, REFILL) ?: ask(0, LOOK) ?:
		  still_touched("the child wrote");
	lose_kids();
	return verdict ?: touched_survive("without the child");
}

TEST_F_TIMEOUT(keeps, fork, CASE_SECONDS)
{
	conclude(_metadata, keep_at_fork());
}

/*
 * A page that was copied for somebody who only reads through a pin, so that
 * nothing of it is dirty, neither the entry nor the page: the content is wanted
 * all the same.  A child gives it, which is for the child to say of its own.
 *
 * 6.12: the parent loses it
 */
static int keep_clean_copy(void)
{
	const size_t pages = 64;
	struct iovec from, to;
	int verdict = map_area(&area, 1, pages) ?: add_kid(), i;

	if (verdict)
		return verdict;
	from.iov_base = area.mem;
	from.iov_len = pages * psize();
	to.iov_len = from.iov_len;
	to.iov_base = malloc(to.iov_len);
	if (!to.iov_base ||
	    process_vm_readv(getpid(), &to, 1, &from, 1, 0) !=
	    (ssize_t)to.iov_len)
		return say(UNFIT, "process_vm_readv: %s", strerror(errno));
	free(to.iov_base);
	lose_kids();
	drain_all();
	verdict = add_kid() ?: ask(0, GIVE);
	lose_kids();
	for (i = 0; i < 5 && !verdict; i++) {
		madvise(area.mem, pages * psize(), MADV_PAGEOUT);
		drain_all();
	}
	return verdict ?: all_look(&area, 0, pages, KEPT, "a child gave it");
}

TEST_F_TIMEOUT(keeps, clean_copy, CASE_SECONDS)
{
	conclude(_metadata, keep_clean_copy());
}

static int keep_at_split(void)
{
	size_t pages = pmd_pages();
	int verdict = map_touched(pages, pages);
	long split = splits(pages);
	char text[96];

	snprintf(text, sizeof(text), "%d,%#lx,%#lx", getpid(),
		 (unsigned long)area.mem,
		 (unsigned long)page_at(&area, pages));
	if (!verdict && !put_text(SPLIT_HUGE, text))
		return say(UNFIT, SPLIT_HUGE ": %s", strerror(errno));
	if (!verdict && splits(pages) == split)
		return say(UNFIT, "the huge page was not split");
	return verdict ?: touched_survive("split");
}

/*
 * A device may write to a pinned page, and not everybody who pins one says so
 * afterwards: what reclaim finds pinned is not for it to drop, then or later.
 */
static int keep_pinned(void)
{
	int fd = open(GUP_TEST, O_RDWR | O_CLOEXEC), verdict, try;
	struct pin_longterm_test pin = {
		.size = psize(),
		.flags = PIN_LONGTERM_TEST_FLAG_USE_WRITE,
	};

	if (fd < 0)
		return say(UNFIT, "no " GUP_TEST);
	verdict = map_area(&area, 1, 8);
	if (verdict)
		return verdict;
	pin.addr = (uintptr_t)page_at(&area, 3);
	if (ioctl(fd, PIN_LONGTERM_TEST_START, &pin))
		return say(UNFIT, "cannot pin: %s", strerror(errno));
	verdict = give_all(&area);
	for (try = 0; try < 10; try++) {
		drain_all();
		madvise(area.mem, 8 * psize(), MADV_PAGEOUT);
	}
	if (ioctl(fd, PIN_LONGTERM_TEST_STOP))
		verdict = say(UNFIT, "cannot unpin: %s", strerror(errno));
	close(fd);
	for (try = 0; try < 10; try++) {
		drain_all();
		madvise(area.mem, 8 * psize(), MADV_PAGEOUT);
	}
	return verdict ?: all_look(&area, 3, 1, KEPT, "was pinned") ?:
	       all_look(&area, 0, 3, GONE, "was not pinned");
}

TEST_F_TIMEOUT(keeps, pinned, CASE_SECONDS)
{
	conclude(_metadata, keep_pinned());
}

TEST_F_TIMEOUT(keeps, split, CASE_SECONDS)
{
	conclude(_metadata, keep_at_split());
}

static int keep_at_collapse(void)
{
	size_t pages = pmd_pages(), i;
	int verdict = choose_unit(pages);

	area.mem = map_aligned(pages, pages);
	area.pages = pages;
	if (verdict || !area.mem)
		return verdict ?: say(UNFIT, "mmap: %s", strerror(errno));
	madvise(area.mem, pages * psize(), MADV_NOHUGEPAGE);
	fill(&area);
	drain_all();
	verdict = give_all(&area);
	drain_all();
	for (i = 0; i < pages; i += 2)
		touch(&area, i);
	madvise(area.mem, pages * psize(), MADV_HUGEPAGE);
	if (!verdict && madvise(area.mem, pages * psize(), MADV_COLLAPSE))
		ksft_print_msg("MADV_COLLAPSE: %s\n", strerror(errno));
	madvise(area.mem, pages * psize(), MADV_NOHUGEPAGE);
	return verdict ?: touched_survive("collapsed");
}

TEST_F_TIMEOUT(keeps, collapse, CASE_SECONDS)
{
	conclude(_metadata, keep_at_collapse());
}

static int keep_at_compaction(void)
{
	unsigned long *pfn;
	size_t pages = 1024, moved = 0, i;
	int verdict = map_touched(1, pages);

	pfn = calloc(pages, sizeof(*pfn));
	if (verdict || !pfn || !get_entries(area.mem, pages))
		return verdict ?: say(UNFIT, "pagemap cannot be read");
	for (i = 0; i < pages; i++)
		pfn[i] = PAGEMAP_PFN(entry[i]);
	/* Holes between the pages, so that it is worth while to move them */
	for (i = 0; i < pages; i += 4)
		madvise(page_at(&area, i + 2), psize(), MADV_DONTNEED);
	if (!put_text("/proc/sys/vm/compact_memory", "1"))
		return say(UNFIT, "no compaction");
	get_entries(area.mem, pages);
	for (i = 0; i < pages; i += 4) {
		moved += PAGEMAP_PFN(entry[i]) != pfn[i];
		touch(&area, i + 2);
		verdict = verdict ?:
			  all_look(&area, i, 1, TOUCHED, "compacted") ?:
			  all_look(&area, i + 2, 1, FRESH, "compacted") ?:
			  all_look(&area, i + 1, 1, KEPT | GONE, "compacted");
	}
	ksft_print_msg("%zu of %zu pages were moved\n", moved, pages / 4);
	verdict = verdict ?: push_out(&area);
	for (i = 0; i < pages && !verdict; i += 4)
		verdict = all_look(&area, i, 1, TOUCHED, "swapped in") ?:
			  all_look(&area, i + 2, 1, FRESH, "swapped in") ?:
			  all_look(&area, i + 1, 1, KEPT | GONE, "swapped in");
	free(pfn);
	return verdict;
}

TEST_F_TIMEOUT(keeps, compaction, CASE_SECONDS)
{
	conclude(_metadata, keep_at_compaction());
}

/* The content of every page is that of page 0 of tag @tag */
static int all_same(unsigned int tag, size_t from, size_t pages, int like,
		    const char *when)
{
	struct area one = { .pages = 1, .unit = 1, .tag = tag };
	int verdict = FINE;
	size_t i;

	for (i = from; i < from + pages && !verdict; i++) {
		one.mem = page_at(&area, i);
		verdict = all_look(&one, 0, 1, like, when);
	}
	return verdict;
}

/* Wait for KSM.  KPF_KSM would not tell: 6.12 shows it for all anonymous pages */
static int all_merged(char *mem, size_t pages)
{
	int verdict = UNFIT, try;
	size_t i;

	for (try = 0; try < 500 && verdict; try++) {
		usleep(10000);
		if (!get_entries(mem, pages))
			break;
		for (i = 0; i < pages; i++)
			if (!(entry[i] & PM_PRESENT) ||
			    PAGEMAP_PFN(entry[i]) != PAGEMAP_PFN(entry[0]))
				break;
		verdict = i == pages ? FINE :
			  say(UNFIT, "page %zu is not merged", i);
	}
	return verdict;
}

static int keep_at_merge(void)
{
	struct area one = { .pages = 1, .unit = 1 };
	size_t pages = 32, i;
	int verdict;

	if (!turn(KSM_DIR "pages_to_scan", "2000") ||
	    !turn(KSM_DIR "sleep_millisecs", "5"))
		return say(UNFIT, "no KSM");
	turn(KSM_DIR "smart_scan", "0");
	verdict = map_area(&area, 1, pages);
	one.tag = area.tag;
	for (i = 0; i < pages; i++)
		make_page((__u64 *)page_at(&area, i), one.tag, 0);
	drain_all();
	verdict = verdict ?: give_all(&area);
	drain_all();
	for (i = 0; i < pages && !verdict; i++) {
		one.mem = page_at(&area, i);
		touch(&one, 0);
	}
	if (verdict || madvise(area.mem, pages * psize(), MADV_MERGEABLE))
		return verdict ?: say(UNFIT, "no KSM");
	put_text(KSM_DIR "run", "1");
	verdict = all_merged(area.mem, pages);
	put_text(KSM_DIR "run", "0");
	verdict = verdict ?: all_same(one.tag, 0, pages, TOUCHED, "merged");

	/* Shared by all of them now: half of them are given, the rest stays */
	verdict = verdict ?: give(&area, 0, pages / 2);
	drain_all();
	for (i = 0; i < 4 && !verdict; i++) {
		hop(i);
		madvise(area.mem, pages * psize(), MADV_PAGEOUT);
	}
	return verdict ?:
	       all_same(one.tag, 0, pages / 2, TOUCHED | GONE, "given") ?:
	       all_same(one.tag, pages / 2, pages / 2, TOUCHED, "merged");
}

TEST_F_TIMEOUT(keeps, ksm, CASE_SECONDS)
{
	conclude(_metadata, keep_at_merge());
}

/*
 * "odd": large folios which are mapped in an unusual way.
 */
FIXTURE(odd) {};

FIXTURE_SETUP(odd)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(odd)
{
	undo();
}

/* A child has the second half of the folio, and no part of the first */
static int half_forked(void)
{
	size_t half, i;
	int verdict = map_variant(64, 1);
	char *child_half;

	half = area.pages / 2;
	if (verdict)
		return verdict;
	madvise(area.mem, half * psize(), MADV_DONTFORK);
	/* For the child the area is what it has of it */
	child_half = page_at(&area, half);
	area.mem = child_half;
	area.pages = half;
	fill(&area);
	verdict = add_kid();
	area.mem = child_half - half * psize();
	madvise(area.mem, half * psize(), MADV_DOFORK);
	area.pages = 2 * half;
	drain_all();
	verdict = verdict ?: give_all(&area);
	drain_all();
	for (i = 0; i < 3 && !verdict; i++) {
		madvise(area.mem, area.pages * psize(), MADV_PAGEOUT);
		verdict = ask(0, PUSH) ?: ask(0, LOOK);
	}
	/* Whatever either of them writes, the other does not get it */
	fill(&area);
	verdict = verdict ?: ask(0, LOOK) ?: ask(0, REFILL) ?:
		  all_look(&area, 0, 2 * half, KEPT, "the child wrote") ?:
		  push_out(&area) ?: ask(0, LOOK) ?:
		  all_look(&area, 0, 2 * half, KEPT, "swapped in");
	lose_kids();
	return verdict ?: give_all(&area) ?: drops(&area);
}

TEST_F_TIMEOUT(odd, half_forked, CASE_SECONDS)
{
	conclude(_metadata, half_forked());
}

/* One folio, two page tables */
static int straddle(void)
{
	size_t pages = unit_of(64);
	char *room = map_aligned(pmd_pages(), 2 * pmd_pages());
	char *to;
	int verdict = map_variant(64, 1);

	if (verdict || !room)
		return verdict ?: say(UNFIT, "mmap: %s", strerror(errno));
	to = room + (pmd_pages() - pages / 2) * psize();
	if (mremap(area.mem, pages * psize(), pages * psize(),
		   MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		return say(UNFIT, "mremap: %s", strerror(errno));
	area.mem = to;
	drain_all();
	return give_all(&area) ?: all_lazy(&area) ?: drops(&area);
}

TEST_F_TIMEOUT(odd, across_page_tables, CASE_SECONDS)
{
	conclude(_metadata, straddle());
}

static int last_page_missing(void)
{
	int verdict = map_variant(64, 1);
	size_t rest = area.pages - 1;

	if (verdict)
		return verdict;
	drain_all();
	madvise(page_at(&area, rest), psize(), MADV_DONTNEED);
	return give_all(&area) ?: lazy_is(&area, 0, area.pages, rest) ?:
	       drops(&area);
}

TEST_F_TIMEOUT(odd, last_page_missing, CASE_SECONDS)
{
	conclude(_metadata, last_page_missing());
}

/*
 * "race": with others who change the same memory, for a fraction of a second.
 */
FIXTURE(race) {};

FIXTURE_SETUP(race)
{
	set_up(_metadata, true);
}

FIXTURE_TEARDOWN_PARENT(race)
{
	undo();
}

/* Reclaim has the folios locked, or off the LRU, when they are given */
static int reclaim_at_once(void)
{
	struct pest pest = {};
	long end = msecs() + RACE_MSECS;
	int verdict = map_area(&area, 1, 32);

	while (!verdict && msecs() < end) {
		memset(&pest, 0, sizeof(pest));
		fill(&area);
		verdict = start_pest(&pest, &area, MADV_PAGEOUT);
		if (verdict)
			break;
		verdict = give_all(&area);
		stop_pest(&pest);
		verdict = verdict ?: push_out(&area) ?:
			  all_look(&area, 0, 32, GONE, "a miss");
	}
	return verdict;
}

/* 6.12: a folio which somebody else has isolated or locked may be missed */
TEST_F_TIMEOUT(race, reclaim, CASE_SECONDS)
{
	conclude(_metadata, reclaim_at_once());
}

/* A byte is written while the pages are reclaimed */
static int write_at_once(void)
{
	struct pest pest = {};
	long end = msecs() + RACE_MSECS;
	int verdict = map_area(&area, 1, 32);
	size_t i;

	verdict = verdict ?: start_pest(&pest, &area, MADV_PAGEOUT);
	if (verdict)
		return verdict;
	while (!verdict && msecs() < end) {
		fill(&area);
		verdict = give_all(&area);
		for (i = 0; i < 32; i++)
			touch(&area, i);
		for (i = 0; i < 3; i++)
			verdict = verdict ?: all_look(&area, 0, 32, FRESH |
						      TOUCHED, "written to");
	}
	stop_pest(&pest);
	return verdict;
}

TEST_F_TIMEOUT(race, write, CASE_SECONDS)
{
	conclude(_metadata, write_at_once());
}

static struct clock {
	unsigned long *page;
	unsigned long said;	/* what was written is at least what was said */
	bool stop;
} ticker;

static void *tick(void *unused)
{
	unsigned long n = 0;

	while (!__atomic_load_n(&ticker.stop, __ATOMIC_RELAXED)) {
		__atomic_store_n(&ticker.said, ++n, __ATOMIC_SEQ_CST);
		__atomic_store_n(ticker.page, n, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

/*
 * One thread gives the page, another zaps it, a third writes numbers to it.
 * When the second is back, the page is zero or has a number which was written
 * after that call began: if not, a write went to a page that was gone.
 */
static int zap_and_write(void)
{
	struct pest pest = {};
	long end = msecs() + RACE_MSECS;
	unsigned long said, got;
	pthread_t thread;
	int verdict = map_area(&area, 1, 1);

	ticker.page = (unsigned long *)area.mem;
	*ticker.page = 0;
	verdict = verdict ?: start_pest(&pest, &area, MADV_FREE);
	if (verdict || pthread_create(&thread, NULL, tick, NULL))
		return verdict ?: say(UNFIT, "no thread");
	while (!verdict && msecs() < end) {
		said = __atomic_load_n(&ticker.said, __ATOMIC_SEQ_CST);
		madvise(area.mem, psize(), MADV_DONTNEED);
		got = __atomic_load_n(ticker.page, __ATOMIC_SEQ_CST);
		if (got && got < said)
			verdict = say(BROKEN, "read %lu, written before %lu",
				      got, said);
	}
	__atomic_store_n(&ticker.stop, true, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	stop_pest(&pest);
	return verdict;
}

TEST_F_TIMEOUT(race, dontneed_and_write, CASE_SECONDS)
{
	conclude(_metadata, zap_and_write());
}

static int zap_huge(void)
{
	struct pest pest = {};
	long end = msecs() + RACE_MSECS;
	size_t i;
	int verdict = map_variant(1, 1);

	if (verdict)
		return verdict;
	madvise(area.mem, area.pages * psize(), MADV_HUGEPAGE);
	verdict = start_pest(&pest, &area, MADV_FREE);
	while (!verdict && msecs() < end) {
		for (i = 0; i < area.pages; i++)
			poke((__u64 *)page_at(&area, i), i + 1);
		madvise(area.mem, area.pages * psize(), MADV_DONTNEED);
		for (i = 0; i < area.pages && !verdict; i++)
			if (peek((__u64 *)page_at(&area, i)))
				verdict = say(BROKEN, "page %zu was not zapped",
					      i);
	}
	stop_pest(&pest);
	return verdict;
}

TEST_F_TIMEOUT(race, dontneed_huge_page, CASE_SECONDS)
{
	conclude(_metadata, zap_huge());
}

/* A disk reads into pages which were given, and which are being reclaimed */
static int read_directly(void)
{
	struct area disk = { .pages = 16, .unit = 1 };
	struct pest pest = {};
	size_t len = 16 * psize();
	char path[32], *mem = map_aligned(1, 16);
	int loop = make_loop(path, sizeof(path), len, NULL), fd, verdict;
	long end;

	disk.mem = mem;
	fill(&disk);
	if (loop < 0 || pwrite(loop, mem, len, 0) != (ssize_t)len ||
	    fsync(loop))
		return say(UNFIT, "no loop device");
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	verdict = map_area(&area, 1, 16);
	if (verdict || fd < 0)
		return say(UNFIT, "O_DIRECT: %s", strerror(errno));
	verdict = start_pest(&pest, &area, MADV_PAGEOUT);
	if (verdict)
		return verdict;
	disk.mem = area.mem;
	for (end = msecs() + RACE_MSECS; !verdict && msecs() < end;) {
		memset(area.mem, MARK, len);
		verdict = give_all(&area);
		if (pread(fd, area.mem, len, 0) != (ssize_t)len)
			verdict = say(BROKEN, "read: %s", strerror(errno));
		verdict = verdict ?: all_look(&disk, 0, 16, KEPT, "read");
	}
	stop_pest(&pest);
	close(fd);
	return verdict;
}

TEST_F_TIMEOUT(race, direct_io, CASE_SECONDS)
{
	conclude(_metadata, read_directly());
}

/* Even pages are ours, odd ones are given by a thread whenever it likes */
static void *give_odd_pages(void *arg)
{
	struct pest *p = arg;
	size_t i;

	hop(p->cpu);
	while (!__atomic_load_n(&p->stop, __ATOMIC_RELAXED)) {
		for (i = psize(); i < p->len; i += 2 * psize())
			madvise(p->mem + i, psize(), MADV_FREE);
		madvise(p->mem, p->len, MADV_PAGEOUT);
	}
	return NULL;
}

#define MODEL_PAGES	32

static int check_model(const int *model, const char *when)
{
	int verdict = FINE, i;

	for (i = 0; i < MODEL_PAGES && !verdict; i += 2)
		verdict = all_look(&area, i, 1, model[i], when);
	return verdict;
}

static int check_in_child(const int *model)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(check_model(model, "in the child"));
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return say(BROKEN, "no child, or it died");
	return WEXITSTATUS(status);
}

/* The place which is left stays mapped, nobody else gets it */
static int move_area(char *to)
{
	const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
	size_t at;

	for (at = 0; at < MODEL_PAGES * psize(); at += psize())
		if (mremap(area.mem + at, psize(), psize(), flags, to + at) !=
		    to + at)
			return say(BROKEN, "mremap: %s", strerror(errno));
	area.mem = to;
	return FINE;
}

static int one_step(int *model, char *places[2])
{
	int i = chance(MODEL_PAGES);
	char *at = page_at(&area, i);

	switch (chance(8)) {
	case 0:
	case 1:
		touch(&area, i);
		if (model[i] & (KEPT | TOUCHED))
			model[i] = TOUCHED;
		else
			model[i] = FRESH;
		break;
	case 2:
		make_page((__u64 *)at, area.tag, i);
		model[i] = KEPT;
		break;
	case 3:
		munmap(at, psize());
		if (mmap(at, psize(), PROT_READ | PROT_WRITE, MAP_FIXED |
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != at)
			return say(UNFIT, "mmap: %s", strerror(errno));
		model[i] = GONE;
		break;
	case 4:
		madvise(at, psize(), MADV_DONTNEED);
		model[i] = GONE;
		break;
	case 5:
		madvise(area.mem, MODEL_PAGES * psize(), MADV_PAGEOUT);
		break;
	case 6:
		return check_in_child(model);
	case 7:
		return move_area(area.mem == places[0] ? places[1] : places[0]);
	}
	return FINE;
}

static int follow_model(void)
{
	struct pest pest = { .cpu = 1 };
	int model[MODEL_PAGES], verdict, i;
	char *places[2];
	long end;

	verdict = map_area(&area, 1, MODEL_PAGES);
	places[0] = area.mem;
	places[1] = map_aligned(1, MODEL_PAGES);
	for (i = 0; i < MODEL_PAGES; i++)
		model[i] = KEPT;
	pest.mem = places[0];
	pest.len = MODEL_PAGES * psize();
	if (verdict ||
	    pthread_create(&pest.thread, NULL, give_odd_pages, &pest))
		return verdict ?: say(UNFIT, "no thread");
	end = msecs() + 2 * RACE_MSECS;
	while (!verdict && msecs() < end) {
		verdict = one_step(model, places);
		if (!chance(8))
			verdict = verdict ?: check_model(model, "model");
	}
	stop_pest(&pest);
	return verdict ?: check_model(model, "in the end");
}

TEST_F_TIMEOUT(race, fork_munmap_mremap, CASE_SECONDS)
{
	conclude(_metadata, follow_model());
}

static void *swap_on_and_off(void *arg)
{
	struct pest *p = arg;

	while (!__atomic_load_n(&p->stop, __ATOMIC_RELAXED)) {
		ledger->plug_on = true;
		if (swapon(ledger->plug, SWAP_FLAG_PREFER | SWAP_PRIO_TOP))
			break;
		usleep(5000);
		if (swapoff(ledger->plug))
			break;
		ledger->plug_on = false;
	}
	return NULL;
}

/* The swap area of the pages goes while they are given */
static int lose_swap_area(void)
{
	struct pest pest = {};
	long end = msecs() + 2 * RACE_MSECS;
	int verdict = map_area(&area, 1, 32);
	size_t i;

	need_plug();
	if (!ledger->plug[0])
		return say(UNFIT, "no loop device");
	if (verdict ||
	    pthread_create(&pest.thread, NULL, swap_on_and_off, &pest))
		return verdict ?: say(UNFIT, "no thread");
	while (!verdict && msecs() < end) {
		fill(&area);
		madvise(area.mem, 32 * psize(), MADV_PAGEOUT);
		for (i = 0; i < 32; i += 4)
			verdict = verdict ?: give(&area, i, 2);
		for (i = 0; i < 32; i += 4)
			verdict = verdict ?:
				  all_look(&area, i, 2, KEPT | GONE, "given") ?:
				  all_look(&area, i + 2, 2, KEPT, "not given");
	}
	stop_pest(&pest);
	return verdict;
}

TEST_F_TIMEOUT(race, swapoff, CASE_SECONDS)
{
	conclude(_metadata, lose_swap_area());
}

static int fill_and_wait(const void *arg)
{
	const int *end = arg;
	int verdict = map_area(&area, 1, 2048) ?: give_all(&area);

	if (write(*end, "", 1) == 1 && !verdict)
		pause();
	return verdict;
}

/* The kernel says "Bad rss-counter" if this goes wrong */
static int exit_at_once(void)
{
	int ends[2], verdict = make_group(), round, try;
	pid_t lazy, reclaim;
	char c;

	if (verdict || pipe2(ends, O_CLOEXEC))
		return verdict ?: say(UNFIT, "pipe: %s", strerror(errno));
	for (round = 0; round < 3; round++) {
		lazy = start_inside(fill_and_wait, &ends[1]);
		if (lazy < 0 || read(ends[0], &c, 1) != 1)
			return say(UNFIT, "no child");
		reclaim = fork();
		if (!reclaim) {
			for (try = 0; try < 4; try++)
				put_text(in_group("memory.reclaim"), "2M");
			_exit(0);
		}
		usleep(1000 + 2000 * round);
		kill(lazy, SIGKILL);
		waitpid(lazy, NULL, 0);
		kill(reclaim, SIGKILL);
		waitpid(reclaim, NULL, 0);
	}
	for (try = 0; try < 100; try++) {
		if (group_number("memory.current") < 1 << 20)
			return FINE;
		usleep(20000);
	}
	return say(BROKEN, "%ld bytes are still charged",
		   group_number("memory.current"));
}

TEST_F_TIMEOUT(race, exit, CASE_SECONDS)
{
	conclude(_metadata, exit_at_once());
}

static long move_to(const struct area *a, int node)
{
	static void *addr[MAX_PAGES];
	static int nodes[MAX_PAGES], status[MAX_PAGES];
	size_t i;

	for (i = 0; i < a->pages; i++) {
		addr[i] = page_at(a, i);
		nodes[i] = node;
	}
	return syscall(__NR_move_pages, 0, a->pages, addr, nodes, status, 2);
}

static void *migrate(void *arg)
{
	struct pest *p = arg;
	bool two = !access("/sys/devices/system/node/node1", F_OK);
	int node = 0;

	while (!__atomic_load_n(&p->stop, __ATOMIC_RELAXED)) {
		if (two)
			move_to(&area, node ^= 1);
		else
			put_text("/proc/sys/vm/compact_memory", "1");
	}
	return NULL;
}

/*
 * Pages are given while they are migrated: huge pages if there are two nodes,
 * small ones by compaction if not.
 */
static int move_at_once(void)
{
	bool two = !access("/sys/devices/system/node/node1", F_OK);
	struct pest pest = {};
	long end = msecs() + 2 * RACE_MSECS;
	size_t step = two ? 64 : 2, i;
	int verdict = two ? map_variant(1, 1) : map_area(&area, 1, 64);

	if (verdict ||
	    pthread_create(&pest.thread, NULL, migrate, &pest))
		return verdict ?: say(UNFIT, "no thread");
	while (!verdict && msecs() < end) {
		fill(&area);
		verdict = give_all(&area);
		for (i = 0; i < area.pages; i += step)
			touch(&area, i);
		for (i = 0; i < area.pages && !verdict; i++)
			verdict = all_look(&area, i, 1, i % step ? KEPT | GONE :
					   TOUCHED, "migrated");
	}
	/* A small page which is being moved may be missed, a huge one must not */
	if (!two)
		stop_pest(&pest);
	fill(&area);
	verdict = verdict ?: give_all(&area);
	if (two)
		stop_pest(&pest);
	return verdict ?: drops(&area);
}

/* 6.12: a huge page which is being migrated is passed over */
TEST_F_TIMEOUT(race, migration, CASE_SECONDS)
{
	conclude(_metadata, move_at_once());
}

TEST_HARNESS_MAIN
