// SPDX-License-Identifier: GPL-2.0
/*
 * Huge pages out of ranges whose page table entries are read-only.
 *
 * After swapoff, after a fork, after swap entries that a fork shares were read
 * back, in mappings without write permission: such entries are read-only, and
 * say nothing about whether a huge page would be of use.  So MADV_COLLAPSE and
 * khugepaged have to take these ranges.  What they must not do is looked at as
 * well:
 *
 * - Content.  Every word of every page is known, here and in a forked child,
 *   and is compared after each collapse and after each refusal.
 *
 * - Rights.  What could not be written before cannot be written after, and what
 *   one process writes the other one does not see.
 *
 * - Refusals.  A range which is refused has the same entries in pagemap as
 *   before: page frames, exclusive, soft-dirty and userfaultfd bits, and all.
 *
 * - Reasons.  Each refusal is counted in /proc/vmstat (thp_scan_*).
 *
 * khugepaged runs with settings that make it come round in milliseconds; they
 * are put back.  Where it has to leave a range alone, it comes round three times,
 * which is more often than it needs to find a range.
 *
 * A defect known of Linux 6.12 is named where it is tested for, as "6.12:".
 *
 * No swap space is needed: the tests use a loop device of their own.
 */
#include <pthread.h>
#include <linux/userfaultfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "../kselftest_harness.h"
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

#define CASE_SECONDS	60
#define RACE_MSECS	700
#define PATIENCE_MSECS	10000		/* for khugepaged to come round */
#define PASSES		3
#define KHUGEPAGED	THP_DIR "khugepaged/"
#define AREA_BYTES	(16UL << 20)
#define VMSTAT		"/proc/vmstat"

/* Memory: as much as a huge page has, no more */

static struct range {
	char *mem;
	size_t pages;
	unsigned int tag;		/* tells what is in it */
} range;

static unsigned int next_tag;

static size_t bytes(void)
{
	return range.pages * psize();
}

static char *page_at(size_t page)
{
	return range.mem + page * psize();
}

static void write_page(char *at, unsigned int tag, size_t page)
{
	size_t words = psize() / sizeof(__u64), i;
	__u64 s = stamp(tag, page) | 1;

	for (i = 0; i < words; i++)
		poke((__u64 *)at + i, s * (2 * i + 1));
}

static bool page_has(const char *at, unsigned int tag, size_t page)
{
	size_t words = psize() / sizeof(__u64), i;
	__u64 s = stamp(tag, page) | 1;

	for (i = 0; i < words; i++)
		if (peek((const __u64 *)at + i) != s * (2 * i + 1))
			return false;
	return true;
}

static bool page_is_zero(const char *at)
{
	size_t words = psize() / sizeof(__u64), i;

	for (i = 0; i < words; i++)
		if (peek((const __u64 *)at + i))
			return false;
	return true;
}

static void fill(size_t from, size_t pages, unsigned int tag)
{
	size_t i;

	for (i = from; i < from + pages; i++)
		write_page(page_at(i), tag, i);
}

static int all_have(size_t from, size_t pages, unsigned int tag,
		    const char *when)
{
	size_t i;

	for (i = from; i < from + pages; i++)
		if (!page_has(page_at(i), tag, i))
			return say(BROKEN, "%s: page %zu has wrong data", when,
				   i);
	return FINE;
}

static int all_zero(size_t from, size_t pages, const char *when)
{
	size_t i;

	for (i = from; i < from + pages; i++)
		if (!page_is_zero(page_at(i)))
			return say(BROKEN, "%s: page %zu is not zero", when, i);
	return FINE;
}

static void look(size_t from, size_t pages)
{
	size_t i;

	for (i = from; i < from + pages; i++)
		peek((__u64 *)page_at(i));
}

/* A range of holes; huge pages only when they are asked for */
static int map_range(void)
{
	range.pages = read_pmd_pagesize() / psize();
	if (!range.pages || range.pages > MAX_PAGES / 2)
		return say(UNFIT, "no huge pages of a suitable size");
	range.mem = map_aligned(range.pages, range.pages);
	if (!range.mem)
		return say(UNFIT, "mmap: %s", strerror(errno));
	return FINE;
}

static int fill_range(void)
{
	int verdict = map_range();

	if (verdict)
		return verdict;
	range.tag = ++next_tag;
	fill(0, range.pages, range.tag);
	return FINE;
}

static bool is_huge(void)
{
	return check_huge_anon(range.mem, 1, bytes());
}

/* A swap area of our own, which takes all that is swapped out while it is on */

static char area[32];
static int area_fd = -1;

static int area_on(void)
{
	if (area_fd < 0) {
		area_fd = make_loop(area, sizeof(area), AREA_BYTES, NULL);
		if (area_fd < 0 || !label(area_fd, AREA_BYTES))
			return say(UNFIT, "no loop device for swap");
		if (!owe(pay_swapoff, area, ""))
			return say(UNFIT, "too much to undo");
	}
	if (swapon(area, SWAP_FLAG_PREFER | SWAP_PRIO_TOP))
		return say(UNFIT, "swapon %s: %s", area, strerror(errno));
	return FINE;
}

static int area_off(void)
{
	if (swapoff(area))
		return say(BROKEN, "swapoff %s: %s", area, strerror(errno));
	return FINE;
}

static int out_and_back_by_swapoff(void)
{
	int verdict;

	verdict = area_on() ?: evict(range.mem, range.pages) ?: area_off();
	if (!verdict && count_swapped(range.mem, range.pages))
		verdict = say(BROKEN, "swapoff left swap entries");
	return verdict;
}

/* A child that has the first pages, and answers for them */

static struct kid {
	pid_t pid;
	int to;
	int from;
	size_t keeps;
	unsigned int tag;
} kid;

enum order { LOOK = 'l', WRITE = 'w' };

struct request {
	int order;
	unsigned int tag;
};

static void serve(int in, int out, size_t keeps)
{
	struct request r;
	char good = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (keeps < range.pages)
		munmap(page_at(keeps), (range.pages - keeps) * psize());
	if (write(out, &good, 1) != 1)
		_exit(1);
	while (read(in, &r, sizeof(r)) == sizeof(r)) {
		if (r.order == WRITE) {
			mprotect(range.mem, keeps * psize(),
				 PROT_READ | PROT_WRITE);
			fill(0, keeps, r.tag);
		}
		good = !all_have(0, keeps, r.tag, "child");
		if (write(out, &good, 1) != 1)
			break;
	}
	_exit(0);
}

static int kid_answers(void)
{
	char good = 0;

	if (read(kid.from, &good, 1) != 1)
		return say(BROKEN, "no answer from the child");
	return good ? FINE : say(BROKEN, "the child has wrong data");
}

static int kid_comes(size_t keeps)
{
	int to[2], from[2];

	if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
		return say(UNFIT, "pipe: %s", strerror(errno));
	kid.keeps = keeps;
	kid.tag = range.tag;
	kid.pid = fork();
	if (kid.pid < 0)
		return say(UNFIT, "fork: %s", strerror(errno));
	if (!kid.pid) {
		close(to[1]);
		close(from[0]);
		serve(to[0], from[1], keeps);
	}
	close(to[0]);
	close(from[1]);
	kid.to = to[1];
	kid.from = from[0];
	return kid_answers();
}

static int kid_does(int order)
{
	struct request r = { .order = order };

	if (!kid.pid)
		return FINE;
	if (order == WRITE)
		kid.tag = ++next_tag;
	r.tag = kid.tag;
	if (write(kid.to, &r, sizeof(r)) != sizeof(r))
		return say(BROKEN, "the child is gone");
	return kid_answers();
}

static int kid_goes(void)
{
	if (!kid.pid)
		return FINE;
	close(kid.to);
	close(kid.from);
	waitpid(kid.pid, NULL, 0);
	kid.pid = 0;
	return FINE;
}

/* All entries read-only, and nobody else has the pages any more */
static int share_for_a_moment(void)
{
	return kid_comes(range.pages) ?: kid_goes();
}

/* Collapsing */

static int collapse_errno(void)
{
	int try;

	/* Someone may just happen to have hold of a page */
	for (try = 0; try < 20; try++) {
		errno = 0;
		if (!madvise(range.mem, bytes(), MADV_COLLAPSE) ||
		    errno != EAGAIN)
			break;
		usleep(2000);
	}
	return errno;
}

static int collapse(void)
{
	int err = collapse_errno();

	if (err)
		return say(BROKEN, "MADV_COLLAPSE: %s", strerror(err));
	if (!is_huge())
		return say(BROKEN, "MADV_COLLAPSE succeeds, but no huge page");
	return FINE;
}

static long full_scans(void)
{
	char buf[32];

	if (get_text(KHUGEPAGED "full_scans", buf, sizeof(buf)) <= 0)
		return -1;
	return strtol(buf, NULL, 10);
}

static bool until_huge = true;		/* or for all of the passes */

/* khugepaged comes round this often after the range is put in its way */
static int khugepaged_passes(long passes, size_t hot)
{
	long from, end = msecs() + PATIENCE_MSECS;
	bool done = false;
	int verdict = FINE;

	if (madvise(range.mem, bytes(), MADV_HUGEPAGE))
		return say(UNFIT, "MADV_HUGEPAGE: %s", strerror(errno));
	drain_all();
	hop(0);
	from = full_scans();
	if (from < 0 || !turn(KHUGEPAGED "scan_sleep_millisecs", "10"))
		return say(UNFIT, "no khugepaged");
	while (!done && msecs() < end) {
		/* The first one may have begun before */
		done = full_scans() > from + passes ||
		       (until_huge && is_huge());
		if (hot)
			look(0, hot);
		usleep(4000);
	}
	turn(KHUGEPAGED "scan_sleep_millisecs", "60000");
	if (!done)
		verdict = say(UNFIT, "khugepaged does not come round");
	return verdict;
}

static int khugepaged_collapses(void)
{
	int verdict = khugepaged_passes(PASSES, 0);

	if (!verdict && !is_huge())
		verdict = say(BROKEN, "khugepaged came round %d times: %s",
			      PASSES, "no huge page");
	return verdict;
}

static int khugepaged_leaves(size_t hot)
{
	int verdict;

	until_huge = false;
	verdict = khugepaged_passes(PASSES, hot);
	if (!verdict && is_huge())
		verdict = say(BROKEN, "khugepaged makes a huge page of it");
	return verdict;
}

/* Refusals leave everything as it was */

static __u64 was[MAX_PAGES];

static int remember(void)
{
	if (!get_entries(range.mem, range.pages))
		return say(UNFIT, "pagemap cannot be read");
	memcpy(was, entry, sizeof(was));
	return FINE;
}

static int unchanged(void)
{
	size_t i;

	if (!get_entries(range.mem, range.pages))
		return say(BROKEN, "pagemap cannot be read");
	for (i = 0; i < range.pages; i++)
		if (entry[i] != was[i])
			return say(BROKEN, "page %zu: pagemap %llx -> %llx", i,
				   was[i], entry[i]);
	return FINE;
}

static int refused(int err)
{
	int verdict, got;

	verdict = remember();
	if (verdict)
		return verdict;
	got = collapse_errno();
	if (!got)
		return say(BROKEN, "MADV_COLLAPSE succeeds, not %s",
			   strerror(err));
	verdict = unchanged();
	if (!verdict && got != err)
		verdict = say(BROKEN, "MADV_COLLAPSE: %s, not %s",
			      strerror(got), strerror(err));
	return verdict;
}

/* Who may write what */

/* The kernel writes for us: it says EFAULT where we would get SIGSEGV */
static bool is_writable(char *at)
{
	char c = (char)peek((__u64 *)at);
	int ends[2];
	bool did;

	if (pipe(ends))
		return false;
	did = write(ends[1], &c, 1) == 1 && read(ends[0], at, 1) == 1;
	close(ends[0]);
	close(ends[1]);
	return did;
}

static int both_write(void)
{
	int verdict;

	mprotect(range.mem, bytes(), PROT_READ | PROT_WRITE);
	verdict = kid_does(LOOK);
	if (verdict)
		return verdict;
	range.tag = ++next_tag;
	fill(0, range.pages, range.tag);
	verdict = kid_does(LOOK) ?:
		  all_have(0, range.pages, range.tag, "parent wrote") ?:
		  kid_does(WRITE) ?:
		  all_have(0, range.pages, range.tag, "child wrote");
	if (verdict)
		return verdict;
	range.tag = ++next_tag;
	fill(0, range.pages, range.tag);
	return kid_does(LOOK) ?:
	       all_have(0, range.pages, range.tag, "parent wrote again");
}

/* Before and after each test */

static void counted_from(void);

static int prepare(void)
{
	int verdict = prepare_common() ?: calm_swap();

	if (verdict)
		return verdict;
	if (access(KHUGEPAGED "full_scans", R_OK))
		return say(UNFIT, "no transparent huge pages");
	if (!turn(KHUGEPAGED "scan_sleep_millisecs", "60000") ||
	    !turn(KHUGEPAGED "alloc_sleep_millisecs", "10") ||
	    !turn(KHUGEPAGED "pages_to_scan", "65536") ||
	    !turn(KHUGEPAGED "max_ptes_none", "511") ||
	    !turn(KHUGEPAGED "max_ptes_swap", "64") ||
	    !turn(KHUGEPAGED "max_ptes_shared", "256") ||
	    !turn(KHUGEPAGED "defrag", "1") ||
	    !turn(THP_DIR "enabled", "madvise") ||
	    !turn(THP_DIR "use_zero_page", "0"))
		return say(UNFIT, "khugepaged cannot be set");
	/* Exists from 6.8 on */
	turn(THP_DIR "hugepages-2048kB/enabled", "inherit");
	counted_from();
	return FINE;
}

static void prepare_or_skip(struct __test_metadata *_metadata)
{
	int verdict = prepare();

	if (verdict && !geteuid())
		undo();
	conclude(_metadata, verdict);
}

/* What is counted */

static const char * const counters[] = {
	"thp_scan_zero_pte", "thp_scan_ksm_pte", "thp_scan_lazyfree_pte",
	"thp_scan_uffd_pte", "thp_scan_not_young", "thp_scan_pinned",
	"thp_scan_busy", "thp_scan_other", "thp_scan_exceed_none_pte",
	"thp_scan_exceed_swap_pte", "thp_scan_exceed_share_pte",
};

#define COUNTERS	ARRAY_SIZE(counters)

static long counted[COUNTERS];

static void counted_from(void)
{
	size_t i;

	put_text("/proc/sys/vm/stat_refresh", "1");
	for (i = 0; i < COUNTERS; i++)
		counted[i] = number_of(VMSTAT, counters[i]);
}

/*
 * This counter rises since counted_from(), and no other one does; but anybody
 * can have a page locked for a moment.
 */
static int only(const char *name)
{
	bool found = false;
	size_t i;
	long now;

	put_text("/proc/sys/vm/stat_refresh", "1");
	for (i = 0; i < COUNTERS; i++) {
		bool it = !strcmp(counters[i], name);

		now = number_of(VMSTAT, counters[i]);
		if (it && now < 0)
			return say(BROKEN, "no %s in " VMSTAT, name);
		found |= it;
		if (it && now == counted[i])
			return say(BROKEN, "%s does not rise", name);
		if (!it && now != counted[i] &&
		    strcmp(counters[i], "thp_scan_busy"))
			return say(BROKEN, "%s rises by %ld, not just %s",
				   counters[i], now - counted[i], name);
	}
	return found ? FINE : say(BROKEN, "nobody counts %s", name);
}

/*
 * Ranges with entries that are read-only, or some of them, for whatever reason.
 * 6.12: at least one entry has to be writable, so all but the mixed ones fail.
 */
enum past {
	SWAPOFF,		/* brought back by swapoff */
	READ_BACK,		/* swapped out, shared with a child, read */
	FORKED,			/* base pages, the child is gone */
	PROTECTED,		/* PROT_READ */
	HALF_WRITTEN,		/* FORKED, then every second page written */
	PARTLY_SWAPPED,		/* FORKED, then some pages swapped out */
	WITH_HOLES,		/* FORKED, then some pages dropped */
	WITH_ZEROES,		/* ... and the shared zero page there */
	ALL_SWAPPED,
	ONE_WRITTEN,		/* SWAPOFF, then one page written */
};

/* All are looked at: khugepaged has no use for pages that nobody uses */
static int make_past(int past, bool child)
{
	size_t some = range.pages / 16, i;
	int verdict;

	switch (past) {
	case SWAPOFF:
		verdict = out_and_back_by_swapoff();
		break;
	case ONE_WRITTEN:
		verdict = out_and_back_by_swapoff();
		if (!verdict)
			write_page(page_at(7), range.tag, 7);
		break;
	case ALL_SWAPPED:
		return area_on() ?: evict(range.mem, range.pages);
	case READ_BACK:
		verdict = area_on() ?: evict(range.mem, range.pages) ?:
			  kid_comes(child ? range.pages / 2 : range.pages);
		if (verdict)
			break;
		look(0, range.pages);
		if (!child)
			kid_goes();
		break;
	case PROTECTED:
		verdict = child ? kid_comes(range.pages / 2) : FINE;
		if (mprotect(range.mem, bytes(), PROT_READ))
			return say(UNFIT, "mprotect: %s", strerror(errno));
		break;
	default:
		verdict = child ? kid_comes(range.pages / 2) :
				  share_for_a_moment();
	}
	if (verdict)
		return verdict;

	look(0, range.pages);
	switch (past) {
	case HALF_WRITTEN:
		for (i = 0; i < range.pages; i += 2)
			write_page(page_at(i), range.tag, i);
		break;
	case PARTLY_SWAPPED:
		verdict = area_on() ?: evict(page_at(range.pages - some), some);
		break;
	case WITH_HOLES:
	case WITH_ZEROES:
		madvise(page_at(range.pages - some), some * psize(),
			MADV_DONTNEED);
		if (past == WITH_ZEROES)
			look(range.pages - some, some);
		break;
	}
	return verdict;
}

FIXTURE(past) {};

FIXTURE_SETUP(past)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(past)
{
	undo();
}

FIXTURE_VARIANT(past)
{
	enum past past;
	bool child;		/* which has half of the pages, and lives */
	bool khugepaged;
};

FIXTURE_VARIANT_ADD(past, swapoff)
{
	.past = SWAPOFF,
};

FIXTURE_VARIANT_ADD(past, swapoff_khugepaged)
{
	.past = SWAPOFF,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, swapoff_one_written)
{
	.past = ONE_WRITTEN,
};

FIXTURE_VARIANT_ADD(past, swapoff_one_written_khugepaged)
{
	.past = ONE_WRITTEN,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, read_back)
{
	.past = READ_BACK,
};

FIXTURE_VARIANT_ADD(past, read_back_khugepaged)
{
	.past = READ_BACK,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, read_back_child)
{
	.past = READ_BACK,
	.child = true,
};

FIXTURE_VARIANT_ADD(past, read_back_child_khugepaged)
{
	.past = READ_BACK,
	.child = true,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, forked)
{
	.past = FORKED,
};

FIXTURE_VARIANT_ADD(past, forked_khugepaged)
{
	.past = FORKED,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, forked_child)
{
	.past = FORKED,
	.child = true,
};

FIXTURE_VARIANT_ADD(past, forked_child_khugepaged)
{
	.past = FORKED,
	.child = true,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, protected)
{
	.past = PROTECTED,
};

FIXTURE_VARIANT_ADD(past, protected_khugepaged)
{
	.past = PROTECTED,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, protected_child)
{
	.past = PROTECTED,
	.child = true,
};

FIXTURE_VARIANT_ADD(past, protected_child_khugepaged)
{
	.past = PROTECTED,
	.child = true,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, half_written)
{
	.past = HALF_WRITTEN,
};

FIXTURE_VARIANT_ADD(past, half_written_khugepaged)
{
	.past = HALF_WRITTEN,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, partly_swapped)
{
	.past = PARTLY_SWAPPED,
};

FIXTURE_VARIANT_ADD(past, partly_swapped_khugepaged)
{
	.past = PARTLY_SWAPPED,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(past, with_holes)
{
	.past = WITH_HOLES,
};

FIXTURE_VARIANT_ADD(past, with_zeroes)
{
	.past = WITH_ZEROES,
};

FIXTURE_VARIANT_ADD(past, all_swapped)
{
	.past = ALL_SWAPPED,
};

TEST_F_TIMEOUT(past, collapses, CASE_SECONDS)
{
	bool protected = variant->past == PROTECTED;
	bool holes = variant->past == WITH_HOLES ||
		     variant->past == WITH_ZEROES;
	size_t some;
	int verdict;

	verdict = fill_range() ?: make_past(variant->past, variant->child) ?:
		  (variant->khugepaged ? khugepaged_collapses() : collapse());
	some = holes ? range.pages / 16 : 0;
	verdict = verdict ?:
		  all_have(0, range.pages - some, range.tag, "collapsed") ?:
		  all_zero(range.pages - some, some, "collapsed") ?:
		  kid_does(LOOK);
	if (!verdict && is_writable(range.mem) == protected)
		verdict = say(BROKEN, protected ? "it can be written to" :
						  "it cannot be written to");
	verdict = verdict ?: both_write();
	kid_goes();
	conclude(_metadata, verdict);
}

/* Pages that a child shares beyond the limit of khugepaged: MADV_COLLAPSE only */
FIXTURE(rule) {};

FIXTURE_SETUP(rule)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(rule)
{
	undo();
}

static int all_shared(void)
{
	int verdict;

	verdict = fill_range() ?: kid_comes(range.pages);
	look(0, range.pages);
	verdict = verdict ?: remember() ?: khugepaged_leaves(0) ?:
		  unchanged() ?: only("thp_scan_exceed_share_pte") ?:
		  collapse() ?:
		  all_have(0, range.pages, range.tag, "collapsed") ?:
		  both_write();
	kid_goes();
	return verdict;
}

TEST_F_TIMEOUT(rule, sharing_limit, CASE_SECONDS)
{
	conclude(_metadata, all_shared());
}

static int much_swapped(void)
{
	int verdict = fill_range();
	size_t half = range.pages / 2;

	verdict = verdict ?: share_for_a_moment() ?: area_on() ?:
		  evict(page_at(half), half);
	look(0, half);
	verdict = verdict ?: remember() ?: khugepaged_leaves(0) ?:
		  unchanged() ?: only("thp_scan_exceed_swap_pte") ?:
		  collapse() ?:
		  all_have(0, range.pages, range.tag, "collapsed");
	return verdict;
}

TEST_F_TIMEOUT(rule, swap_limit, CASE_SECONDS)
{
	conclude(_metadata, much_swapped());
}

/*
 * The zero page nearly everywhere: a huge page would be new memory, and nobody
 * asked for it.
 */
static int sparse(void)
{
	long before, after;
	int verdict = map_range();

	if (verdict)
		return verdict;
	range.tag = ++next_tag;
	look(0, range.pages);
	fill(0, 1, range.tag);
	verdict = share_for_a_moment();
	look(0, 1);
	drain_all();
	before = rss_anon();
	verdict = verdict ?: remember() ?: khugepaged_leaves(range.pages) ?:
		  unchanged();
	after = rss_anon();
	if (!verdict && after > before + 64)
		verdict = say(BROKEN, "RSS grows from %ld to %ld kB", before,
			      after);
	return verdict ?: all_have(0, 1, range.tag, "left alone") ?:
	       all_zero(1, range.pages - 1, "left alone");
}

TEST_F_TIMEOUT(rule, sparse_zero_pages, CASE_SECONDS)
{
	conclude(_metadata, sparse());
}

/* Nothing but the zero page: there is no page to be moved at all */
static int only_zeroes(void)
{
	int verdict = map_range();

	if (verdict)
		return verdict;
	/* khugepaged does not look where no page has ever been */
	fill(0, 1, 0);
	madvise(range.mem, bytes(), MADV_DONTNEED);
	look(0, range.pages);
	return remember() ?: khugepaged_leaves(range.pages) ?: unchanged() ?:
	       all_zero(0, range.pages, "left alone");
}

TEST_F_TIMEOUT(rule, only_zero_pages, CASE_SECONDS)
{
	conclude(_metadata, only_zeroes());
}

/* KSM's pages: two ranges, every page of one is merged with one of the other */

static char *twin;

/*
 * Each page is mapped more than once.  KPF_KSM does not tell: Linux 6.12 shows it
 * for all anonymous pages.
 */
static bool all_merged(char *mem)
{
	size_t i;

	if (!get_entries(mem, range.pages))
		return false;
	for (i = 0; i < range.pages; i++)
		if (!(entry[i] & PM_PRESENT) || entry[i] & PM_MMAP_EXCLUSIVE)
			return false;
	return true;
}

static int merge_range(void)
{
	struct range first;
	int verdict;
	long end;

	if (!turn(KSM_DIR "pages_to_scan", "5000") ||
	    !turn(KSM_DIR "sleep_millisecs", "2"))
		return say(UNFIT, "no KSM");
	/* Exists in newer kernels only: skips pages it could not merge */
	turn(KSM_DIR "smart_scan", "0");
	verdict = fill_range();
	if (verdict)
		return verdict;
	first = range;
	verdict = map_range();
	if (verdict)
		return verdict;
	twin = range.mem;
	fill(0, range.pages, first.tag);
	range = first;
	if (madvise(range.mem, bytes(), MADV_MERGEABLE) ||
	    madvise(twin, bytes(), MADV_MERGEABLE))
		return say(UNFIT, "MADV_MERGEABLE: %s", strerror(errno));
	drain_all();
	if (!put_text(KSM_DIR "run", "1"))
		return say(UNFIT, "ksmd does not start");
	for (end = msecs() + PATIENCE_MSECS; msecs() < end; usleep(5000))
		if (all_merged(range.mem) && all_merged(twin))
			break;
	/* This waits for ksmd, so it has no page locked from now on */
	put_text(KSM_DIR "run", "0");
	return all_merged(range.mem) ? FINE : say(UNFIT, "KSM does not merge");
}

static int twin_has(unsigned int tag)
{
	size_t i;

	for (i = 0; i < range.pages; i++)
		if (!page_has(twin + i * psize(), tag, i))
			return say(BROKEN, "page %zu of the twin is wrong", i);
	return FINE;
}

static long pages_sharing(void)
{
	char buf[32] = "";

	get_text(KSM_DIR "pages_sharing", buf, sizeof(buf));
	return strtol(buf, NULL, 10);
}

static int merged(bool written)
{
	long before, after;
	int verdict = merge_range();

	if (verdict)
		return verdict;
	if (written)
		fill(0, 1, range.tag);
	/* It is not for the number of sharers that they are left alone */
	turn(KHUGEPAGED "max_ptes_shared", "511");
	look(0, range.pages);
	before = pages_sharing();
	verdict = remember() ?: khugepaged_leaves(range.pages) ?: unchanged();
	after = pages_sharing();
	if (!verdict && after < before)
		verdict = say(BROKEN, "pages_sharing falls from %ld to %ld",
			      before, after);
	return verdict ?:
	       all_have(0, range.pages, range.tag, "left alone") ?:
	       twin_has(range.tag);
}

TEST_F_TIMEOUT(rule, merged, CASE_SECONDS)
{
	conclude(_metadata, merged(false));
}

/* 6.12: one writable entry, and khugepaged undoes the work of ksmd */
TEST_F_TIMEOUT(rule, merged_one_written, CASE_SECONDS)
{
	conclude(_metadata, merged(true));
}

/* What MADV_COLLAPSE does with merged pages is its choice, but for content */
static int collapse_merged(void)
{
	unsigned int tag;
	int verdict = merge_range();

	if (verdict)
		return verdict;
	tag = range.tag;
	fill(0, 1, tag);
	collapse_errno();
	verdict = all_have(0, range.pages, tag, "collapsed") ?: twin_has(tag);
	if (verdict)
		return verdict;
	range.tag = ++next_tag;
	fill(0, range.pages, range.tag);
	return twin_has(tag) ?:
	       all_have(0, range.pages, range.tag, "written");
}

TEST_F_TIMEOUT(rule, merged_madvise, CASE_SECONDS)
{
	conclude(_metadata, collapse_merged());
}

/* Lazily free pages: the pages of the second half, or all but one */

static int free_lazily(size_t from)
{
	if (madvise(page_at(from), (range.pages - from) * psize(), MADV_FREE))
		return say(UNFIT, "MADV_FREE: %s", strerror(errno));
	drain_all();
	return FINE;
}

static int still_droppable(size_t from)
{
	size_t dropped = 0, i;
	int try;

	for (try = 0; try < 50 && dropped < range.pages - from; try++) {
		hop(try);
		madvise(page_at(from), (range.pages - from) * psize(),
			MADV_PAGEOUT);
		if (!get_entries(range.mem, range.pages))
			return say(UNFIT, "pagemap cannot be read");
		for (dropped = 0, i = from; i < range.pages; i++)
			dropped += !(entry[i] & (PM_PRESENT | PM_SWAP));
		if (count_swapped(range.mem, range.pages))
			return say(BROKEN, "lazily free pages were swapped");
		if (try > 4)
			usleep(2000);
	}
	if (dropped < range.pages - from)
		return say(BROKEN, "%zu of %zu pages can be dropped", dropped,
			   range.pages - from);
	return all_zero(from, range.pages - from, "dropped");
}

/* 6.12: khugepaged makes ordinary memory of them, up to 511 of 512 pages */
static int lazy_left(size_t from, bool shared)
{
	int verdict;

	verdict = fill_range() ?: (shared ? share_for_a_moment() : FINE) ?:
		  area_on() ?: free_lazily(from);
	return verdict ?: remember() ?: khugepaged_leaves(from) ?:
	       unchanged() ?: all_have(0, from, range.tag, "left alone") ?:
	       still_droppable(from);
}

TEST_F_TIMEOUT(rule, lazyfree_one_hot, CASE_SECONDS)
{
	conclude(_metadata, lazy_left(1, false));
}

TEST_F_TIMEOUT(rule, lazyfree_half, CASE_SECONDS)
{
	conclude(_metadata, lazy_left(256, false));
}

TEST_F_TIMEOUT(rule, lazyfree_half_read_only, CASE_SECONDS)
{
	conclude(_metadata, lazy_left(256, true));
}

/* It may take them or refuse; each is as it was, or zero, and can be written */
static int lazy_madvise(bool shared)
{
	size_t half, i;
	int verdict;

	verdict = fill_range() ?: (shared ? share_for_a_moment() : FINE);
	half = range.pages / 2;
	verdict = verdict ?: free_lazily(half);
	if (verdict)
		return verdict;
	collapse_errno();
	verdict = all_have(0, half, range.tag, "collapsed");
	for (i = half; i < range.pages && !verdict; i++)
		if (!page_has(page_at(i), range.tag, i) &&
		    !page_is_zero(page_at(i)))
			verdict = say(BROKEN, "lazily free page %zu is spoilt",
				      i);
	return verdict ?: both_write();
}

TEST_F_TIMEOUT(rule, lazyfree_madvise, CASE_SECONDS)
{
	conclude(_metadata, lazy_madvise(false));
}

TEST_F_TIMEOUT(rule, lazyfree_madvise_read_only, CASE_SECONDS)
{
	conclude(_metadata, lazy_madvise(true));
}

/*
 * Memory given back does not return with the next pass of khugepaged.
 * 6.12: it does (max_ptes_none is 511).
 */
enum given { AT_ONCE, LAZILY, FROM_SWAP, SHARED };

static int holes_stay(enum given given)
{
	size_t half, got;
	long from, end;
	int verdict = fill_range();

	half = range.pages / 2;
	if (!verdict && given == LAZILY)
		verdict = area_on() ?: free_lazily(half) ?:
			  still_droppable(half);
	if (!verdict && given == FROM_SWAP)
		verdict = area_on() ?: evict(page_at(half), half) ?:
			  free_lazily(half);
	else if (!verdict && given == SHARED)
		verdict = kid_comes(range.pages) ?: free_lazily(half) ?:
			  kid_goes();
	/* Looking at the holes has left the zero page there */
	else if (!verdict &&
		 madvise(page_at(half), half * psize(), MADV_DONTNEED))
		verdict = say(UNFIT, "MADV_DONTNEED: %s", strerror(errno));
	if (verdict)
		return verdict;
	if (madvise(range.mem, bytes(), MADV_HUGEPAGE))
		return say(UNFIT, "MADV_HUGEPAGE: %s", strerror(errno));
	drain_all();
	look(0, half);

	/* A change of this setting wakes khugepaged up, for one pass */
	from = full_scans();
	put_text(KHUGEPAGED "scan_sleep_millisecs", "60000");
	for (end = msecs() + PATIENCE_MSECS; msecs() < end; usleep(1000))
		if (full_scans() > from)
			break;
	if (full_scans() <= from)
		return say(UNFIT, "khugepaged does not come round");
	if (is_huge())
		return say(BROKEN, "a huge page with the first pass");
	if (!get_entries(range.mem, range.pages))
		return say(UNFIT, "pagemap cannot be read");
	for (got = half; got < range.pages; got++)
		if (entry[got] & PM_PRESENT)
			return say(BROKEN, "hole %zu is filled", got);
	return all_have(0, half, range.tag, "left alone");
}

TEST_F_TIMEOUT(rule, holes_of_dontneed, CASE_SECONDS)
{
	conclude(_metadata, holes_stay(AT_ONCE));
}

TEST_F_TIMEOUT(rule, holes_of_free, CASE_SECONDS)
{
	conclude(_metadata, holes_stay(LAZILY));
}

TEST_F_TIMEOUT(rule, holes_of_free_in_swap, CASE_SECONDS)
{
	conclude(_metadata, holes_stay(FROM_SWAP));
}

TEST_F_TIMEOUT(rule, holes_of_free_shared, CASE_SECONDS)
{
	conclude(_metadata, holes_stay(SHARED));
}

/*
 * swapoff makes nothing young.  A range that it brought back whole was split to
 * be swapped out, and is worth a huge page though nobody has used it since; one
 * with a hole would grow, so that has to wait for somebody to use it.
 * 6.12: neither is collapsed.
 */
static int unused_after_swapoff(bool whole)
{
	int verdict = fill_range();

	if (!verdict && madvise(range.mem, bytes(), MADV_HUGEPAGE))
		verdict = say(UNFIT, "MADV_HUGEPAGE: %s", strerror(errno));
	verdict = verdict ?: area_on() ?: evict(range.mem, range.pages);
	if (!verdict && !whole &&
	    madvise(page_at(9), psize(), MADV_DONTNEED))
		verdict = say(UNFIT, "MADV_DONTNEED: %s", strerror(errno));
	verdict = verdict ?: area_off();
	if (verdict)
		return verdict;
	if (whole)
		return khugepaged_collapses() ?:
		       all_have(0, range.pages, range.tag, "collapsed");
	verdict = remember() ?: khugepaged_leaves(0) ?: unchanged();
	if (verdict)
		return verdict;
	look(0, 9);
	return khugepaged_collapses() ?:
	       all_have(0, 9, range.tag, "collapsed");
}

TEST_F_TIMEOUT(rule, unused_after_swapoff, CASE_SECONDS)
{
	conclude(_metadata, unused_after_swapoff(true));
}

TEST_F_TIMEOUT(rule, unused_after_swapoff_hole, CASE_SECONDS)
{
	conclude(_metadata, unused_after_swapoff(false));
}

/* Pages that somebody else refers to */

FIXTURE(held) {};

FIXTURE_SETUP(held)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(held)
{
	undo();
}

FIXTURE_VARIANT(held)
{
	bool pin;		/* or else a pipe refers to them */
	size_t page;
	bool writable;
	bool swap_cache;	/* PTEs of pages in the swap cache */
	bool khugepaged;
};

FIXTURE_VARIANT_ADD(held, pinned)
{
	.pin = true,
	.writable = true,
};

FIXTURE_VARIANT_ADD(held, pinned_read_only)
{
	.pin = true,
	.page = 511,
};

FIXTURE_VARIANT_ADD(held, pinned_khugepaged)
{
	.pin = true,
	.page = 511,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(held, by_pipe)
{
	.page = 100,
	.writable = true,
};

FIXTURE_VARIANT_ADD(held, by_pipe_read_only)
{
	.page = 100,
};

FIXTURE_VARIANT_ADD(held, by_pipe_swap_cache)
{
	.page = 511,
	.swap_cache = true,
};

FIXTURE_VARIANT_ADD(held, by_pipe_khugepaged)
{
	.page = 511,
	.swap_cache = true,
	.khugepaged = true,
};

static int pin_page(int fd, size_t page, unsigned int flags)
{
	struct pin_longterm_test pin = {
		.addr = (uintptr_t)page_at(page),
		.size = psize(),
		.flags = flags,
	};

	if (ioctl(fd, PIN_LONGTERM_TEST_START, &pin))
		return say(UNFIT, "cannot pin: %s", strerror(errno));
	return FINE;
}

static int pin_sees(int fd, unsigned int tag, size_t page)
{
	char *buf = malloc(psize());
	__u64 at = (uintptr_t)buf;
	int verdict = FINE;

	if (!buf)
		return say(UNFIT, "no memory");
	if (ioctl(fd, PIN_LONGTERM_TEST_READ, &at))
		verdict = say(BROKEN, "pinned page: %s", strerror(errno));
	else if (!page_has(buf, tag, page))
		verdict = say(BROKEN, "the pinned page is not the one we have");
	free(buf);
	return verdict;
}

TEST_F_TIMEOUT(held, is_refused, CASE_SECONDS)
{
	int fd = -1, verdict = fill_range();
	size_t page = variant->page;

	if (variant->pin) {
		fd = open(GUP_TEST, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			SKIP(return, "no " GUP_TEST " (CONFIG_GUP_TEST)");
	}
	if (!verdict && variant->swap_cache)
		verdict = make_past(READ_BACK, false);
	else if (!verdict && !variant->writable)
		verdict = share_for_a_moment();
	if (verdict)
		goto out;
	look(0, range.pages);
	verdict = variant->pin ? pin_page(fd, page, 0) :
				 take_grip(page_at(page), 1);
	if (verdict)
		goto out;
	drain_all();
	verdict = variant->khugepaged ?
		  remember() ?: khugepaged_leaves(0) ?: unchanged() :
		  refused(EAGAIN);
	verdict = verdict ?: all_have(0, range.pages, range.tag, "refused");

	/* What is held is still what is mapped */
	if (!verdict && variant->pin) {
		fill(page, 1, range.tag + 1000);
		verdict = pin_sees(fd, range.tag + 1000, page);
		fill(page, 1, range.tag);
	}
	if (fd >= 0)
		ioctl(fd, PIN_LONGTERM_TEST_STOP);
	drop_grip();

	/* It was this, and nothing else */
	verdict = verdict ?: collapse() ?:
		  all_have(0, range.pages, range.tag, "collapsed");
out:
	if (fd >= 0)
		close(fd);
	conclude(_metadata, verdict);
}

/* userfaultfd: nothing that it guards goes by it */
FIXTURE(uffd) {};

FIXTURE_SETUP(uffd)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(uffd)
{
	undo();
}

FIXTURE_VARIANT(uffd)
{
	bool hole;		/* missing pages are waited for */
	bool swapped;		/* write protection, kept in a swap entry */
	bool back;		/* ... and back by swapoff */
	bool khugepaged;
};

FIXTURE_VARIANT_ADD(uffd, hole)
{
	.hole = true,
};

FIXTURE_VARIANT_ADD(uffd, hole_khugepaged)
{
	.hole = true,
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(uffd, protected) {};

FIXTURE_VARIANT_ADD(uffd, protected_khugepaged)
{
	.khugepaged = true,
};

FIXTURE_VARIANT_ADD(uffd, protected_swapped)
{
	.swapped = true,
};

FIXTURE_VARIANT_ADD(uffd, protected_back)
{
	.swapped = true,
	.back = true,
};

FIXTURE_VARIANT_ADD(uffd, protected_back_khugepaged)
{
	.swapped = true,
	.back = true,
	.khugepaged = true,
};

static int open_uffd(unsigned long long mode, unsigned long long features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register reg = { .mode = mode };
	int fd = syscall(__NR_userfaultfd, O_CLOEXEC);

	reg.range.start = (uintptr_t)range.mem;
	reg.range.len = bytes();
	if (fd >= 0 && (ioctl(fd, UFFDIO_API, &api) ||
			ioctl(fd, UFFDIO_REGISTER, &reg))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static int protect_page(int fd, size_t page, bool on)
{
	struct uffdio_writeprotect wp = {
		.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	wp.range.start = (uintptr_t)page_at(page);
	wp.range.len = psize();
	if (ioctl(fd, UFFDIO_WRITEPROTECT, &wp))
		return say(UNFIT, "UFFDIO_WRITEPROTECT: %s", strerror(errno));
	return FINE;
}

static int still_protected(size_t page)
{
	if (!get_entries(range.mem, range.pages))
		return say(BROKEN, "pagemap cannot be read");
	if (!(entry[page] & PM_UFFD_WP))
		return say(BROKEN, "write protection has vanished");
	return FINE;
}

TEST_F_TIMEOUT(uffd, is_refused, CASE_SECONDS)
{
	size_t page = 300;
	int fd = -1, verdict;

	/* All read-only: nothing but userfaultfd speaks against a huge page */
	verdict = fill_range() ?: share_for_a_moment();
	if (!verdict && variant->hole)
		madvise(page_at(page), psize(), MADV_DONTNEED);
	if (!verdict) {
		fd = open_uffd(variant->hole ? UFFDIO_REGISTER_MODE_MISSING :
					       UFFDIO_REGISTER_MODE_WP, 0);
		if (fd < 0)
			verdict = say(UNFIT, "userfaultfd: %s",
				      strerror(errno));
	}
	if (!verdict && !variant->hole)
		verdict = protect_page(fd, page, true);
	if (!verdict && variant->swapped)
		verdict = area_on() ?: evict(page_at(page), 1);
	if (!verdict && variant->back)
		verdict = area_off();
	if (verdict)
		goto out;
	look(0, page);
	verdict = variant->khugepaged ?
		  remember() ?: khugepaged_leaves(0) ?: unchanged() :
		  refused(variant->hole ? EBUSY : EINVAL);
	if (!verdict && !variant->hole)
		verdict = still_protected(page);
	verdict = verdict ?: all_have(0, page, range.tag, "refused");
	if (verdict)
		goto out;

	/* It was this, and nothing else */
	if (!variant->hole)
		verdict = protect_page(fd, page, false);
	close(fd);
	fd = -1;
	verdict = verdict ?: collapse() ?:
		  all_have(0, page, range.tag, "collapsed") ?:
		  (variant->hole ? all_zero(page, 1, "collapsed") :
				   all_have(page, 1, range.tag, "collapsed"));
out:
	if (fd >= 0)
		close(fd);
	conclude(_metadata, verdict);
}

/* One page cannot be read any more: the others stay what and where they are */

static int poison_page(size_t page)
{
	struct uffdio_poison poison = {};
	int fd, err;

	madvise(page_at(page), psize(), MADV_DONTNEED);
	fd = open_uffd(UFFDIO_REGISTER_MODE_MISSING, UFFD_FEATURE_POISON);
	poison.range.start = (uintptr_t)page_at(page);
	poison.range.len = psize();
	err = fd < 0 || ioctl(fd, UFFDIO_POISON, &poison);
	if (fd >= 0)
		close(fd);
	return err ? say(UNFIT, "no UFFDIO_POISON") : FINE;
}

static bool is_poisoned(size_t page)
{
	char c;
	int ends[2];
	bool bad;

	if (pipe(ends))
		return false;
	bad = write(ends[1], page_at(page), 1) < 0 && errno == EFAULT;
	if (!bad && read(ends[0], &c, 1) != 1)
		bad = false;
	close(ends[0]);
	close(ends[1]);
	return bad;
}

static int poisoned(void)
{
	size_t page = 200, pages;
	int verdict;

	verdict = fill_range() ?: share_for_a_moment() ?: poison_page(page);
	if (verdict)
		return verdict;
	pages = range.pages;
	look(0, page);
	verdict = refused(EINVAL);
	if (!verdict && !is_poisoned(page))
		verdict = say(BROKEN, "the page can be read");
	return verdict ?: all_have(0, page, range.tag, "refused") ?:
	       all_have(page + 1, pages - page - 1, range.tag, "refused");
}

TEST_F_TIMEOUT(rule, poisoned, CASE_SECONDS)
{
	conclude(_metadata, poisoned());
}

/*
 * What an administrator reads in /proc/vmstat: one counter rises, and it is the
 * one that tells the reason.  6.12: there are counters of the three limits only.
 */
FIXTURE(reason) {};

FIXTURE_SETUP(reason)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(reason)
{
	undo();
}

TEST_F_TIMEOUT(reason, zero_pte, CASE_SECONDS)
{
	conclude(_metadata, sparse() ?: only("thp_scan_zero_pte"));
}

TEST_F_TIMEOUT(reason, ksm_pte, CASE_SECONDS)
{
	conclude(_metadata, merged(true) ?: only("thp_scan_ksm_pte"));
}

static int lazy_counts(void)
{
	int verdict = fill_range() ?: free_lazily(1);

	return verdict ?: khugepaged_leaves(1) ?: only("thp_scan_lazyfree_pte");
}

TEST_F_TIMEOUT(reason, lazyfree_pte, CASE_SECONDS)
{
	conclude(_metadata, lazy_counts());
}

static int uffd_counts(void)
{
	int fd, verdict = fill_range();

	if (verdict)
		return verdict;
	fd = open_uffd(UFFDIO_REGISTER_MODE_WP, 0);
	if (fd < 0)
		return say(UNFIT, "userfaultfd: %s", strerror(errno));
	verdict = protect_page(fd, 3, true) ?: refused(EINVAL) ?:
		  only("thp_scan_uffd_pte");
	close(fd);
	return verdict;
}

TEST_F_TIMEOUT(reason, uffd_pte, CASE_SECONDS)
{
	conclude(_metadata, uffd_counts());
}

/* MADV_COLD: nobody has used them, as far as the kernel knows */
static int cold_counts(void)
{
	int n, verdict = fill_range();

	drain_all();
	for (n = nr_cpus() - 1; n >= 0 && !verdict; n--) {
		hop(n);
		if (madvise(range.mem, bytes(), MADV_COLD))
			verdict = say(UNFIT, "MADV_COLD: %s", strerror(errno));
	}
	return verdict ?: khugepaged_leaves(0) ?: only("thp_scan_not_young") ?:
	       collapse();
}

TEST_F_TIMEOUT(reason, not_young, CASE_SECONDS)
{
	conclude(_metadata, cold_counts());
}

static int held_counts(void)
{
	int verdict = fill_range() ?: take_grip(page_at(9), 1);

	verdict = verdict ?: refused(EAGAIN) ?: only("thp_scan_pinned");
	drop_grip();
	return verdict;
}

TEST_F_TIMEOUT(reason, pinned, CASE_SECONDS)
{
	conclude(_metadata, held_counts());
}

static int poison_counts(void)
{
	int verdict = fill_range() ?: poison_page(3);

	return verdict ?: refused(EINVAL) ?: only("thp_scan_other");
}

TEST_F_TIMEOUT(reason, other, CASE_SECONDS)
{
	conclude(_metadata, poison_counts());
}

/* Races: one thread makes huge pages all the time, and this is what it meets */

static struct maker {
	pthread_t thread;
	bool stop;
	bool on;
	unsigned long made;
	unsigned long refused;
} maker;

static void *make_huge(void *unused)
{
	hop(1);
	while (!__atomic_load_n(&maker.stop, __ATOMIC_RELAXED)) {
		if (madvise(range.mem, bytes(), MADV_COLLAPSE))
			maker.refused++;
		else
			maker.made++;
		/* The others want mmap_lock, too */
		usleep(200);
	}
	return unused;
}

static int start_maker(void)
{
	if (nr_cpus() < 2)
		return say(UNFIT, "needs two CPUs");
	hop(0);
	maker = (struct maker){};
	if (pthread_create(&maker.thread, NULL, make_huge, NULL))
		return say(UNFIT, "no thread");
	maker.on = true;
	return FINE;
}

/* A race that nobody runs proves nothing */
static int stop_maker(void)
{
	if (!maker.on)
		return FINE;
	__atomic_store_n(&maker.stop, true, __ATOMIC_RELAXED);
	pthread_join(maker.thread, NULL);
	maker.on = false;
	ksft_print_msg("%lu times a huge page, %lu times refused\n", maker.made,
		       maker.refused);
	return maker.made ? FINE : say(BROKEN, "never was it a huge page");
}

/*
 * A page is seldom found outside the LRU lists, unless it was just faulted in
 * on another CPU, which has it in its batch.
 */
static int busy_counts(void)
{
	long busy = number_of(VMSTAT, "thp_scan_busy"), end;
	int made;
	int verdict = fill_range();

	if (!verdict && busy < 0)
		verdict = say(BROKEN, "no thp_scan_busy in " VMSTAT);
	verdict = verdict ?: start_maker();
	if (verdict)
		return verdict;
	verdict = say(BROKEN, "thp_scan_busy does not rise");
	end = msecs() + 30 * RACE_MSECS;
	while (msecs() < end &&
	       (verdict || !__atomic_load_n(&maker.made, __ATOMIC_RELAXED))) {
		madvise(page_at(5), psize(), MADV_DONTNEED);
		write_page(page_at(5), range.tag, 5);
		if (number_of(VMSTAT, "thp_scan_busy") > busy)
			verdict = FINE;
	}
	made = stop_maker();
	return verdict ?: made ?:
	       all_have(0, range.pages, range.tag, "at the end");
}

TEST_F_TIMEOUT(reason, busy, CASE_SECONDS)
{
	conclude(_metadata, busy_counts());
}

FIXTURE(race) {};

FIXTURE_SETUP(race)
{
	prepare_or_skip(_metadata);
}

FIXTURE_TEARDOWN_PARENT(race)
{
	undo();
}

static int fork_and_exit(void)
{
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	if (pid < 0)
		return say(UNFIT, "fork: %s", strerror(errno));
	waitpid(pid, NULL, 0);
	return FINE;
}

/* Small pages again, as a huge one would stay, and all of them read-only */
static int renew(void)
{
	madvise(range.mem, bytes(), MADV_DONTNEED);
	fill(0, range.pages, range.tag);
	return fork_and_exit();
}

/* The disk writes into a page while its range is collapsed */
static int direct_io(void)
{
	size_t blocks = 16, n = 8, page, round = 0, i;
	char path[32], *disk;
	__u64 seed = 88172645463325252ULL;
	int fd = -1, loop, mem, verdict;
	long end;
	int made;

	loop = make_loop(path, sizeof(path), blocks * psize(), &mem);
	if (loop < 0)
		return say(UNFIT, "no loop device");
	disk = mmap(NULL, blocks * psize(), PROT_READ | PROT_WRITE, MAP_SHARED,
		    mem, 0);
	fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (disk == MAP_FAILED || fd < 0)
		return say(UNFIT, "%s: %s", path, strerror(errno));
	for (i = 0; i < blocks; i++)
		write_page(disk + i * psize(), 7777, i);

	verdict = fill_range() ?: start_maker();
	for (end = msecs() + RACE_MSECS; msecs() < end && !verdict; round++) {
		if (round % 8 == 0)
			verdict = renew();
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		page = (seed >> 33) % (range.pages - n);
		if (pread(fd, page_at(page), n * psize(), 0) !=
		    (ssize_t)(n * psize()))
			verdict = say(UNFIT, "pread: %s", strerror(errno));
		for (i = 0; i < n && !verdict; i++)
			if (!page_has(page_at(page + i), 7777, i))
				verdict = say(BROKEN, "block %zu is lost", i);
		fill(page, n, range.tag);
		if (!verdict && round % 8 == 7)
			verdict = all_have(0, range.pages, range.tag, "race");
	}
	made = stop_maker();
	close(fd);
	close(loop);
	return verdict ?: made;
}

TEST_F_TIMEOUT(race, direct_io, CASE_SECONDS)
{
	conclude(_metadata, direct_io());
}

/* A pinned page is the one that is mapped, for as long as it is pinned */
static int pin_fast(void)
{
	int fd = open(GUP_TEST, O_RDWR | O_CLOEXEC), verdict;
	unsigned int tag;
	size_t page = 0;
	long end;
	int made;

	if (fd < 0)
		return say(UNFIT, "no " GUP_TEST " (CONFIG_GUP_TEST)");
	verdict = fill_range() ?: start_maker();
	for (end = msecs() + RACE_MSECS; msecs() < end && !verdict; page++) {
		page %= range.pages;
		if (page % 4 == 0)
			verdict = renew();
		tag = ++next_tag;
		verdict = verdict ?:
			  pin_page(fd, page, PIN_LONGTERM_TEST_FLAG_USE_FAST |
				   (page & 1 ?
				    PIN_LONGTERM_TEST_FLAG_USE_WRITE : 0)) ?:
			  pin_sees(fd, range.tag, page);
		fill(page, 1, tag);
		verdict = verdict ?: pin_sees(fd, tag, page);
		usleep(300);
		verdict = verdict ?: pin_sees(fd, tag, page);
		fill(page, 1, range.tag);
		ioctl(fd, PIN_LONGTERM_TEST_STOP);
	}
	made = stop_maker();
	close(fd);
	return verdict ?: made ?:
	       all_have(0, range.pages, range.tag, "at the end");
}

TEST_F_TIMEOUT(race, pin_fast, CASE_SECONDS)
{
	conclude(_metadata, pin_fast());
}

static int against_swapoff(void)
{
	int verdict = fill_range() ?: start_maker();
	long end;
	int made;

	for (end = msecs() + RACE_MSECS; msecs() < end && !verdict;) {
		verdict = renew() ?: area_on();
		if (verdict)
			break;
		madvise(range.mem, bytes(), MADV_PAGEOUT);
		look(0, 64);
		verdict = area_off() ?:
			  all_have(0, range.pages, range.tag, "swapoff");
	}
	made = stop_maker();
	return verdict ?: made ?:
	       all_have(0, range.pages, range.tag, "at the end");
}

TEST_F_TIMEOUT(race, swapoff, CASE_SECONDS)
{
	conclude(_metadata, against_swapoff());
}

/* Each child has what was there when it came, whatever we write meanwhile */
static int against_fork(void)
{
	int verdict = fill_range() ?: start_maker();
	size_t i;
	long end;
	int made;

	for (end = msecs() + RACE_MSECS; msecs() < end && !verdict;) {
		verdict = renew() ?: kid_comes(range.pages);
		range.tag = ++next_tag;
		for (i = 0; i < range.pages && !verdict; i++) {
			write_page(page_at(i), range.tag, i);
			if (i % 128 == 0)
				verdict = kid_does(LOOK);
		}
		verdict = verdict ?: kid_does(LOOK) ?: kid_does(WRITE) ?:
			  all_have(0, range.pages, range.tag, "child wrote");
		kid_goes();
	}
	made = stop_maker();
	return verdict ?: made ?:
	       all_have(0, range.pages, range.tag, "at the end");
}

TEST_F_TIMEOUT(race, fork, CASE_SECONDS)
{
	conclude(_metadata, against_fork());
}

/* What is written after MADV_FREE stays, the rest is as it was or zero */
static int against_free(void)
{
	int verdict = fill_range();
	size_t half, i;
	long end;
	int made;

	half = range.pages / 2;
	if (!verdict && madvise(page_at(half), half * psize(), MADV_FREE))
		return say(UNFIT, "MADV_FREE: %s", strerror(errno));
	verdict = verdict ?: start_maker();
	for (end = msecs() + RACE_MSECS; msecs() < end && !verdict;) {
		verdict = renew();
		madvise(page_at(half), half * psize(), MADV_FREE);
		for (i = half; i < range.pages; i += 2)
			write_page(page_at(i), range.tag, i);
		for (i = half; i < range.pages && !verdict; i++)
			if (!page_has(page_at(i), range.tag, i) &&
			    (i % 2 == 0 || !page_is_zero(page_at(i))))
				verdict = say(BROKEN, "page %zu is spoilt", i);
		verdict = verdict ?: all_have(0, half, range.tag, "race");
		for (i = half + 1; i < range.pages; i += 2)
			write_page(page_at(i), range.tag, i);
		verdict = verdict ?:
			  all_have(half, half, range.tag, "written after");
	}
	made = stop_maker();
	return verdict ?: made ?:
	       all_have(0, half, range.tag, "at the end");
}

TEST_F_TIMEOUT(race, madv_free, CASE_SECONDS)
{
	conclude(_metadata, against_free());
}

/* Nothing of the old mapping is to be seen in the new one */
static int against_munmap(void)
{
	int verdict = fill_range() ?: start_maker();
	size_t half;
	long end;
	int made;

	half = range.pages / 2;
	for (end = msecs() + RACE_MSECS; msecs() < end && !verdict;) {
		verdict = renew();
		if (munmap(page_at(half), half * psize()) ||
		    mmap(page_at(half), half * psize(), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
			 MAP_FIXED, -1, 0) != page_at(half))
			verdict = say(UNFIT, "mmap: %s", strerror(errno));
		verdict = verdict ?: all_zero(half, half, "mapped anew") ?:
			  all_have(0, half, range.tag, "not unmapped");
		fill(half, half, range.tag);
		verdict = verdict ?:
			  all_have(0, range.pages, range.tag, "filled");
	}
	made = stop_maker();
	return verdict ?: made;
}

TEST_F_TIMEOUT(race, munmap, CASE_SECONDS)
{
	conclude(_metadata, against_munmap());
}

/* The same with khugepaged in place of a thread, and one child after another */
static int against_khugepaged(void)
{
	long before = number_of(VMSTAT, "thp_collapse_alloc"), end;
	int verdict = fill_range();

	if (verdict)
		return verdict;
	madvise(range.mem, bytes(), MADV_HUGEPAGE);
	turn(KHUGEPAGED "max_ptes_shared", "511");
	turn(KHUGEPAGED "scan_sleep_millisecs", "1");
	for (end = msecs() + RACE_MSECS; msecs() < end && !verdict;) {
		verdict = fork_and_exit() ?: area_on();
		if (verdict)
			break;
		madvise(page_at(range.pages / 2), bytes() / 2, MADV_PAGEOUT);
		verdict = all_have(0, range.pages, range.tag, "swapped") ?:
			  kid_comes(range.pages / 4);
		range.tag = ++next_tag;
		fill(0, range.pages, range.tag);
		verdict = verdict ?: kid_does(LOOK) ?: area_off() ?:
			  kid_does(WRITE) ?:
			  all_have(0, range.pages, range.tag, "swapoff");
		kid_goes();
	}
	if (!verdict && number_of(VMSTAT, "thp_collapse_alloc") == before)
		verdict = say(BROKEN, "khugepaged never tried");
	return verdict;
}

TEST_F_TIMEOUT(race, khugepaged, CASE_SECONDS)
{
	conclude(_metadata, against_khugepaged());
}

TEST_HARNESS_MAIN
