// SPDX-License-Identifier: GPL-2.0
/*
 * Everything around swapping at the same time; no byte may get lost.
 *
 * Workers own memory of several kinds: small pages, 64 KiB folios, huge pages,
 * pages for KSM, and a memfd.  They do all that a process can do with it, and
 * fork children who do the same with what they inherited.  What every page has
 * to contain is known, exactly:
 *
 * - A page is written with words made from a key, which no other page has, and
 *   tells whose page it is.  So content that turns up elsewhere is recognized.
 *   Only the pages meant for KSM have keys in common.
 * - Single bytes that are written later are remembered, too.
 * - A page given to MADV_FREE has what it had, or nothing but zeroes.  Once it
 *   was seen as zeroes, or is written to, there is no way back.
 *
 * Every byte of a page is compared.  What is known is in locked, shared memory,
 * out of reach of most of what is tested here.
 *
 * Meanwhile agitators, each a process of its own, switch swap areas off and on
 * (and interrupt that), reclaim, compact, migrate, collapse, merge, let memory
 * allocations fail, and so on.
 *
 * The order of operations of a worker depends on the seed only; what comes
 * together with what is up to the machine.
 *
 * Swap space: SWAP_DEV (see swap_util.h) or empty disks, and a zram device.
 * Swap space of others is never switched off.
 */
#include <getopt.h>
#include <poll.h>
#include <time.h>
#include <linux/falloc.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
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
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#define MADV_POPULATE_WRITE	23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE		25
#endif

#define DAY		86400
#define LONG_RUN	60	/* seconds in which everything happens once */
#define GRACE		120	/* seconds to end after a long run */
#define STUCK		40	/* seconds in one operation: worth a line */
#define MAX_WORKERS	16
#define SLOTS		3	/* a worker and its children */
#define CANDIDATES	3
#define PATCHES		3
#define RECORDS		8192	/* a power of two */
#define MAX_SWAPS	4
#define DISK_PAGES	256
#define MAX_SPLICE	8
#define TWINS		8
#define ALL_TWINS	0xff
#define DISK		0xfe
#define GROUP		"/sys/fs/cgroup/swap_stress"
#define ROOT_CONTROL	"/sys/fs/cgroup/cgroup.subtree_control"
#define LRU_GEN		"/sys/kernel/mm/lru_gen/enabled"
#define KHUGEPAGED	THP_DIR "khugepaged/"
#define FAIL_PAGES	"/sys/kernel/debug/fail_page_alloc/"
#define FAIL_SLAB	"/sys/kernel/debug/failslab/"
#define ZRAM		"/sys/class/zram-control/"
#define VM		"/proc/sys/vm/"

/* What was done: by workers, then by agitators */
enum op {
	/* Workers */
	CHECK, VMREAD, WRITE, POKE, VMWRITE, DIO, FREE, DONTNEED, PAGEOUT, COLD,
	WILLNEED, COLLAPSE, HUGE, MERGE, PROTECT, MREMAP, REMAP, FORK, KILL,
	LOCK, SPLICE, PIN, PUNCH, TRUNCATE, ALARM,
	/* Agitators */
	OFF, INTERRUPT, COMPACT, MIGRATE, KHUGE, KSMD, RECLAIM, HOG, FAIL,
	DROP, LRU, SMAPS, OFF2,
	NR_OPS,
	FIRST_AGITATOR = OFF,
};

struct op_info {
	const char *name;
	int weight;		/* of workers' operations */
	int pause;		/* msecs, of agitators */
};

static const struct op_info ops[NR_OPS] = {
	[CHECK]		= { "check", 30 },
	[VMREAD]	= { "vmread", 5 },
	[WRITE]		= { "write", 12 },
	[POKE]		= { "poke", 12 },
	[VMWRITE]	= { "vmwrite", 3 },
	[DIO]		= { "dio", 4 },
	[FREE]		= { "free", 10 },
	[DONTNEED]	= { "dontneed", 4 },
	[PAGEOUT]	= { "pageout", 12 },
	[COLD]		= { "cold", 2 },
	[WILLNEED]	= { "willneed", 3 },
	[COLLAPSE]	= { "collapse", 3 },
	[HUGE]		= { "huge", 1 },
	[MERGE]		= { "merge", 1 },
	[PROTECT]	= { "protect", 4 },
	[MREMAP]	= { "mremap", 3 },
	[REMAP]		= { "remap", 3 },
	[FORK]		= { "fork", 3 },
	[KILL]		= { "kill", 1 },
	[LOCK]		= { "lock", 2 },
	[SPLICE]	= { "splice", 4 },
	[PIN]		= { "pin", 3 },
	[PUNCH]		= { "punch", 3 },
	[TRUNCATE]	= { "truncate", 2 },
	[ALARM]		= { "alarm", 0 },
	[OFF]		= { "swapoff", 0, 50 },
	[INTERRUPT]	= { "interrupt", 0, 0 },
	[COMPACT]	= { "compact", 0, 800 },
	[MIGRATE]	= { "migrate", 0, 200 },
	[KHUGE]		= { "khugepaged", 0, 500 },
	[KSMD]		= { "ksmd", 0, 1500 },
	[RECLAIM]	= { "reclaim", 0, 100 },
	[HOG]		= { "hog", 0, 1500 },
	[FAIL]		= { "fail", 0, 1000 },
	[DROP]		= { "drop_caches", 0, 3000 },
	[LRU]		= { "lru_gen", 0, 4000 },
	[SMAPS]		= { "smaps", 0, 300 },
	/*
	 * 6.12: two at a time may never end, and cannot be killed, for the list
	 * of swapped shmem files can change under them.  Only with -a.
	 */
	[OFF2]		= { "swapoff2", 0, 50 },
};

/* Memory of a worker */
enum kind { SMALL, MEDIUM, LARGE, ALIKE, SHARED, NR_KINDS };

static const struct {
	const char *name;
	unsigned int pages;
} kinds[NR_KINDS] = {
	[SMALL]		= { "small", 200 },
	[MEDIUM]	= { "64K", 256 },
	[LARGE]		= { "huge", 1024 },
	[ALIKE]		= { "alike", 128 },
	[SHARED]	= { "memfd", 512 },
};

#define ALL_PAGES	(200 + 256 + 1024 + 128 + 512)

struct area {
	enum kind kind;
	char *mem;
	char *room[2];		/* where it can be */
	int in;			/* which room it is in */
	unsigned int pages;
	unsigned int base;	/* number of its first page in the model */
	bool read_only;		/* part of it */
	bool locked;		/* part of it */
	bool huge;
	bool merge;
};

/* The words from @key (0: zeroes), with @patches bytes in other places */
struct content {
	__u64 key;
	__u16 at[PATCHES];
	__u8 byte[PATCHES];
	__u8 patches;
};

struct page {
	struct content can[CANDIDATES];	/* one of these is in the page */
	__u8 cans;
	bool droppable;			/* can turn into zeroes at any time */
};

#define BEGUN	2		/* and perhaps killed since */

struct record {
	__u32 ms;
	__s16 error;		/* 1: it did not apply */
	__u8 op;
	__u8 area;
	__u8 slot;
	__u16 first;
	__u16 pages;
};

/* Shared by all processes */
struct worker {
	struct page model[SLOTS][ALL_PAGES];
	struct record record[RECORDS];
	unsigned int records;
	unsigned int now;		/* operation */
	unsigned int since;
	pid_t pid;
};

struct board {
	bool stop;
	int broken;			/* pages with wrong content */
	int dead;			/* processes that died */
	int stuck;			/* processes that did not end */
	long dropped;			/* pages that went by MADV_FREE */
	long checked;
	long ok[NR_OPS], failed[NR_OPS];
	long swapoff_msecs;		/* the longest one */
	int swapoff_bad;
	struct record record[RECORDS];	/* of agitators */
	unsigned int records;
	char swap[MAX_SWAPS][64];
	int swaps;
	char text[512];			/* what is wrong with the run */
	bool use[NR_OPS];		/* operations of this run */
};

static struct board *board;
static struct worker *workers[MAX_WORKERS];

/* Options */
static int opt_seconds = 15;
static int opt_workers = 4;
static __u64 opt_seed;
static long opt_plant;

/* This process */
static struct worker *me;
static int my_number;
static int my_slot;
static struct area areas[NR_KINDS];
static __u64 rng;
static __u64 generation;
static int memfd = -1, disk = -1, gup = -1;
static pid_t kid[SLOTS];
static bool kid_killed[SLOTS];
static unsigned char *found, *wanted;

static unsigned int run_msecs(void)
{
	static struct timespec start;
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	if (!start.tv_sec)
		start = t;
	return (t.tv_sec - start.tv_sec) * 1000 +
	       (t.tv_nsec - start.tv_nsec) / 1000000;
}

static __u64 dice(__u64 sides)
{
	__u64 z;

	rng += 0x9e3779b97f4a7c15ULL;
	z = rng;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return (z ^ (z >> 31)) % sides;
}

static bool stopped(void)
{
	return __atomic_load_n(&board->stop, __ATOMIC_RELAXED);
}

static void stop(void)
{
	__atomic_store_n(&board->stop, true, __ATOMIC_RELAXED);
}

static void count(long *what)
{
	__atomic_fetch_add(what, 1, __ATOMIC_RELAXED);
}

static void count_op(enum op op, int error)
{
	count(error < 0 ? &board->failed[op] : &board->ok[op]);
}

/* One write for each, so that lines of several processes do not mix */
static __printf(1, 2) void tell(const char *fmt, ...)
{
	char line[512] = "# ";
	va_list args;
	int len;

	va_start(args, fmt);
	len = vsnprintf(line + 2, sizeof(line) - 3, fmt, args) + 2;
	va_end(args);
	if (len > (int)sizeof(line) - 2)
		len = sizeof(line) - 2;
	line[len++] = '\n';
	if (write(STDOUT_FILENO, line, len) < 0)
		stop();
}

/* Before the operation, the result comes later */
static struct record *note(struct record *ring, unsigned int *head, enum op op,
			   int area, unsigned int first, unsigned int pages)
{
	unsigned int n = __atomic_fetch_add(head, 1, __ATOMIC_RELAXED);

	ring[n % RECORDS] = (struct record) {
		.ms = run_msecs(), .error = BEGUN, .op = op, .area = area,
		.slot = my_slot, .first = first, .pages = pages,
	};
	return &ring[n % RECORDS];
}

/* Content */

#define WORD_STEP	0x9e3779b97f4a7c15ULL
#define WORD_FACTOR	0xd6e8feb86659fd93ULL

static inline __u64 word_of(__u64 key, unsigned int i)
{
	__u64 w = (key + i * WORD_STEP) * WORD_FACTOR;

	return w ^ (w >> 32);
}

/* The key from a word at its place */
static __u64 key_of(__u64 word, unsigned int i)
{
	__u64 inverse = WORD_FACTOR;
	int n;

	for (n = 0; n < 6; n++)
		inverse *= 2 - WORD_FACTOR * inverse;
	return (word ^ (word >> 32)) * inverse - i * WORD_STEP;
}

static __u64 make_key(unsigned int worker, unsigned int slot, unsigned int area,
		      unsigned int page, __u64 gen)
{
	return page | area << 12 | worker << 16 | slot << 24 | gen << 28;
}

static void fill_page(void *to, __u64 key)
{
	__u64 *word = to;
	unsigned int i;

	if (!key) {
		memset(to, 0, psize());
		return;
	}
	for (i = 0; i < psize() / sizeof(*word); i++)
		word[i] = word_of(key, i);
}

static void make_content(unsigned char *to, const struct content *c)
{
	int i;

	fill_page(to, c->key);
	for (i = 0; i < c->patches; i++)
		to[c->at[i]] = c->byte[i];
}

static bool is_zeroes(const struct content *c)
{
	return !c->key && !c->patches;
}

/* The page has this content now, whatever it had */
static void model_set(struct page *p, __u64 key)
{
	p->can[0] = (struct content) { .key = key };
	p->cans = 1;
	p->droppable = false;
}

static bool model_has_zeroes(const struct page *p)
{
	int i;

	for (i = 0; i < p->cans; i++)
		if (is_zeroes(&p->can[i]))
			return true;
	return false;
}

static int model_match(const struct page *p, const unsigned char *page)
{
	int i;

	for (i = 0; i < p->cans; i++) {
		make_content(wanted, &p->can[i]);
		if (!memcmp(page, wanted, psize()))
			return i;
	}
	return -1;
}

/* The page was seen to have candidate @i */
static void model_settle(struct page *p, int i)
{
	struct content c = p->can[i];

	if (p->droppable && is_zeroes(&c) && p->cans > 1)
		count(&board->dropped);
	p->can[0] = c;
	p->cans = 1;
	if (is_zeroes(&c))
		p->droppable = false;
	if (p->droppable)
		p->can[p->cans++] = (struct content) {};
}

/* Areas */

static struct page *model_of(const struct area *a, unsigned int page)
{
	return &me->model[my_slot][a->base + page];
}

static char *addr_of(const struct area *a, unsigned int page)
{
	return a->mem + (size_t)page * psize();
}

static const char *words_of(char *buf, size_t size, const unsigned char *from,
			    unsigned int at)
{
	unsigned int i;
	int len = 0;

	for (i = at; i < at + 24 && i < psize(); i++)
		len += snprintf(buf + len, size - len, "%02x", from[i]);
	return buf;
}

static void tell_key(const char *what, __u64 key)
{
	unsigned int worker = key >> 16 & 0xff;

	if (worker == ALL_TWINS || worker == DISK)
		tell("%s page %llu of %s", what, key & 0xfff,
		     worker == DISK ? "the disk" : "those alike");
	else
		tell("%s worker %u, process %llu, area %s, page %llu, generation %llu",
		     what, worker, key >> 24 & 0xf,
		     kinds[(key >> 12 & 0xf) % NR_KINDS].name, key & 0xfff,
		     key >> 28);
}

static void tell_content(const unsigned char *page)
{
	const __u64 *word = (const __u64 *)page;
	unsigned int i, same, zeroes = 0, n = psize() / sizeof(*word);
	__u64 key;

	for (i = 0; i < n; i++)
		zeroes += !word[i];
	for (i = 0; i < 8; i++) {
		unsigned int j;

		key = key_of(word[i * (n / 8)], i * (n / 8));
		for (j = same = 0; j < n; j++)
			same += word[j] == word_of(key, j);
		if (same <= n / 16)
			continue;
		tell("found: %u of %u words are from", same, n);
		tell_key(" ", key);
		break;
	}
	if (zeroes)
		tell("found: %u of %u words are zero", zeroes, n);
}

static void tell_flags(const char *at)
{
	__u64 pm = 0, flags = 0, mapped = 0;
	off_t pfn;
	int fd;

	fd = open("/proc/self/pagemap", O_RDONLY);
	if (pread(fd, &pm, sizeof(pm), (uintptr_t)at / psize() * 8) != 8)
		pm = 0;
	close(fd);
	pfn = PAGEMAP_PFN(pm);
	if (pm & PM_PRESENT) {
		fd = open("/proc/kpageflags", O_RDONLY);
		if (pread(fd, &flags, sizeof(flags), pfn * 8) != 8)
			flags = 0;
		close(fd);
		fd = open("/proc/kpagecount", O_RDONLY);
		if (pread(fd, &mapped, sizeof(mapped), pfn * 8) != 8)
			mapped = 0;
		close(fd);
	}
	tell("pagemap %#llx, kpageflags %#llx, kpagecount %llu", pm, flags,
	     mapped);
}

static void tell_records(const struct record *ring, unsigned int head,
			 int area, unsigned int page, int lines)
{
	static const char *const results[] = {
		"done", "does not apply", "begun"
	};
	const struct record *list[64];
	unsigned int n, i;
	int got = 0;

	for (n = 1; n <= RECORDS && n <= head && got < lines; n++) {
		const struct record *r = &ring[(head - n) % RECORDS];

		if (area < 0 || (r->area == area && page >= r->first &&
				 page < (unsigned int)r->first + r->pages))
			list[got++] = r;
	}
	for (i = got; i-- > 0; )
		tell("  %u.%03u process %u: %s pages %u+%u: %s",
		     list[i]->ms / 1000, list[i]->ms % 1000, list[i]->slot,
		     ops[list[i]->op].name, list[i]->first, list[i]->pages,
		     list[i]->error < 0 ? strerror(-list[i]->error) :
		     results[list[i]->error]);
}

static void tell_history(int area, unsigned int page)
{
	tell("what was done to the page, process 0 is the worker:");
	tell_records(me->record, me->records, area, page, 40);
	tell("what the agitators did last, with the device and milliseconds:");
	tell_records(board->record, board->records, -1, 0, 24);
	tell("now: %u.%03u", run_msecs() / 1000, run_msecs() % 1000);
}

/* The whole program is at its end after this: let the first report be clean */
static void broken(struct area *a, unsigned int page, const char *how,
		   const unsigned char *copy)
{
	struct page *p = model_of(a, page);
	const unsigned char *mem = (unsigned char *)addr_of(a, page);
	char b1[64], b2[64];
	unsigned int i, at, wrong;
	int c;

	if (__atomic_fetch_add(&board->broken, 1, __ATOMIC_RELAXED))
		goto out;
	tell("WRONG CONTENT of area %s, page %u, seen by %s",
	     kinds[a->kind].name, page, how);
	tell("seed %llu, worker %d, process %d, pid %d, address %p",
	     (unsigned long long)opt_seed, my_number, my_slot, getpid(), mem);
	tell_flags((const char *)mem);
	tell("area: %s%s%s%sdroppable %d, %u candidates",
	     a->read_only ? "read-only, " : "", a->locked ? "locked, " : "",
	     a->huge ? "huge, " : "", a->merge ? "mergeable, " : "",
	     p->droppable, p->cans);
	tell_content(copy);
	for (c = 0; c < p->cans; c++) {
		make_content(wanted, &p->can[c]);
		at = 0;
		wrong = 0;
		for (i = 0; i < psize(); i++)
			if (copy[i] != wanted[i] && !wrong++)
				at = i;
		if (p->can[c].key)
			tell_key("expected:", p->can[c].key);
		else
			tell("expected: zeroes");
		for (i = 0; i < p->can[c].patches; i++)
			tell("  byte %u is %02x", p->can[c].at[i],
			     p->can[c].byte[i]);
		tell("  %u bytes are wrong, from byte %u: found %s, expected %s",
		     wrong, at, words_of(b1, sizeof(b1), copy, at),
		     words_of(b2, sizeof(b2), wanted, at));
	}
	i = memcmp(mem, copy, psize());
	tell("read again: %s, candidate %d", i ? "another content" :
	     "the same", model_match(p, mem));
	tell_flags((const char *)mem);
	tell_history(a->kind, page);
out:
	stop();
}

/* Copies the page; by which way? */
static bool copy_page(struct area *a, unsigned int page, enum op op)
{
	struct iovec to = { found, psize() };
	struct iovec from = { addr_of(a, page), psize() };

	if (op == VMREAD && a->kind == SHARED && dice(2))
		return pread(memfd, found, psize(), (off_t)page * psize()) ==
		       psize();
	if (op == VMREAD)
		return process_vm_readv(getpid(), &to, 1, &from, 1, 0) ==
		       psize();
	memcpy(found, from.iov_base, psize());
	return true;
}

/*
 * Compare a page.  One that can be dropped may be so while it is copied: it has
 * been if all of it is zero the next time.
 */
static int check_page(struct area *a, unsigned int page, enum op op)
{
	struct page *p = model_of(a, page);
	int i;

	if (!copy_page(a, page, op))
		return -EIO;
	i = model_match(p, found);
	if (i < 0 && p->droppable) {
		if (!copy_page(a, page, op))
			return -EIO;
		i = model_match(p, found);
		if (i >= 0 && !is_zeroes(&p->can[i]))
			i = -1;
	}
	if (i < 0) {
		broken(a, page, ops[op].name, found);
		return -EIO;
	}
	model_settle(p, i);
	count(&board->checked);
	return 0;
}

/* The page may have become zeroes, or may do so, see @droppable */
static void model_maybe_zero(struct area *a, unsigned int page, bool droppable)
{
	struct page *p = model_of(a, page);

	if (!model_has_zeroes(p)) {
		/*
		 * No room.  This is never so after model_room(), which has to
		 * come before the operation.
		 */
		if (p->cans == CANDIDATES)
			abort();
		p->can[p->cans++] = (struct content) {};
	} else if (p->cans == 1) {
		return;
	}
	p->droppable |= droppable;
}

static void model_room(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i;

	for (i = first; i < first + n; i++)
		if (model_of(a, i)->cans == CANDIDATES)
			check_page(a, i, CHECK);
}

static __u64 new_key(struct area *a, unsigned int page)
{
	if (a->kind == ALIKE && dice(4))
		return make_key(ALL_TWINS, 0, 0, 0, 1 + dice(TWINS));
	return make_key(my_number, my_slot, a->kind, page, ++generation);
}

static __noreturn void give_up(const char *what)
{
	tell("worker %d, process %d: %s: %s", my_number, my_slot, what,
	     strerror(errno));
	__atomic_fetch_add(&board->dead, 1, __ATOMIC_RELAXED);
	stop();
	_exit(2);
}

static void must(bool done, const char *what)
{
	if (!done)
		give_up(what);
}

/*
 * Repeat @call, which is true when it worked, while memory is missing: without
 * it the worker would not know any more what it has.  /proc calls that ENOENT.
 */
#define until(call) do {						\
	int tries_;							\
	bool done_ = false;						\
									\
	for (tries_ = 0; tries_ < 20000 && !done_; tries_++) {		\
		errno = 0;						\
		done_ = (call);						\
		if (done_ || (errno != ENOMEM && errno != EAGAIN &&	\
			      errno != EINTR && errno != ENOENT))	\
			break;						\
		if (tries_ > 100)					\
			usleep(1000);					\
	}								\
	must(done_, #call);						\
} while (0)

static int prot_of(const struct area *a)
{
	return a->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
}

/* Fresh memory for a part of the area, with what was advised for all of it */
static void map_part(struct area *a, unsigned int first, unsigned int n)
{
	size_t len = (size_t)n * psize();
	char *at = addr_of(a, first);

	if (a->kind == SHARED)
		until(mmap(at, len, prot_of(a), MAP_SHARED | MAP_FIXED, memfd,
			   (off_t)first * psize()) == at);
	else
		until(mmap(at, len, prot_of(a), MAP_PRIVATE | MAP_ANONYMOUS |
			   MAP_FIXED, -1, 0) == at);
	if (board->use[HUGE])
		until(!madvise(at, len, a->huge ? MADV_HUGEPAGE :
						  MADV_NOHUGEPAGE));
	if (a->merge)
		until(!madvise(at, len, MADV_MERGEABLE));
}

static bool writable(struct area *a)
{
	if (!a->read_only)
		return true;
	if (dice(2))
		return false;
	until(!mprotect(a->mem, (size_t)a->pages * psize(),
			PROT_READ | PROT_WRITE));
	a->read_only = false;
	return true;
}

/* Operations: 0, -errno, or 1 if it did not apply */

static int do_check(struct area *a, unsigned int first, unsigned int n,
		    enum op op)
{
	unsigned int i;
	int error = 0;

	for (i = first; i < first + n && !stopped(); i++) {
		error = check_page(a, i, op);
		if (error)
			break;
	}
	return error;
}

static void write_page(struct area *a, unsigned int page)
{
	__u64 key = new_key(a, page);

	fill_page(addr_of(a, page), key);
	model_set(model_of(a, page), key);
	if (opt_plant && me->records > (unsigned int)opt_plant) {
		addr_of(a, page)[dice(psize())] ^= 0x40;
		opt_plant = 0;
	}
}

static int do_write(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i;

	if (!writable(a))
		return 1;
	for (i = first; i < first + n; i++)
		write_page(a, i);
	return 0;
}

static int do_poke(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i, c, at;
	struct page *p;
	__u8 byte;

	if (!writable(a))
		return 1;
	for (i = first; i < first + n; i++) {
		p = model_of(a, i);
		for (c = 0; c < p->cans; c++)
			if (p->can[c].patches == PATCHES)
				break;
		if (c < p->cans) {
			write_page(a, i);
			continue;
		}
		at = dice(psize());
		byte = dice(256);
		addr_of(a, i)[at] = byte;
		p->droppable = false;
		for (c = 0; c < p->cans; c++) {
			struct content *can = &p->can[c];

			can->at[can->patches] = at;
			can->byte[can->patches++] = byte;
		}
	}
	return 0;
}

static int do_vmwrite(struct area *a, unsigned int first, unsigned int n)
{
	struct iovec from = { found, psize() }, to = { NULL, psize() };
	unsigned int i;
	ssize_t len;
	__u64 key;

	if (!writable(a))
		return 1;
	for (i = first; i < first + n; i++) {
		key = new_key(a, i);
		fill_page(found, key);
		to.iov_base = addr_of(a, i);
		if (a->kind == SHARED && dice(2))
			len = pwrite(memfd, found, psize(),
				     (off_t)i * psize());
		else
			len = process_vm_writev(getpid(), &from, 1, &to, 1, 0);
		if (len != psize()) {
			/* Perhaps a part of it */
			write_page(a, i);
			return -EIO;
		}
		model_set(model_of(a, i), key);
	}
	return 0;
}

/* A device writes to the page */
static int do_dio(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i, block;
	ssize_t len;

	if (!writable(a))
		return 1;
	if (board->use[FREE] && a->kind != SHARED && !dice(3))
		madvise(addr_of(a, first), (size_t)n * psize(), MADV_FREE);
	block = dice(DISK_PAGES - n + 1);
	len = pread(disk, addr_of(a, first), (size_t)n * psize(),
		    (off_t)block * psize());
	for (i = 0; i < n; i++)
		if (len == (ssize_t)n * psize())
			model_set(model_of(a, first + i),
				  make_key(DISK, 0, 0, block + i, 1));
		else
			write_page(a, first + i);
	return len == (ssize_t)n * psize() ? 0 : -EIO;
}

static int advise(struct area *a, unsigned int first, unsigned int n, int what)
{
	return madvise(addr_of(a, first), (size_t)n * psize(), what) ?
	       -errno : 0;
}

static int do_free(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i;
	int error;

	if (a->kind == SHARED)
		return 1;
	model_room(a, first, n);
	error = advise(a, first, n, MADV_FREE);
	/* A part of it may have been done before the error */
	for (i = first; i < first + n; i++)
		model_maybe_zero(a, i, true);
	return error == -EINVAL && a->locked ? 1 : error;
}

static int do_dontneed(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i;
	int error;

	if (a->kind != SHARED)
		model_room(a, first, n);
	error = advise(a, first, n, MADV_DONTNEED);
	for (i = first; i < first + n && a->kind != SHARED; i++)
		if (error)
			model_maybe_zero(a, i, false);
		else
			model_set(model_of(a, i), 0);
	return error == -EINVAL && a->locked ? 1 : error;
}

static int do_willneed(struct area *a, unsigned int first, unsigned int n)
{
	static const int how[] = {
		MADV_WILLNEED, MADV_POPULATE_READ, MADV_POPULATE_WRITE
	};
	int what = how[dice(3)];

	if (what == MADV_POPULATE_WRITE && a->read_only)
		what = MADV_WILLNEED;
	return advise(a, first, n, what);
}

static int do_collapse(struct area *a)
{
	if (a->kind != LARGE && a->kind != SHARED)
		return 1;
	return advise(a, 0, a->pages, MADV_COLLAPSE);
}

static int do_huge(struct area *a)
{
	int error;

	if (a->kind == SMALL)
		return 1;
	error = advise(a, 0, a->pages, a->huge ? MADV_NOHUGEPAGE :
						 MADV_HUGEPAGE);
	/* It can stop midway, so once more */
	if (error)
		until(!advise(a, 0, a->pages, a->huge ? MADV_HUGEPAGE :
							MADV_NOHUGEPAGE));
	else
		a->huge = !a->huge;
	return error;
}

static int do_merge(struct area *a)
{
	int error;

	if (a->kind == SHARED || a->kind == SMALL)
		return 1;
	error = advise(a, 0, a->pages, a->merge ? MADV_UNMERGEABLE :
						  MADV_MERGEABLE);
	if (!error)
		a->merge = !a->merge;
	return error;
}

static int do_protect(struct area *a, unsigned int first, unsigned int n)
{
	int error = 0;

	if (a->read_only) {
		until(!mprotect(a->mem, (size_t)a->pages * psize(),
				PROT_READ | PROT_WRITE));
		a->read_only = false;
		return 0;
	}
	if (dice(2)) {
		first = 0;
		n = a->pages;
	}
	if (mprotect(addr_of(a, first), (size_t)n * psize(), PROT_READ))
		error = -errno;
	a->read_only = true;
	return error;
}

/* The number of pages from @at on that are in the same VMA, @n at most */
static unsigned int same_vma(const char *at, unsigned int n)
{
	unsigned long start, end;
	unsigned int pages = 0;
	char line[512];
	FILE *f;

	while (!pages) {
		until((f = fopen("/proc/self/maps", "r")));
		while (!pages && fgets(line, sizeof(line), f))
			if (sscanf(line, "%lx-%lx", &start, &end) == 2 &&
			    start <= (unsigned long)at &&
			    (unsigned long)at < end)
				pages = (end - (unsigned long)at) / psize();
		fclose(f);
	}
	return pages < n ? pages : n;
}

/*
 * A VMA with each call: what is more is refused, or it is left half done when
 * memory is missing, depending on the kernel.
 */
static void move_part(char *from, char *to, unsigned int n)
{
	unsigned int part;
	size_t len;

	for (; n; n -= part) {
		part = same_vma(from, n);
		must(part, "no mapping to move");
		len = (size_t)part * psize();
		until(mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED,
			     to) == to);
		from += len;
		to += len;
	}
}

static void reserve(char *at, size_t len)
{
	until(mmap(at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		   MAP_NORESERVE | MAP_FIXED, -1, 0) == at);
}

/* Asked for once, before allocations are made to fail */
static size_t huge_pages(void)
{
	static size_t pages;

	if (!pages)
		pages = read_pmd_pagesize() / psize();
	return pages;
}

static int do_mremap(struct area *a)
{
	size_t slack = huge_pages();
	char *old = a->mem, *new = a->room[!a->in];

	if (dice(2))
		new += dice(slack) * psize();
	else if (dice(2))
		new += dice(slack / 16) * 16 * psize();
	move_part(old, new, a->pages);
	a->mem = new;
	a->in = !a->in;
	reserve(old, (size_t)a->pages * psize());
	return 0;
}

static int do_remap(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i;

	if (dice(2) && munmap(addr_of(a, first), (size_t)n * psize()))
		return -errno;
	map_part(a, first, n);
	if (a->kind != SHARED)
		for (i = first; i < first + n; i++)
			model_set(model_of(a, i), 0);
	return 0;
}

static int do_lock(struct area *a, unsigned int first, unsigned int n)
{
	bool was = a->locked;

	a->locked = !was;
	if (was)
		return munlock(a->mem, (size_t)a->pages * psize()) ? -errno : 0;
	return mlock(addr_of(a, first), (size_t)n * psize()) ? -errno : 0;
}

/*
 * What a pipe got a reference to stays as it was, whatever happens to the
 * mapping.
 */
static int do_splice(struct area *a, unsigned int first, unsigned int n)
{
	struct page copy[MAX_SPLICE];
	struct iovec part;
	unsigned int i;
	int ends[2], c, error = 0;
	ssize_t len;

	part.iov_base = addr_of(a, first);
	part.iov_len = (size_t)n * psize();
	model_room(a, first, n);
	memcpy(copy, model_of(a, first), n * sizeof(*copy));
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	len = vmsplice(ends[1], &part, 1, SPLICE_F_NONBLOCK);
	if (len < 0) {
		error = -errno;
		goto out;
	}
	switch (dice(4)) {
	case 0:
		advise(a, first, n, MADV_PAGEOUT);
		break;
	case 1:
		if (board->use[DONTNEED])
			do_dontneed(a, first, n);
		break;
	case 2:
		if (board->use[FREE] && do_free(a, first, n) == 0)
			advise(a, first, n, MADV_PAGEOUT);
		break;
	case 3:
		usleep(dice(20000));
	}
	for (i = 0; i < len / psize(); i++) {
		if (read(ends[0], found, psize()) != psize()) {
			error = -EIO;
			break;
		}
		c = model_match(&copy[i], found);
		if (c < 0) {
			memcpy(model_of(a, first + i), &copy[i], sizeof(*copy));
			broken(a, first + i, "a pipe", found);
			error = -EIO;
		}
	}
out:
	close(ends[0]);
	close(ends[1]);
	return error;
}

static int do_punch(struct area *a, unsigned int first, unsigned int n)
{
	unsigned int i;
	int error = 0;

	if (a->kind != SHARED)
		return 1;
	model_room(a, first, n);
	if (dice(2))
		error = advise(a, first, n, MADV_REMOVE);
	else if (fallocate(memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			   (off_t)first * psize(), (off_t)n * psize()))
		error = -errno;
	for (i = first; i < first + n; i++)
		if (error)
			model_maybe_zero(a, i, false);
		else
			model_set(model_of(a, i), 0);
	return error;
}

static int do_truncate(struct area *a, unsigned int first)
{
	unsigned int i;
	int error = 0;

	if (a->kind != SHARED)
		return 1;
	model_room(a, first, a->pages - first);
	if (ftruncate(memfd, (off_t)first * psize()))
		error = -errno;
	until(!ftruncate(memfd, (off_t)a->pages * psize()));
	for (i = first; i < a->pages; i++)
		if (error)
			model_maybe_zero(a, i, false);
		else
			model_set(model_of(a, i), 0);
	return error;
}

static void one_op(enum op op, int kind);
static enum op choose_op(void);

/* Children */

static void reap(bool all)
{
	int slot, status;

	for (slot = 1; slot < SLOTS; slot++) {
		pid_t got;

		if (!kid[slot])
			continue;
		do {
			got = waitpid(kid[slot], &status, all ? 0 : WNOHANG);
		} while (got < 0 && errno == EINTR);
		if (!got)
			continue;
		if (got == kid[slot] && !(WIFEXITED(status) ||
					  (kid_killed[slot] &&
					   WTERMSIG(status) == SIGKILL))) {
			tell("a child of worker %d was ended by signal %d",
			     my_number, WTERMSIG(status));
			__atomic_fetch_add(&board->dead, 1, __ATOMIC_RELAXED);
			stop();
		}
		kid[slot] = 0;
	}
}

static __noreturn void childhood(int slot)
{
	int rounds = 4 + dice(60), i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	my_slot = slot;
	memset(kid, 0, sizeof(kid));
	for (i = 0; i < NR_KINDS; i++)
		areas[i].locked = false;
	while (rounds-- > 0 && !stopped()) {
		enum op op = choose_op();

		/* The memfd is its parent's, and pins are one at a time */
		if (op == FORK || op == KILL || op == PIN || op == PUNCH ||
		    op == TRUNCATE)
			op = CHECK;
		one_op(op, dice(SHARED));
	}
	for (i = 0; i < SHARED && !stopped(); i++)
		if (dice(2))
			do_check(&areas[i], 0, areas[i].pages, CHECK);
	_exit(0);
}

static int do_fork(void)
{
	__u64 seed = dice(~0ULL);
	int slot;
	pid_t pid;

	reap(false);
	for (slot = 1; slot < SLOTS && kid[slot]; slot++)
		;
	if (slot == SLOTS)
		return 1;
	memcpy(me->model[slot], me->model[0], sizeof(me->model[0]));
	pid = fork();
	if (pid < 0)
		return -errno;
	if (!pid) {
		rng = seed;
		childhood(slot);
	}
	kid[slot] = pid;
	kid_killed[slot] = false;
	return 0;
}

static int do_kill(void)
{
	int slot = 1 + dice(SLOTS - 1);

	reap(false);
	if (!kid[slot])
		return 1;
	kid_killed[slot] = true;
	return kill(kid[slot], SIGKILL) ? -errno : 0;
}

/* Pinned for long: pin and mapping have the same page until it is unmapped */
static int do_pin(struct area *a, unsigned int first, unsigned int n)
{
	struct pin_longterm_test pin = {
		.flags = PIN_LONGTERM_TEST_FLAG_USE_WRITE,
	};
	int error = 0, c, steps;
	unsigned char *copy;
	unsigned int i;
	__u64 to;

	if (a->kind == SHARED || !writable(a))
		return 1;
	copy = mmap(NULL, n * psize(), PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (copy == MAP_FAILED)
		return -errno;
	if (board->use[FREE] && !dice(3))
		do_free(a, first, n);
	if (dice(2))
		pin.flags |= PIN_LONGTERM_TEST_FLAG_USE_FAST;
	pin.addr = (uintptr_t)addr_of(a, first);
	pin.size = n * psize();
	if (ioctl(gup, PIN_LONGTERM_TEST_START, &pin)) {
		error = -errno;
		goto out;
	}
	for (steps = dice(5); steps > 0; steps--)
		switch (dice(6)) {
		case 0:
			advise(a, first, n, MADV_PAGEOUT);
			break;
		case 1:
			do_poke(a, first, n);
			break;
		case 2:
			do_write(a, first, n);
			break;
		case 3:
			if (board->use[FORK])
				do_fork();
			break;
		case 4:
			if (board->use[COLLAPSE])
				do_collapse(a);
			break;
		case 5:
			usleep(dice(50000));
		}
	to = (uintptr_t)copy;
	if (ioctl(gup, PIN_LONGTERM_TEST_READ, &to))
		error = -errno;
	for (i = 0; i < n && !error; i++) {
		c = model_match(model_of(a, first + i), copy + i * psize());
		if (c < 0) {
			broken(a, first + i, "a pin", copy + i * psize());
			error = -EIO;
		} else if (!model_of(a, first + i)->droppable) {
			model_settle(model_of(a, first + i), c);
		}
	}
	error = error ?: do_check(a, first, n, CHECK);
	if (ioctl(gup, PIN_LONGTERM_TEST_STOP))
		error = error ?: -errno;
out:
	munmap(copy, n * psize());
	return error;
}

/* Workers */

static int weight_of(enum op op)
{
	/* gup_test has one set of pins for all, so one worker has it */
	if (!board->use[op] || (op == PIN && my_number))
		return 0;
	return ops[op].weight * (op == PIN ? 2 : 1);
}

static enum op choose_op(void)
{
	int op, n, total = 0;

	for (op = 0; op < FIRST_AGITATOR; op++)
		total += weight_of(op);
	n = dice(total);
	for (op = 0; op < FIRST_AGITATOR; op++) {
		n -= weight_of(op);
		if (n < 0)
			break;
	}
	return op;
}

static void one_op(enum op op, int kind)
{
	struct area *a = &areas[kind];
	unsigned int first, n, max;
	struct record *r;
	int error = 1;

	switch (dice(8)) {
	case 0 ... 2:
		max = 1;
		break;
	case 3 ... 6:
		max = 24;
		break;
	default:
		max = a->pages;
	}
	n = 1 + dice(max < a->pages ? max : a->pages);
	first = dice(a->pages - n + 1);
	if (kind == LARGE && max == a->pages && dice(2)) {
		/* All of a huge page */
		n = a->pages / 2;
		first = dice(2) * n;
	}

	if (op == COLLAPSE || op == HUGE || op == MERGE || op == MREMAP) {
		first = 0;
		n = a->pages;
	} else if (op == TRUNCATE) {
		n = a->pages - first;
	} else if (op == DIO && n > 32) {
		n = 32;
	} else if (op == SPLICE && n > MAX_SPLICE) {
		n = MAX_SPLICE;
	} else if (op == PIN && n > 16) {
		n = 16;
	}

	r = note(me->record, &me->records, op, kind, first, n);
	if (!my_slot) {
		me->now = op;
		me->since = run_msecs();
	}
	if (board->use[ALARM] && !dice(24)) {
		struct itimerval soon = {
			.it_value.tv_usec = 50 + dice(3000),
		};

		setitimer(ITIMER_REAL, &soon, NULL);
	}
	switch (op) {
	case CHECK:
	case VMREAD:
		error = do_check(a, first, n, op);
		break;
	case WRITE:
		error = do_write(a, first, n);
		break;
	case POKE:
		error = do_poke(a, first, n);
		break;
	case VMWRITE:
		error = do_vmwrite(a, first, n);
		break;
	case DIO:
		error = do_dio(a, first, n);
		break;
	case FREE:
		error = do_free(a, first, n);
		break;
	case DONTNEED:
		error = do_dontneed(a, first, n);
		break;
	case PAGEOUT:
		error = advise(a, first, n, MADV_PAGEOUT);
		if (error == -EINVAL && a->locked)
			error = 1;
		break;
	case COLD:
		error = advise(a, first, n, MADV_COLD);
		if (error == -EINVAL && a->locked)
			error = 1;
		break;
	case WILLNEED:
		error = do_willneed(a, first, n);
		break;
	case COLLAPSE:
		error = do_collapse(a);
		break;
	case HUGE:
		error = do_huge(a);
		break;
	case MERGE:
		error = do_merge(a);
		break;
	case PROTECT:
		error = do_protect(a, first, n);
		break;
	case MREMAP:
		error = do_mremap(a);
		break;
	case REMAP:
		error = do_remap(a, first, n);
		break;
	case FORK:
		/* All areas, this one stands for them */
		error = do_fork();
		break;
	case KILL:
		error = do_kill();
		break;
	case LOCK:
		error = do_lock(a, first, n);
		break;
	case SPLICE:
		error = do_splice(a, first, n);
		break;
	case PIN:
		error = do_pin(a, first, n);
		break;
	case PUNCH:
		error = do_punch(a, first, n);
		break;
	case TRUNCATE:
		error = do_truncate(a, first);
		break;
	default:
		break;
	}
	r->error = error;
	if (error <= 0)
		count_op(op, error);
}

static void on_alarm(int sig)
{
	count(&board->ok[ALARM]);
}

/* A page that cannot be had is as bad as a wrong one */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	char *at = info->si_addr;
	int i;

	signal(sig, SIG_DFL);
	if (!__atomic_fetch_add(&board->broken, 1, __ATOMIC_RELAXED)) {
		tell("SIGNAL %d, code %d, address %p", sig, info->si_code, at);
		tell("seed %llu, worker %d, process %d, pid %d",
		     (unsigned long long)opt_seed, my_number, my_slot,
		     getpid());
		for (i = 0; i < NR_KINDS; i++) {
			struct area *a = &areas[i];

			if (at < a->mem ||
			    at >= a->mem + (size_t)a->pages * psize())
				continue;
			tell("area %s page %zu", kinds[i].name,
			     (size_t)(at - a->mem) / psize());
			tell_flags(at);
			tell_history(i, (at - a->mem) / psize());
		}
		stop();
	}
	_exit(3);
}

static void make_areas(void)
{
	size_t pmd = read_pmd_pagesize() ?: 1 << 21, len, half;
	unsigned int base = 0;
	int i;

	memfd = memfd_create("swap_stress", MFD_CLOEXEC);
	must(memfd >= 0 && !ftruncate(memfd, (off_t)kinds[SHARED].pages *
				      psize()), "memfd");
	for (i = 0; i < NR_KINDS; i++) {
		struct area *a = &areas[i];
		char *room;

		a->kind = i;
		a->pages = kinds[i].pages;
		a->base = base;
		base += a->pages;
		len = (size_t)a->pages * psize();
		/* Room to be at any offset to a huge page, and a gap */
		half = (len + pmd - 1) / pmd * pmd + 2 * pmd;
		room = mmap(NULL, 2 * half + pmd, PROT_NONE, MAP_PRIVATE |
			    MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		must(room != MAP_FAILED, "mmap");
		room = (char *)(((uintptr_t)room + pmd - 1) / pmd * pmd);
		a->room[0] = room;
		a->room[1] = room + half;
		a->mem = room;
		a->huge = i == MEDIUM || i == LARGE || i == SHARED;
		a->merge = i == ALIKE && board->use[MERGE];
		map_part(a, 0, a->pages);
	}
}

static __noreturn void work(int number)
{
	struct sigaction fault = {
		.sa_sigaction = on_fault,
		.sa_flags = SA_SIGINFO,
	};
	struct sigaction timer = { .sa_handler = on_alarm };
	unsigned int i;
	int kind;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	my_number = number;
	me = workers[my_number];
	rng = opt_seed + number * 0x1234567ULL;
	put_text(GROUP "/cgroup.procs", "0");
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGALRM, &timer, NULL);
	/* What the compared bytes go through is not to be swapped itself */
	found = mmap(NULL, 2 * psize(), PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(found != MAP_FAILED && !mlock(found, 2 * psize()), "mlock");
	wanted = found + psize();
	for (i = 0; i < ALL_PAGES; i++)
		model_set(&me->model[0][i], 0);
	make_areas();
	for (kind = 0; kind < NR_KINDS; kind++)
		do_write(&areas[kind], 0, areas[kind].pages);
	if (board->use[FAIL])
		put_text("/proc/self/make-it-fail", "1");

	while (!stopped()) {
		one_op(choose_op(), dice(NR_KINDS));
		if (!dice(16))
			reap(false);
	}
	put_text("/proc/self/make-it-fail", "0");
	reap(true);
	for (kind = 0; kind < NR_KINDS &&
	     !__atomic_load_n(&board->broken, __ATOMIC_RELAXED); kind++)
		for (i = 0; i < areas[kind].pages; i++)
			if (check_page(&areas[kind], i, CHECK))
				break;
	_exit(0);
}

/* Agitators */

static pid_t some_worker(void)
{
	return workers[dice(opt_workers)]->pid;
}

static int agitate_swapoff(void)
{
	int which = dice(board->swaps);
	const char *dev = board->swap[which];
	bool interrupt = board->use[INTERRUPT] && !dice(4);
	unsigned int since = run_msecs(), due = since + dice(60);
	int status, error, flags;
	struct record *r;
	pid_t pid, got;

	r = note(board->record, &board->records, OFF, 0, which, 0);
	pid = fork();
	if (pid < 0)
		return -errno;
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (board->use[FAIL] && dice(2))
			put_text("/proc/self/make-it-fail", "1");
		_exit(swapoff(dev) ? errno : 0);
	}
	while (!(got = waitpid(pid, &status, WNOHANG))) {
		if (interrupt && run_msecs() >= due) {
			kill(pid, SIGINT);
			due += 10;
		}
		usleep(1000);
	}
	since = run_msecs() - since;
	if (since > board->swapoff_msecs)
		board->swapoff_msecs = since;
	if (got < 0 || !WIFEXITED(status)) {
		/* The OOM killer prefers it */
		error = -EFAULT;
	} else {
		error = -WEXITSTATUS(status);
		if (error == -EINTR) {
			count(&board->ok[INTERRUPT]);
		} else if (error && error != -ENOMEM &&
			   !(error == -EINVAL && board->use[OFF2]) &&
			   !board->swapoff_bad) {
			board->swapoff_bad = error;
			tell("swapoff %s: %s", dev, strerror(-error));
		}
	}
	r->pages = since;
	r->error = error;
	/* Off for a moment, sometimes for longer */
	usleep(dice(dice(4) ? 5000 : 300000));
	if (!error) {
		flags = SWAP_FLAG_PREFER | (SWAP_PRIO - dice(2));
		until(!swapon(dev, flags) || errno == EBUSY);
	}
	return error == -EINTR ? 0 : error;
}

static int agitate_migrate(void)
{
	unsigned long node[2] = { 1, 2 };
	int to = dice(2);

	return syscall(SYS_migrate_pages, some_worker(), 64, &node[!to],
		       &node[to]) < 0 ? -errno : 0;
}

static int one_of(const char *path, const char *const *values, int n)
{
	return put_text(path, values[dice(n)]) ? 0 : -errno;
}

static int agitate_khugepaged(void)
{
	static const char *const none[] = { "511", "511", "255", "0" };
	static const char *const swap[] = { "511", "64", "0" };
	static const char *const shared[] = { "511", "256", "0" };
	static const char *const pause[] = { "0", "0", "50" };
	long before, after;

	one_of(KHUGEPAGED "max_ptes_none", none, 4);
	one_of(KHUGEPAGED "max_ptes_swap", swap, 3);
	one_of(KHUGEPAGED "max_ptes_shared", shared, 3);
	one_of(KHUGEPAGED "scan_sleep_millisecs", pause, 3);
	before = read_num(KHUGEPAGED "pages_collapsed");
	usleep(1000000);
	after = read_num(KHUGEPAGED "pages_collapsed");
	return after > before ? 0 : 1;
}

static int agitate_ksm(void)
{
	static const char *const run[] = { "1", "1", "1", "2" };
	static const char *const zero[] = { "0", "1" };
	bool merged = read_num(KSM_DIR "pages_sharing") > 0;
	int error = one_of(KSM_DIR "run", run, 4);

	one_of(KSM_DIR "use_zero_pages", zero, 2);
	put_text(KSM_DIR "run", "1");
	return error ?: !merged;
}

static int agitate_reclaim(void)
{
	char size[32];

	snprintf(size, sizeof(size), "%lluK", 64 + dice(16384));
	/* EAGAIN: it was less than that */
	return put_text(GROUP "/memory.reclaim", size) || errno == EAGAIN ?
	       0 : -errno;
}

static int agitate_hog(void)
{
	long kb = number_of("/proc/meminfo", "MemAvailable");
	unsigned int since = run_msecs();
	size_t len, i;
	char *mem;

	/*
	 * Not all, since the swapped pages have to find room, too; and not for
	 * long: a slow machine would do nothing but swap the hog.
	 */
	if (kb > 1 << 20)
		kb = 1 << 20;
	len = kb / 100 * (40 + dice(50)) << 10;
	mem = mmap(NULL, len, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		return -errno;
	for (i = 0; i < len && run_msecs() < since + 2000; i += psize())
		*(__u64 *)(mem + i) = WORD_STEP * (i + 1);
	usleep(dice(300000));
	munmap(mem, len);
	return 0;
}

static int agitate_fail(void)
{
	static const char *const share[] = { "0", "1", "1", "3" };

	one_of(FAIL_SLAB "probability", share, 4);
	return one_of(FAIL_PAGES "probability", share, 4);
}

static int agitate_smaps(void)
{
	char path[64], buf[16384];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", some_worker(),
		 dice(2) ? "smaps" : "smaps_rollup");
	fd = open(path, O_RDONLY);
	if (fd < 0)
		return -errno;
	while (read(fd, buf, sizeof(buf)) > 0)
		;
	close(fd);
	return 0;
}

static int agitate_once(enum op op)
{
	static const char *const caches[] = { "1", "2", "3" };
	static bool lru_on;

	switch (op) {
	case OFF:
	case OFF2:
		return agitate_swapoff();
	case COMPACT:
		return put_text(VM "compact_memory", "1") ? 0 : -errno;
	case MIGRATE:
		return agitate_migrate();
	case KHUGE:
		return agitate_khugepaged();
	case KSMD:
		return agitate_ksm();
	case RECLAIM:
		return agitate_reclaim();
	case HOG:
		return agitate_hog();
	case FAIL:
		return agitate_fail();
	case DROP:
		return one_of(VM "drop_caches", caches, 3);
	case LRU:
		lru_on = !lru_on;
		return put_text(LRU_GEN, lru_on ? "7" : "0") ? 0 : -errno;
	case SMAPS:
		return agitate_smaps();
	default:
		return 1;
	}
}

static void on_interrupt(int sig)
{
}

static __noreturn void agitate(enum op op)
{
	struct record *r = NULL;
	unsigned int since;
	int error;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	rng = opt_seed ^ (op * 0x7654321ULL);
	my_slot = op;
	/* Caught, so that swapoff() returns */
	signal(SIGINT, on_interrupt);
	if (op == HOG)
		put_text("/proc/self/oom_score_adj", "1000");
	while (!stopped()) {
		since = run_msecs();
		if (op != OFF && op != OFF2)
			r = note(board->record, &board->records, op, 0, 0, 0);
		error = agitate_once(op);
		if (error <= 0)
			count_op(op, error);
		if (r) {
			r->pages = run_msecs() - since;
			r->error = error;
		}
		usleep(dice(ops[op].pause * 2000 + 1));
	}
	_exit(0);
}

/* The run */

static void pay_rmdir(const struct debt *d)
{
	int tries;

	/* Those who were killed take a moment */
	for (tries = 0; tries < 500 && rmdir(d->path) && errno == EBUSY;
	     tries++)
		usleep(10000);
}

static void add_swap(const char *dev, bool ours)
{
	if (board->swaps == MAX_SWAPS || !switch_on(dev, ours))
		return;
	snprintf(board->swap[board->swaps++], sizeof(board->swap[0]), "%s",
		 dev);
}

static void add_zram(void)
{
	char id[16], path[64], dev[32];
	int n;

	if (get_text(ZRAM "hot_add", id, sizeof(id)) <= 0)
		return;
	n = atoi(id);
	snprintf(id, sizeof(id), "%d", n);
	owe(pay_text, ZRAM "hot_remove", id);
	snprintf(path, sizeof(path), "/sys/block/zram%d/reset", n);
	owe(pay_text, path, "1");
	snprintf(path, sizeof(path), "/sys/block/zram%d/disksize", n);
	snprintf(dev, sizeof(dev), "/dev/zram%d", n);
	if (put_text(path, "128M"))
		add_swap(dev, true);
}

static void make_disk(void)
{
	char path[32];
	int loop, mem = -1;
	unsigned int i;
	void *page = aligned_alloc(psize(), psize());

	loop = make_loop(path, sizeof(path), DISK_PAGES * psize(), &mem);
	for (i = 0; loop >= 0 && page && i < DISK_PAGES; i++) {
		fill_page(page, make_key(DISK, 0, 0, i, 1));
		if (pwrite(mem, page, psize(), (off_t)i * psize()) != psize())
			loop = -1;
	}
	if (loop >= 0)
		disk = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	/* As long as this is open the device stays, and so it can do I/O */
	free(page);
}

static void leave_out(enum op op, const char *why)
{
	if (board->use[op])
		tell("without %s: %s", ops[op].name, why);
	board->use[op] = false;
}

static bool has_cgroup(void)
{
	char buf[512] = "";

	get_text(ROOT_CONTROL, buf, sizeof(buf));
	if (!strstr(buf, "memory")) {
		owe(pay_text, ROOT_CONTROL, "-memory");
		if (!put_text(ROOT_CONTROL, "+memory"))
			return false;
	}
	rmdir(GROUP);
	if (mkdir(GROUP, 0755))
		return false;
	owe(pay_rmdir, GROUP, "");
	return !access(GROUP "/memory.reclaim", W_OK);
}

static bool has_failing(const char *dir)
{
	static const char *const set[][2] = {
		{ "probability", "0" }, { "task-filter", "Y" },
		{ "ignore-gfp-wait", "N" }, { "interval", "1" },
		{ "times", "-1" }, { "verbose", "0" },
	};
	char path[96];
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(set); i++) {
		snprintf(path, sizeof(path), "%s%s", dir, set[i][0]);
		if (!turn(path, set[i][1]))
			return false;
	}
	return true;
}

/* What this kernel has, of what is wanted; and settings for it */
static int set_up(void)
{
	char c, dev[16], *mem;
	const char *named = getenv("SWAP_DEV");
	int verdict = prepare_common();
	int i;

	if (verdict)
		return verdict;
	put_text("/proc/self/oom_score_adj", "-500");

	if (named) {
		add_swap(named, true);
	} else {
		for (c = 'a'; c <= 'd' && board->swaps < 2; c++) {
			snprintf(dev, sizeof(dev), "/dev/vd%c", c);
			add_swap(dev, false);
		}
	}
	add_zram();
	if (!board->swaps && number_of("/proc/meminfo", "SwapFree") <= 0)
		return say(UNFIT, "no swap space, name a disk in SWAP_DEV");
	if (!board->swaps)
		leave_out(OFF, "no swap space of its own, name a disk in SWAP_DEV");
	if (!board->use[OFF]) {
		board->use[INTERRUPT] = false;
		board->use[OFF2] = false;
	}

	mem = mmap(NULL, psize(), PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (madvise(mem, psize(), MADV_FREE))
		leave_out(FREE, "the kernel has no MADV_FREE");
	munmap(mem, psize());

	if (access(THP_DIR "enabled", W_OK)) {
		leave_out(COLLAPSE, "no transparent huge pages");
		leave_out(HUGE, "no transparent huge pages");
		leave_out(KHUGE, "no transparent huge pages");
	} else {
		turn(THP_DIR "enabled", "madvise");
		turn(THP_DIR "defrag", "madvise");
		turn(THP_DIR "shmem_enabled", "advise");
		turn(THP_DIR "hugepages-64kB/enabled", "madvise");
		turn(THP_DIR "hugepages-64kB/shmem_enabled", "advise");
	}
	if (board->use[KHUGE]) {
		turn(KHUGEPAGED "pages_to_scan", "4096");
		turn(KHUGEPAGED "alloc_sleep_millisecs", "10");
		turn(KHUGEPAGED "scan_sleep_millisecs", "0");
		turn(KHUGEPAGED "max_ptes_none", "511");
		turn(KHUGEPAGED "max_ptes_swap", "64");
		turn(KHUGEPAGED "max_ptes_shared", "256");
	}
	if (!turn(KSM_DIR "run", board->use[KSMD] ? "1" : "0")) {
		leave_out(MERGE, "no KSM");
		leave_out(KSMD, "no KSM");
	} else if (board->use[KSMD]) {
		turn(KSM_DIR "pages_to_scan", "400");
		turn(KSM_DIR "sleep_millisecs", "20");
		turn(KSM_DIR "smart_scan", "0");
		turn(KSM_DIR "use_zero_pages", "0");
	}
	if (!has_cgroup())
		leave_out(RECLAIM, "no memory cgroup");
	if (access("/sys/devices/system/node/node1", F_OK))
		leave_out(MIGRATE, "one NUMA node");
	if (access(VM "compact_memory", W_OK))
		leave_out(COMPACT, "no compaction");
	if (!turn(LRU_GEN, "7"))
		leave_out(LRU, "no multi-generational LRU");
	gup = open(GUP_TEST, O_RDWR | O_CLOEXEC);
	if (gup < 0)
		leave_out(PIN, "no " GUP_TEST);
	make_disk();
	if (disk < 0)
		leave_out(DIO, "no loop device with O_DIRECT");
	if (board->use[FAIL] &&
	    (!has_failing(FAIL_PAGES) || !has_failing(FAIL_SLAB) ||
	     !turn(FAIL_PAGES "min-order", "0")))
		leave_out(FAIL, "no fault injection");

	for (i = 0; i < opt_workers; i++) {
		workers[i] = mmap(NULL, sizeof(struct worker),
				  PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (workers[i] == MAP_FAILED ||
		    mlock(workers[i], sizeof(struct worker)))
			return say(UNFIT, "no locked memory");
	}
	return FINE;
}

static void progress(void)
{
	char line[500];
	int op, len = 0;

	for (op = 0; op < NR_OPS; op++) {
		if (!board->ok[op] && !board->failed[op])
			continue;
		len += snprintf(line + len, sizeof(line) - len, " %s %ld",
				ops[op].name, board->ok[op]);
		if (board->failed[op] && len < (int)sizeof(line))
			len += snprintf(line + len, sizeof(line) - len, "-%ld",
					board->failed[op]);
		if (len > 440 || op == NR_OPS - 1) {
			tell("%3u s:%s", run_msecs() / 1000, line);
			len = 0;
		}
	}
	if (len)
		tell("%3u s:%s", run_msecs() / 1000, line);
	tell("%3u s: pages compared %ld, dropped %ld, longest swapoff %ld ms",
	     run_msecs() / 1000, board->checked, board->dropped,
	     board->swapoff_msecs);
}

static const char *const events[] = {
	"pswpin", "pswpout", "pglazyfreed", "thp_fault_alloc",
	"thp_collapse_alloc", "thp_split_page", "thp_swpout",
	"pgmigrate_success", "compact_success", "ksm_swpin_copy", "cow_ksm",
	"oom_kill",
};

static void take_events(long *at)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(events); i++)
		at[i] = number_of("/proc/vmstat", events[i]);
}

static void tell_events(const long *before)
{
	long now[ARRAY_SIZE(events)];
	char line[500];
	unsigned int i;
	int len = 0;

	take_events(now);
	for (i = 0; i < ARRAY_SIZE(events); i++)
		if (now[i] >= 0)
			len += snprintf(line + len, sizeof(line) - len,
					" %s %ld", events[i],
					now[i] - before[i]);
	tell("vmstat:%s", line);
}

static void tell_stack(pid_t pid, const char *what)
{
	char path[64], text[4096], *line;

	tell("%s (pid %d) does not come back:", what, pid);
	snprintf(path, sizeof(path), "/proc/%d/stack", pid);
	if (get_text(path, text, sizeof(text)) <= 0)
		return;
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		tell("  %s", line);
}

/* All of @pid end, or they are shown and killed; how many did not? */
static int wait_for(pid_t *pid, int n, const char *what, bool may_kill)
{
	int grace = 20 + opt_seconds < GRACE ? 20 + opt_seconds : GRACE;
	unsigned int due = run_msecs() + grace * 1000;
	int i, status, left, bad = 0;
	bool late = false;

	do {
		for (i = left = 0; i < n; i++) {
			if (!pid[i])
				continue;
			if (waitpid(pid[i], &status, WNOHANG) != pid[i]) {
				left++;
				if (late) {
					tell_stack(pid[i], what);
					kill(pid[i], SIGKILL);
					bad++;
				}
				continue;
			}
			pid[i] = 0;
			if (!may_kill && WIFSIGNALED(status)) {
				tell("%s %d was ended by signal %d", what, i,
				     WTERMSIG(status));
				__atomic_fetch_add(&board->dead, 1,
						   __ATOMIC_RELAXED);
			}
		}
		if (late)
			break;
		usleep(10000);
		late = run_msecs() > due;
	} while (left);
	return bad;
}

/* Whatever is on the devices comes back, with nobody left to fight for it */
static void switch_all_off(void)
{
	int i;

	for (i = 0; i < board->swaps; i++) {
		pid_t pid = fork();

		if (!pid)
			_exit(swapoff(board->swap[i]) && errno != EINVAL ?
			      errno : 0);
		if (pid > 0 && wait_for(&pid, 1, "the last swapoff", false))
			board->swapoff_bad = -ETIME;
		if (number_of("/proc/swaps", board->swap[i]) >= 0)
			board->swapoff_bad = board->swapoff_bad ?: -EBUSY;
	}
}

/* Even the shortest run shows these, however slow the kernel is */
static const enum op basic[] = { CHECK, WRITE, FORK, PAGEOUT, FREE };

static bool time_is_up(void)
{
	unsigned int now = run_msecs(), due = opt_seconds * 1000;
	size_t i;

	if (now < due || now >= 8 * due)
		return now >= due;
	for (i = 0; i < ARRAY_SIZE(basic); i++)
		if (board->use[basic[i]] && !board->ok[basic[i]])
			return false;
	return !board->use[FREE] || board->dropped;
}

static void run(void)
{
	pid_t worker[MAX_WORKERS] = {}, agitator[NR_OPS] = {};
	long before[ARRAY_SIZE(events)];
	unsigned int next = 10000;
	int i, told = -1, status;
	enum op op;

	huge_pages();
	take_events(before);
	for (i = 0; i < opt_workers; i++) {
		worker[i] = fork();
		if (!worker[i])
			work(i);
		workers[i]->pid = worker[i];
	}
	for (op = FIRST_AGITATOR; op < NR_OPS; op++) {
		if (!board->use[op] || op == INTERRUPT)
			continue;
		agitator[op] = fork();
		if (!agitator[op])
			agitate(op);
	}
	while (!stopped() && !time_is_up()) {
		usleep(50000);
		for (i = 0; i < opt_workers; i++) {
			unsigned int since = workers[i]->since;

			if (waitpid(worker[i], &status, WNOHANG) == worker[i]) {
				if (stopped() && WIFEXITED(status) &&
				    !WEXITSTATUS(status)) {
					worker[i] = 0;
					break;
				}
				if (!stopped())
					tell("worker %d ended, %s %d", i,
					     WIFEXITED(status) ? "status" :
					     "signal", WIFEXITED(status) ?
					     WEXITSTATUS(status) :
					     WTERMSIG(status));
				board->dead++;
				worker[i] = 0;
				stop();
				break;
			}
			if (since && told != i &&
			    run_msecs() > since + STUCK * 1000) {
				tell("worker %d, operation %s:", i,
				     ops[workers[i]->now].name);
				tell_stack(worker[i], "worker");
				told = i;
			}
		}
		/* The hog may be killed, for want of memory */
		op = HOG;
		if (agitator[op] && waitpid(agitator[op], &status, WNOHANG) ==
		    agitator[op]) {
			count_op(op, -1);
			agitator[op] = fork();
			if (!agitator[op])
				agitate(op);
		}
		if (run_msecs() >= next) {
			progress();
			next += 10000;
		}
	}
	stop();
	if (agitator[HOG])
		kill(agitator[HOG], SIGKILL);
	if (board->use[FAIL]) {
		put_text(FAIL_PAGES "probability", "0");
		put_text(FAIL_SLAB "probability", "0");
	}
	/* Swapoff may go on while the workers look at all of their pages */
	board->stuck += wait_for(worker, opt_workers, "worker", false);
	agitator[HOG] = 0;
	if (wait_for(agitator + OFF, 1, "swapoff", false) +
	    wait_for(agitator + OFF2, 1, "swapoff", false))
		board->swapoff_bad = -ETIME;
	board->stuck += wait_for(agitator, NR_OPS, "agitator", true);
	progress();
	tell_events(before);
	if (!board->stuck && !board->swapoff_bad)
		switch_all_off();
}

FIXTURE(stress) {};

FIXTURE_SETUP(stress) {}

FIXTURE_TEARDOWN_PARENT(stress)
{
	undo();
}

static bool has_run(struct __test_metadata *_metadata)
{
	if (!board->text[0])
		return true;
	SKIP(return false, "%s", board->text);
}

/* This one does all the work, the others say what they saw of it */
TEST_F_TIMEOUT(stress, content, 30 * DAY)
{
	if (set_up()) {
		snprintf(board->text, sizeof(board->text), "%s", ledger->why);
		undo();
		has_run(_metadata);
		return;
	}
	tell("seed %llu, %d workers, %d s", (unsigned long long)opt_seed,
	     opt_workers, opt_seconds);
	run();
	EXPECT_EQ(0, board->broken)
		TH_LOG("wrong content, see above");
	EXPECT_LT(0, board->checked);
}

TEST_F(stress, nobody_dies)
{
	if (!has_run(_metadata))
		return;
	EXPECT_EQ(0, board->dead);
	EXPECT_EQ(0, board->stuck);
}

TEST_F(stress, swapoff_ends)
{
	if (!has_run(_metadata))
		return;
	if (!board->use[OFF])
		SKIP(return, "no swapoff in this run");
	EXPECT_EQ(0, board->swapoff_bad)
		TH_LOG("swapoff: %s", strerror(-board->swapoff_bad));
	EXPECT_LT(0, board->ok[OFF]);
}

TEST_F(stress, drops_what_is_free)
{
	if (!has_run(_metadata))
		return;
	EXPECT_LT(0, board->ok[FREE])
		TH_LOG("MADV_FREE never worked");
	EXPECT_LT(0, board->dropped)
		TH_LOG("no page was dropped after MADV_FREE");
}

/* With time enough, all that was to happen did happen */
TEST_F(stress, everything_happens)
{
	int op;

	if (!has_run(_metadata))
		return;
	for (op = 0; op < NR_OPS; op++) {
		bool due = opt_seconds >= LONG_RUN || op == CHECK ||
			   op == WRITE || op == FORK || op == PAGEOUT;

		if (!board->use[op] || !due || board->broken || board->dead)
			continue;
		EXPECT_LT(0, board->ok[op])
			TH_LOG("%s: never worked, failed %ld times",
			       ops[op].name, board->failed[op]);
	}
}

TEST_F(stress, leaves_nothing)
{
	char now[1024] = "";
	int i;

	if (!has_run(_metadata))
		return;
	EXPECT_EQ(0, ledger->debts);
	EXPECT_NE(0, access(GROUP, F_OK))
		TH_LOG("the cgroup is still there");
	get_text("/proc/swaps", now, sizeof(now));
	for (i = 0; i < board->swaps; i++)
		EXPECT_EQ(NULL, strstr(now, board->swap[i]))
			TH_LOG("%s is still swap space", board->swap[i]);
}

static __noreturn void help(int status)
{
	int op;

	printf("usage: swap_stress [OPTION]...\n"
	       "  -t  how long (15)\n"
	       "  -w  workers (4)\n"
	       "  -s  seed of the random numbers (by the time)\n"
	       "  -o  only these operations, beside check and write\n"
	       "  -n  without these operations\n"
	       "  -a  also these operations, for swapoff2: two at a time\n"
	       "  -x  write a wrong byte after N operations: a run that has to fail\n"
	       "operations:");
	for (op = 0; op < NR_OPS; op++)
		printf(" %s", ops[op].name);
	printf("\n");
	exit(status);
}

static void choose(char *list, bool on)
{
	char *name;
	int op;

	for (name = strtok(list, ","); name; name = strtok(NULL, ",")) {
		for (op = 0; op < NR_OPS && strcmp(name, ops[op].name); op++)
			;
		if (op == NR_OPS) {
			fprintf(stderr, "no operation '%s'\n", name);
			help(KSFT_FAIL);
		}
		board->use[op] = on;
	}
}

int main(int argc, char **argv)
{
	int c;

	run_msecs();
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		ksft_exit_fail_perror("mmap");
	memset(board->use, true, sizeof(board->use));
	board->use[OFF2] = false;
	opt_seed = time(NULL) ^ getpid() << 16;
	while ((c = getopt(argc, argv, "t:w:s:o:n:a:x:h")) != -1)
		switch (c) {
		case 't':
			opt_seconds = atoi(optarg);
			break;
		case 'w':
			opt_workers = atoi(optarg);
			break;
		case 's':
			opt_seed = strtoull(optarg, NULL, 0);
			break;
		case 'o':
			memset(board->use, false, sizeof(board->use));
			board->use[CHECK] = true;
			board->use[WRITE] = true;
			choose(optarg, true);
			break;
		case 'n':
			choose(optarg, false);
			board->use[CHECK] = true;
			break;
		case 'a':
			choose(optarg, true);
			break;
		case 'x':
			opt_plant = atol(optarg);
			break;
		default:
			help(c == 'h' ? 0 : KSFT_FAIL);
		}
	if (opt_seconds < 1 || opt_seconds > 20 * DAY || opt_workers < 1 ||
	    opt_workers > MAX_WORKERS || optind < argc)
		help(KSFT_FAIL);
	/* The harness has options of its own, and gets none */
	optind = 0;
	return test_harness_run(1, argv);
}
