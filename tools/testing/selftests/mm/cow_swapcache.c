// SPDX-License-Identifier: GPL-2.0
/*
 * What a copy-on-write fault leaves behind in the swap cache.
 *
 * A page of the swap cache with no swap entry left pointing to it (swap count
 * zero) is of no use to anybody once its last mapping is gone.  When it is a
 * copy-on-write fault that takes this last mapping away, the page has to leave
 * the swap cache, and its swap slot has to be free, when the fault returns,
 * and not only when reclaim happens to come along.
 *
 * When the last sharer of a small page writes, the kernel usually does not
 * copy: it takes the page over, and frees the slot on the way.  So the tests
 * use what makes the last sharer copy all the same: a pipe with a reference to
 * the page (vmsplice()), a large folio, a KSM page, or two sharers which write
 * at the same time.
 *
 * How it is measured: right before and right after the last write, SwapCached
 * and the number of used slots are read; nothing in between reclaims memory.
 * Two things would blur that:
 *
 * - SwapCached is a vmstat counter, parts of which sit in per-CPU variables.
 *   A write to /proc/sys/vm/stat_refresh folds them.
 *
 * - Slots can hide in per-CPU caches.  See swap_util.h for what is done about
 *   that, and for SWAP_DEV; where it cannot be done the number of slots is
 *   compared with a tolerance.  SwapCached is exact in any case.
 *
 * The test of large folios needs a swap device which is not rotational (at the
 * time of swapon).
 */
#include <time.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../kselftest_harness.h"
#include "../../../../mm/gup_test.h"
#include "swap_util.h"

#define MAX_KIDS	32
#define CASE_SECONDS	300	/* only a hang takes that long */

/* Measuring */

struct tally {
	long cached;		/* SwapCached */
	long used;		/* SwapTotal - SwapFree */
	long listed;		/* Used in /proc/swaps */
};

static int take(struct tally *t)
{
	long total, left;

	empty_slot_caches();
	t->cached = swap_cached();
	total = number_of("/proc/meminfo", "SwapTotal");
	left = number_of("/proc/meminfo", "SwapFree");
	t->used = (total - left) / (psize() >> 10);
	t->listed = swaps_used(NULL, NULL);
	return FINE;
}

static int fell(const char *when, const struct tally *from,
		const struct tally *to, long due)
{
	if (from->cached - to->cached != due)
		return say(BROKEN, "%s: SwapCached %ld -> %ld, not %ld pages",
			   when, from->cached, to->cached, from->cached - due);
	if (labs(from->used - to->used - due) > slack)
		return say(BROKEN, "%s: slots used %ld -> %ld, not %ld",
			   when, from->used, to->used, from->used - due);
	if (labs(from->listed - to->listed - due) > slack)
		return say(BROKEN, "%s: /proc/swaps %ld -> %ld, not %ld pages",
			   when, from->listed, to->listed, from->listed - due);
	return FINE;
}

static int same_cached(const char *when, const struct tally *t)
{
	long now = swap_cached();

	if (now == t->cached)
		return FINE;
	return say(BROKEN, "%s: SwapCached %ld -> %ld, not the same", when,
		   t->cached, now);
}

/* Pages and what is in them */

static void stamp_page(char *at, __u64 s)
{
	__u64 *word = (__u64 *)at;
	size_t last = psize() / sizeof(*word) - 1;

	poke(&word[0], s);
	poke(&word[last / 2], ~s);
	poke(&word[last], s + 1);
}

static bool page_has(const char *at, __u64 s)
{
	const __u64 *word = (const __u64 *)at;
	size_t last = psize() / sizeof(*word) - 1;

	return peek(&word[0]) == s && peek(&word[last / 2]) == ~s &&
	       peek(&word[last]) == s + 1;
}

static void fill(char *mem, size_t pages, unsigned int tag)
{
	size_t i;

	for (i = 0; i < pages; i++)
		stamp_page(mem + i * psize(), stamp(tag, i));
}

/* The first page which is not as it should be, or -1 */
static long odd_page(const char *mem, size_t pages, unsigned int tag)
{
	size_t i;

	for (i = 0; i < pages; i++)
		if (!page_has(mem + i * psize(), stamp(tag, i)))
			return i;
	return -1;
}

/* Whatever was written to the copies, the pipe has the page as it was */
static int read_grip(size_t pages, unsigned int tag)
{
	char *buf = malloc(psize());
	size_t i;

	if (!buf)
		return say(BROKEN, "no memory");
	for (i = 0; i < pages; i++)
		if (read(grip.out[i / PIPE_PAGES], buf, psize()) != psize() ||
		    !page_has(buf, stamp(tag, i)))
			break;
	free(buf);
	return i == pages ? FINE :
		say(BROKEN, "page %zu has changed in the pipe", i);
}

/* The sharers: number 0 is the test itself, the others its children */

enum task { LOOK, WRITE, RACE };

struct job {
	int task;
	unsigned int tag;
};

static struct crew {
	char *mem;
	size_t pages;
	int kids;
	pid_t pid[MAX_KIDS + 1];
	int sock[MAX_KIDS + 1];
	unsigned int tag[MAX_KIDS + 1];	/* of the data everyone should see */
	unsigned int next_tag;
	int shy;			/* has not touched its pages, or -1 */
	size_t *arrived;		/* shared, for RACE */
} crew = { .shy = -1 };

/* Wait for the others; give up after a while, one may have died */
static bool meet(size_t round)
{
	time_t end = time(NULL) + 20;
	size_t all = round * (crew.kids + 1), here;
	unsigned long spins = 0;

	here = __atomic_add_fetch(crew.arrived, 1, __ATOMIC_SEQ_CST);
	while (here < all) {
		if (++spins % 2000 == 0) {
			sched_yield();
			if (time(NULL) > end)
				break;
		}
		here = __atomic_load_n(crew.arrived, __ATOMIC_SEQ_CST);
	}
	return here >= all;
}

static long do_job(int self, const struct job *job)
{
	size_t i;

	switch (job->task) {
	case WRITE:
		fill(crew.mem, crew.pages, job->tag);
		break;
	case RACE:
		hop(self);
		for (i = 0; i < crew.pages; i++) {
			if (!meet(i + 1))
				return i;
			stamp_page(crew.mem + i * psize(),
				   stamp(job->tag, i));
		}
		break;
	}
	return odd_page(crew.mem, crew.pages, job->tag);
}

static void serve(int self, int sock, pid_t boss)
{
	struct job job;
	long odd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != boss)
		_exit(1);
	while (recv(sock, &job, sizeof(job), 0) == sizeof(job)) {
		odd = do_job(self, &job);
		if (send(sock, &odd, sizeof(odd), MSG_NOSIGNAL) != sizeof(odd))
			break;
	}
	_exit(0);
}

static int recruit(int kids)
{
	struct timeval patience = { .tv_sec = 30 };
	int ends[2], i;
	pid_t boss = getpid();

	for (i = 1; i <= kids; i++) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
			return say(UNFIT, "socketpair: %s", strerror(errno));
		setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience,
			   sizeof(patience));
		crew.pid[i] = fork();
		if (!crew.pid[i]) {
			close(ends[0]);
			crew.kids = kids;
			serve(i, ends[1], boss);
		}
		close(ends[1]);
		if (crew.pid[i] < 0) {
			close(ends[0]);
			return say(UNFIT, "fork: %s", strerror(errno));
		}
		crew.sock[i] = ends[0];
		crew.tag[i] = crew.tag[0];
		crew.kids = i;
	}
	return FINE;
}

static void dismiss(void)
{
	int i;

	for (i = 1; i <= crew.kids; i++) {
		close(crew.sock[i]);
		kill(crew.pid[i], SIGKILL);
		waitpid(crew.pid[i], NULL, 0);
	}
	crew.kids = 0;
	crew.shy = -1;
	drop_grip();
	if (crew.mem)
		munmap(crew.mem, crew.pages * psize());
	crew.mem = NULL;
}

static int hand_out(int who, int task)
{
	struct job job = { .task = task, .tag = crew.tag[who] };

	if (send(crew.sock[who], &job, sizeof(job), MSG_NOSIGNAL) ==
	    sizeof(job))
		return FINE;
	return say(BROKEN, "child %d is gone", who);
}

static int judge(int who, long odd)
{
	if (odd < 0)
		return FINE;
	return say(BROKEN, "sharer %d: page %ld has wrong data", who, odd);
}

static int collect(int who)
{
	long odd;

	if (recv(crew.sock[who], &odd, sizeof(odd), 0) != sizeof(odd))
		return say(BROKEN, "no answer from child %d", who);
	return judge(who, odd);
}

static int order(int who, int task)
{
	struct job job = { .task = task, .tag = crew.tag[who] };

	if (!who)
		return judge(0, do_job(0, &job));
	return hand_out(who, task) ?: collect(who);
}

static int all_look(void)
{
	int who, verdict = FINE;

	for (who = 0; who <= crew.kids && !verdict; who++)
		if (who != crew.shy)
			verdict = order(who, LOOK);
	return verdict;
}

static int writes(int who)
{
	crew.tag[who] = ++crew.next_tag;
	if (who == crew.shy)
		crew.shy = -1;
	return order(who, WRITE);
}

/* Everyone but one sharer writes, which is then the last to have the pages */
static int others_write(int last)
{
	int who, verdict = FINE;

	for (who = crew.kids; who >= 0 && !verdict; who--)
		if (who != last)
			verdict = writes(who) ?: all_look();
	return verdict;
}

static int all_write(void)
{
	int who, verdict = FINE;

	for (who = 0; who <= crew.kids && !verdict; who++)
		verdict = writes(who) ?: all_look();
	return verdict;
}

/* The memory which is shared, filled with data of tag 0 */

static int map_pages(size_t pages)
{
	void *mem;

	mem = mmap(NULL, pages * psize(), PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return say(UNFIT, "mmap: %s", strerror(errno));
	madvise(mem, pages * psize(), MADV_NOHUGEPAGE);
	crew.mem = mem;
	crew.pages = pages;
	crew.tag[0] = ++crew.next_tag;
	fill(crew.mem, pages, crew.tag[0]);
	return FINE;
}

static int map_large(size_t unit, size_t pages)
{
	size_t len = pages * psize(), heads;
	int verdict;

	verdict = choose_unit(unit);
	if (verdict)
		return verdict;

	crew.mem = map_aligned(unit, pages);
	if (!crew.mem)
		return say(UNFIT, "mmap: %s", strerror(errno));
	crew.pages = pages;
	crew.tag[0] = ++crew.next_tag;
	if (madvise(crew.mem, len, MADV_HUGEPAGE))
		return say(UNFIT, "MADV_HUGEPAGE: %s", strerror(errno));
	fill(crew.mem, pages, crew.tag[0]);
	/* khugepaged has no business here */
	madvise(crew.mem, len, MADV_NOHUGEPAGE);

	verdict = flags_come(crew.mem, pages, F_LARGE, 0, &heads);
	if (verdict || heads != pages / unit)
		return say(UNFIT, "no memory in folios of %zu pages", unit);
	return FINE;
}

/*
 * A large folio which is referenced otherwise is not swapped out in one piece,
 * so it cannot be held in the swap cache by a pipe.  But it need not be:
 * MADV_PAGEOUT starts to write it, and does not wait.  Only reclaim would take
 * it from the swap cache after that.
 */
static int large_to_swap_cache(void)
{
	int verdict = unmap_to_swap(crew.mem, crew.pages);

	if (verdict)
		return verdict;
	if (count_incore(crew.mem, crew.pages) != crew.pages)
		return say(UNFIT, "swap device too fast, swap cache is empty");
	return FINE;
}

static int still_large(size_t unit)
{
	size_t heads;
	int verdict;

	verdict = flags_come(crew.mem, crew.pages, F_SWAPCACHE, F_WRITEBACK,
			     &heads);
	if (verdict)
		return verdict;
	if (heads != crew.pages / unit ||
	    flags_come(crew.mem, crew.pages, F_LARGE, 0, NULL))
		return say(UNFIT, "split at swap-out: rotational swap device?");
	return FINE;
}

/* Before and after each test */

static int prepare(void)
{
	int verdict = prepare_common() ?: calm_swap();

	if (verdict)
		return verdict;
	make_plug();
	return need_swap();
}

static void prepare_or_skip(struct __test_metadata *_metadata)
{
	int verdict = prepare();

	if (verdict && !geteuid())
		undo();
	conclude(_metadata, verdict);
}

/*
 * Sharers of small pages, the last of which has to copy.
 */
struct plan {
	size_t pages;
	size_t unit;		/* pages of a large folio */
	int kids;
	bool kid_last;		/* the last to write is a child */
	bool hold;		/* while a pipe has the pages */
	bool blind;		/* the last one writes without reading first */
	bool resident;		/* nothing is swapped out */
};

static int share(const struct plan *p)
{
	int last = p->kid_last ? p->kids : 0;
	long due = p->resident ? 0 : p->pages;
	struct tally base, before, after;
	unsigned int tag;
	int verdict;

	take(&base);
	if (p->unit)
		verdict = map_large(p->unit, p->pages) ?: large_to_swap_cache();
	else
		verdict = map_pages(p->pages);
	if (!verdict && !p->unit && !p->resident)
		verdict = evict(crew.mem, p->pages);
	if (verdict)
		goto out;
	tag = crew.tag[0];

	crew.shy = p->blind ? last : -1;
	verdict = recruit(p->kids) ?: all_look();
	if (verdict)
		goto out;
	if (p->unit)
		verdict = still_large(p->unit);
	else if (!p->resident)
		verdict = flags_come(crew.mem, p->pages, F_SWAPCACHE,
				     F_WRITEBACK, NULL);
	if (!verdict && p->hold)
		verdict = take_grip(crew.mem, p->pages);
	if (verdict)
		goto out;

	take(&before);
	verdict = others_write(last) ?: same_cached("first copies", &before) ?:
		  writes(last);
	if (verdict)
		goto out;
	take(&after);
	verdict = fell("last write", &before, &after, due) ?: all_look();
	if (!verdict && p->hold)
		verdict = read_grip(p->pages, tag);
	if (!verdict)
		verdict = all_write();
out:
	dismiss();
	if (!verdict) {
		take(&after);
		verdict = fell("end", &base, &after, 0);
	}
	return verdict;
}

FIXTURE(last_sharer) {};

FIXTURE_SETUP(last_sharer)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(last_sharer)
{
	undo();
}

FIXTURE_VARIANT(last_sharer)
{
	struct plan plan;
};

FIXTURE_VARIANT_ADD(last_sharer, parent_1_page)
{
	.plan = { .pages = 1, .kids = 1, .hold = true },
};

FIXTURE_VARIANT_ADD(last_sharer, child_1_page)
{
	.plan = { .pages = 1, .kids = 1, .hold = true, .kid_last = true },
};

FIXTURE_VARIANT_ADD(last_sharer, parent_2048_pages)
{
	.plan = { .pages = 2048, .kids = 1, .hold = true },
};

FIXTURE_VARIANT_ADD(last_sharer, child_2048_pages)
{
	.plan = { .pages = 2048, .kids = 1, .hold = true, .kid_last = true },
};

/* From swap entry to private copy in one fault */
FIXTURE_VARIANT_ADD(last_sharer, child_unread_16_pages)
{
	.plan = { .pages = 16, .kids = 1, .hold = true, .kid_last = true,
		  .blind = true },
};

FIXTURE_VARIANT_ADD(last_sharer, parent_after_32_children)
{
	.plan = { .pages = 1, .kids = 32, .hold = true },
};

FIXTURE_VARIANT_ADD(last_sharer, child_after_31_children)
{
	.plan = { .pages = 1, .kids = 32, .hold = true, .kid_last = true },
};

/* Nobody else has the pages: the last sharer takes them over */
FIXTURE_VARIANT_ADD(last_sharer, parent_reuses_16_pages)
{
	.plan = { .pages = 16, .kids = 1 },
};

FIXTURE_VARIANT_ADD(last_sharer, child_reuses_16_pages)
{
	.plan = { .pages = 16, .kids = 1, .kid_last = true },
};

/* Guards: copies which have nothing to do with swap */
FIXTURE_VARIANT_ADD(last_sharer, not_swapped_copy)
{
	.plan = { .pages = 64, .kids = 2, .hold = true, .resident = true },
};

FIXTURE_VARIANT_ADD(last_sharer, not_swapped_reuse)
{
	.plan = { .pages = 64, .kids = 2, .kid_last = true, .resident = true },
};

TEST_F_TIMEOUT(last_sharer, frees_swap, CASE_SECONDS)
{
	conclude(_metadata, share(&variant->plan));
}

/*
 * Large folios: their pages are always copied, and the folio can leave the swap
 * cache with the last of them.
 */
FIXTURE(large_folio) {};

FIXTURE_SETUP(large_folio)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(large_folio)
{
	undo();
}

FIXTURE_VARIANT(large_folio)
{
	size_t kib;		/* 0: what a PMD maps */
	int folios;
	bool kid_last;
};

FIXTURE_VARIANT_ADD(large_folio, pmd_size_parent)
{
	.folios = 1,
};

FIXTURE_VARIANT_ADD(large_folio, pmd_size_child)
{
	.folios = 1,
	.kid_last = true,
};

FIXTURE_VARIANT_ADD(large_folio, size_64k_parent)
{
	.kib = 64,
	.folios = 8,
};

FIXTURE_VARIANT_ADD(large_folio, size_64k_child)
{
	.kib = 64,
	.folios = 8,
	.kid_last = true,
};

TEST_F_TIMEOUT(large_folio, frees_swap, CASE_SECONDS)
{
	struct plan plan = { .kids = 1, .kid_last = variant->kid_last };

	if (access(THP_DIR "enabled", R_OK))
		SKIP(return, "no transparent huge pages");
	plan.unit = (variant->kib ? variant->kib << 10 : read_pmd_pagesize()) /
		    psize();
	plan.pages = plan.unit * variant->folios;
	if (plan.unit < 2 || plan.pages > MAX_PAGES)
		SKIP(return, "no large folio of a suitable size");
	conclude(_metadata, share(&plan));
}

/*
 * All sharers write to a page at the same moment, so that two of them may both
 * be copying when there is no third: then the later one takes the last mapping
 * away.  Whether this happens is luck: a kernel which leaves the page in the
 * swap cache then may still pass.
 */
FIXTURE(same_moment) {};

FIXTURE_SETUP(same_moment)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(same_moment)
{
	undo();
}

FIXTURE_VARIANT(same_moment)
{
	size_t pages;
	int kids;
	int rounds;
};

FIXTURE_VARIANT_ADD(same_moment, two_sharers)
{
	.pages = 64,
	.kids = 1,
	.rounds = 8,
};

FIXTURE_VARIANT_ADD(same_moment, four_sharers)
{
	.pages = 16,
	.kids = 3,
	.rounds = 6,
};

static int race(size_t pages, int kids)
{
	int who, verdict;

	verdict = map_pages(pages) ?: evict(crew.mem, pages) ?: recruit(kids) ?:
		  all_look() ?: flags_come(crew.mem, pages, F_SWAPCACHE,
					   F_WRITEBACK, NULL);
	*crew.arrived = 0;
	for (who = kids; who >= 0 && !verdict; who--) {
		crew.tag[who] = ++crew.next_tag;
		verdict = who ? hand_out(who, RACE) : order(0, RACE);
	}
	for (who = 1; who <= kids && !verdict; who++)
		verdict = collect(who);
	return verdict ?: all_look();
}

TEST_F_TIMEOUT(same_moment, frees_swap, CASE_SECONDS)
{
	struct tally base, after;
	int verdict = FINE;
	int round;

	if (nr_cpus() < 2)
		SKIP(return, "needs two CPUs");
	crew.arrived = mmap(NULL, psize(), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)crew.arrived);

	take(&base);
	for (round = 0; round < variant->rounds && !verdict; round++) {
		verdict = race(variant->pages, variant->kids);
		/* The new pages are not in the swap cache, nor are the old */
		if (!verdict)
			verdict = same_cached("all wrote", &base);
		if (!verdict && round == variant->rounds - 1) {
			take(&after);
			verdict = fell("all wrote", &base, &after, 0);
		}
		dismiss();
	}
	conclude(_metadata, verdict);
}

/*
 * The last sharer copies since it pins the pages for long: for writing, which
 * is a write fault, or for reading, which unshares them.
 */
FIXTURE(longterm_pin) {};

FIXTURE_SETUP(longterm_pin)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(longterm_pin)
{
	undo();
}

FIXTURE_VARIANT(longterm_pin)
{
	unsigned int flags;
};

FIXTURE_VARIANT_ADD(longterm_pin, write)
{
	.flags = PIN_LONGTERM_TEST_FLAG_USE_WRITE,
};

FIXTURE_VARIANT_ADD(longterm_pin, write_fast)
{
	.flags = PIN_LONGTERM_TEST_FLAG_USE_WRITE |
		 PIN_LONGTERM_TEST_FLAG_USE_FAST,
};

FIXTURE_VARIANT_ADD(longterm_pin, unshare)
{
	.flags = 0,
};

FIXTURE_VARIANT_ADD(longterm_pin, unshare_fast)
{
	.flags = PIN_LONGTERM_TEST_FLAG_USE_FAST,
};

/* What the pinned pages hold, as seen by the one who pinned them */
static int pinned_hold(int fd, unsigned int tag)
{
	char *buf = malloc(crew.pages * psize());
	__u64 at = (uintptr_t)buf;
	int verdict = FINE;

	if (!buf)
		return say(BROKEN, "no memory");
	if (ioctl(fd, PIN_LONGTERM_TEST_READ, &at))
		verdict = say(BROKEN, "pinned pages: %s", strerror(errno));
	else if (odd_page(buf, crew.pages, tag) >= 0)
		verdict = say(BROKEN, "wrong data in pinned pages");
	free(buf);
	return verdict;
}

static int pin_last(int fd, unsigned int flags)
{
	struct pin_longterm_test pin = { .flags = flags };
	struct tally before, after;
	unsigned int tag;
	int verdict;

	verdict = map_pages(16) ?: evict(crew.mem, crew.pages) ?: recruit(1) ?:
		  all_look() ?: flags_come(crew.mem, crew.pages, F_SWAPCACHE,
					   F_WRITEBACK, NULL) ?:
		  take_grip(crew.mem, crew.pages) ?: others_write(0);
	if (verdict)
		return verdict;
	tag = crew.tag[0];

	take(&before);
	pin.addr = (uintptr_t)crew.mem;
	pin.size = crew.pages * psize();
	if (ioctl(fd, PIN_LONGTERM_TEST_START, &pin))
		return say(BROKEN, "cannot pin: %s", strerror(errno));
	take(&after);

	verdict = fell("pin", &before, &after, crew.pages) ?:
		  pinned_hold(fd, tag) ?: all_look() ?:
		  read_grip(crew.pages, tag);
	/* The pinned pages are those we have, and the child does not matter */
	verdict = verdict ?: writes(0) ?: pinned_hold(fd, crew.tag[0]) ?:
		  writes(1) ?: pinned_hold(fd, crew.tag[0]) ?: all_look();
	if (ioctl(fd, PIN_LONGTERM_TEST_STOP) && !verdict)
		verdict = say(BROKEN, "cannot unpin: %s", strerror(errno));
	return verdict;
}

TEST_F_TIMEOUT(longterm_pin, frees_swap, CASE_SECONDS)
{
	int fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	struct tally base, after;
	int verdict;

	if (fd < 0)
		SKIP(return, "no " GUP_TEST " (debugfs, CONFIG_GUP_TEST)");
	take(&base);
	verdict = pin_last(fd, variant->flags);
	/* Unpins, too */
	close(fd);
	dismiss();
	if (!verdict) {
		take(&after);
		verdict = fell("end", &base, &after, 0);
	}
	conclude(_metadata, verdict);
}

/*
 * KSM: merged pages are always copied, however few have them.
 */
FIXTURE(ksm_page) {};

FIXTURE_SETUP(ksm_page)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(ksm_page)
{
	undo();
}

static __u64 frame[MAX_PAGES];		/* where the merged pages are */

/*
 * Wait until the pages at @mem are the same as those at crew.mem, or, if these
 * are swapped out meanwhile, as they were.  KPF_KSM would not tell: some kernels
 * show it for every anonymous page.
 */
static int merge(char *mem, size_t pages, bool swapped)
{
	int verdict = UNFIT, try;
	size_t i;

	if (!put_text(KSM_DIR "run", "1"))
		return say(UNFIT, "ksmd does not start");
	for (try = 0; try < 500 && verdict; try++) {
		usleep(10000);
		if (!swapped && get_entries(crew.mem, pages))
			for (i = 0; i < pages; i++)
				frame[i] = PAGEMAP_PFN(entry[i]);
		if (!get_entries(mem, pages))
			break;
		for (i = 0; i < pages; i++)
			if (!(entry[i] & PM_PRESENT) ||
			    PAGEMAP_PFN(entry[i]) != frame[i])
				break;
		verdict = i == pages ? FINE :
			  say(UNFIT, "page %zu is not merged", i);
	}
	/* This waits for ksmd, so it has no page locked from now on */
	put_text(KSM_DIR "run", "0");
	return verdict;
}

static char *map_twin(void)
{
	size_t len = crew.pages * psize();
	char *mem;

	/* Not next to the first one, they shall not become one VMA */
	mem = mmap(NULL, len + 2 * psize(), PROT_NONE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return NULL;
	mem += psize();
	mprotect(mem, len, PROT_READ | PROT_WRITE);
	madvise(mem, len, MADV_NOHUGEPAGE);
	fill(mem, crew.pages, crew.tag[0]);
	if (madvise(mem, len, MADV_MERGEABLE))
		return NULL;
	return mem;
}

/* Pages at crew.mem which are KSM pages, have one mapping, and are swapped */
static int swap_merged(size_t pages)
{
	char *twin;
	int verdict;

	if (!turn(KSM_DIR "pages_to_scan", "2000") ||
	    !turn(KSM_DIR "sleep_millisecs", "5"))
		return say(UNFIT, "no KSM");
	/* Exists in newer kernels only: skips pages it could not merge */
	turn(KSM_DIR "smart_scan", "0");

	verdict = map_pages(pages);
	if (verdict)
		return verdict;
	if (madvise(crew.mem, pages * psize(), MADV_MERGEABLE))
		return say(UNFIT, "MADV_MERGEABLE: %s", strerror(errno));
	twin = map_twin();
	if (!twin)
		return say(UNFIT, "no second mapping to merge");
	verdict = merge(twin, pages, false);
	munmap(twin - psize(), (pages + 2) * psize());
	return verdict ?: unmap_to_swap(crew.mem, pages);
}

/* A KSM page in the swap cache with one mapping left is written to */
TEST_F_TIMEOUT(ksm_page, cow_frees_swap, CASE_SECONDS)
{
	struct tally base, before, after;
	size_t pages = 16;
	int verdict;

	take(&base);
	verdict = swap_merged(pages) ?: all_look() ?:
		  flags_come(crew.mem, pages, F_SWAPCACHE, F_WRITEBACK, NULL);
	if (!verdict) {
		take(&before);
		verdict = writes(0);
		take(&after);
		verdict = verdict ?: fell("write", &before, &after, pages);
	}
	verdict = verdict ?: all_look();
	dismiss();
	if (!verdict) {
		take(&after);
		verdict = fell("end", &base, &after, 0);
	}
	conclude(_metadata, verdict);
}

/*
 * Two places have the same swap entry, as it was a KSM page when it was swapped
 * out.  It is none when it comes back, so it can be mapped at the first place
 * only: the second one gets a copy at once, by a read fault.  Here the first
 * place has been written to before, hence has a copy already.  Then this copy
 * releases the last swap entry of a page which is mapped nowhere.
 *
 * To get there: MADV_PAGEOUT does not touch a page which is mapped twice.  But
 * a KSM page with one mapping can be swapped out, stay in the swap cache, still
 * be found there by ksmd for another place, and be swapped out from that, too.
 */
static int two_places(char *twin, size_t pages)
{
	__u64 *first;
	size_t i;
	int verdict;

	verdict = evict(twin, pages);
	if (verdict)
		return verdict;
	first = calloc(pages, sizeof(*first));
	if (!first || !get_entries(crew.mem, pages)) {
		free(first);
		return say(UNFIT, "pagemap cannot be read");
	}
	for (i = 0; i < pages; i++)
		first[i] = entry[i];
	if (!get_entries(twin, pages))
		verdict = say(UNFIT, "pagemap cannot be read");
	for (i = 0; i < pages && !verdict; i++)
		if (!(first[i] & PM_SWAP) || !(entry[i] & PM_SWAP) ||
		    PAGEMAP_PFN(first[i]) != PAGEMAP_PFN(entry[i]))
			verdict = say(UNFIT, "page %zu: two swap entries", i);
	free(first);
	return verdict;
}

static int copy_at_swapin(size_t pages)
{
	struct tally before, after;
	long copies = 0;
	unsigned int tag;
	char *twin;
	int verdict;

	verdict = swap_merged(pages);
	if (verdict)
		return verdict;
	tag = crew.tag[0];
	if (count_incore(crew.mem, pages) != pages)
		return say(UNFIT, "swap device too fast, swap cache is empty");
	twin = map_twin();
	if (!twin)
		return say(UNFIT, "no second mapping to merge");
	verdict = merge(twin, pages, true) ?: two_places(twin, pages) ?: writes(0);
	if (verdict)
		goto out;

	/* The pages are in the swap cache, for the second place */
	if (count_incore(twin, pages) != pages) {
		verdict = say(UNFIT, "pages are not in the swap cache");
		goto out;
	}
	take(&before);
	copies = number_of("/proc/vmstat", "ksm_swpin_copy");
	if (odd_page(twin, pages, tag) >= 0)
		verdict = say(BROKEN, "wrong data in copy");
	take(&after);
	copies = number_of("/proc/vmstat", "ksm_swpin_copy") - copies;
	if (!verdict && copies != (long)pages)
		verdict = say(UNFIT, "%ld copies at swap-in, not %zu", copies,
			      pages);
	verdict = verdict ?: fell("read", &before, &after, pages) ?: all_look();
	if (!verdict) {
		fill(twin, pages, tag + 1000);
		verdict = all_look();
	}
	if (!verdict && odd_page(twin, pages, tag + 1000) >= 0)
		verdict = say(BROKEN, "wrong data in second place");
out:
	munmap(twin - psize(), (pages + 2) * psize());
	return verdict;
}

TEST_F_TIMEOUT(ksm_page, swapin_copy_frees_swap, CASE_SECONDS)
{
	struct tally base, after;
	int verdict;

	take(&base);
	verdict = copy_at_swapin(16);
	dismiss();
	if (!verdict) {
		take(&after);
		verdict = fell("end", &base, &after, 0);
	}
	conclude(_metadata, verdict);
}

TEST_HARNESS_MAIN
