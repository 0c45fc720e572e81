// SPDX-License-Identifier: GPL-2.0
/*
 * lfreuse: what it costs to give memory back and to use it again.
 *
 * Run it where the clock counts instructions, and ns/page are instructions
 * per base page, also where a folio has many.
 */
#include "bench.h"

#ifndef MADV_COLD
#define MADV_COLD	20
#endif

#define ROUNDS		64
#define SLICE		512	/* faults that fit between two ticks */
#define THP		"/sys/kernel/mm/transparent_hugepage/"

enum kind {
	BASE,
	LARGE,
	HUGE,
	KINDS,
};

static const struct {
	const char *name;
	long kb;	/* of a folio, where that is not a base page */
} kinds[KINDS] = {
	[BASE] = { "base", 0 }, [LARGE] = { "64kB", 64 },
	[HUGE] = { "2MB", 2048 },
};

enum phase {
	TOUCH,			/* memory never used yet */
	FREE_FRESH,		/* written pages, for the first time */
	FREE_AGAIN,		/* all are lazily free already */
	TOUCH_LAZY,		/* lazily free pages: no fault */
	FREE_REWRITTEN,		/* pages freed and written before */
	DONTNEED,
	TOUCH_EMPTY,		/* after MADV_DONTNEED */
	CYCLE_FREE,
	CYCLE_DONTNEED,
	PHASES,
};

static const struct {
	const char *name;
	int free;		/* has no meaning without MADV_FREE */
	int log;		/* in the log only */
} phases[PHASES] = {
	[TOUCH]		 = { "touch", 0, 1 },
	[FREE_FRESH]	 = { "FREE, fresh", 1, 0 },
	[FREE_AGAIN]	 = { "FREE, already lazily free", 1, 0 },
	[TOUCH_LAZY]	 = { "touch after FREE", 1, 1 },
	[FREE_REWRITTEN] = { "FREE, written again", 1, 0 },
	[DONTNEED]	 = { "DONTNEED", 0, 0 },
	[TOUCH_EMPTY]	 = { "touch after DONTNEED", 0, 1 },
	[CYCLE_FREE]	 = { "touch, FREE, touch again", 1, 0 },
	[CYCLE_DONTNEED] = { "touch, DONTNEED, touch again", 0, 0 },
};

static double cost[PHASES][ROUNDS];
static double idle_ns;

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, long n)
{
	qsort(values, (size_t)n, sizeof(*values), by_size);
	return values[n / 2];
}

/* Two readings of the clock with nothing between them. */
static double clock_cost(void)
{
	static double ns[256];
	uint64_t start;
	int i;

	for (i = 0; i < 256; i++) {
		start = now_ns();
		ns[i] = (double)(now_ns() - start);
	}
	return median(ns, 256);
}

/*
 * Wait for the end of a timer tick, which shows as a gap between two readings
 * of the clock: what is measured from here on has the time to the next tick
 * for itself, 4 million instructions at 250 Hz.
 */
static void after_tick(void)
{
	uint64_t end, last, now;

	last = now_ns();
	end = last + 12 * 1000 * 1000;
	while (last < end) {
		now = now_ns();
		if ((double)(now - last) > 4 * idle_ns + 800)
			return;
		last = now;
	}
}

static double timed_touch(unsigned char *at, long pages, long slice)
{
	double ns = 0;
	uint64_t start;
	long i, n;

	for (i = 0; i < pages; i += n) {
		n = pages - i < slice ? pages - i : slice;
		after_tick();
		start = now_ns();
		pages_fill(at + i * page_size(), n);
		ns += (double)(now_ns() - start) - idle_ns;
	}
	return ns / (double)pages;
}

static double timed_advice(unsigned char *at, long pages, int advice)
{
	size_t len = (size_t)(pages * page_size());
	uint64_t start;
	double ns;

	after_tick();
	start = now_ns();
	if (madvise(at, len, advice))
		die("madvise %d: %s", advice, strerror(errno));
	ns = (double)(now_ns() - start) - idle_ns;
	return ns / (double)pages;
}

/* Pages of the mapping at this address that smaps calls lazily free. */
static long lazily_free(unsigned char *at)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long from, to, addr = (unsigned long)at;
	long kb = -1;
	int in = 0;
	char line[512];

	if (!f)
		die("cannot read /proc/self/smaps: %s", strerror(errno));
	while (kb < 0 && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			in = from <= addr && addr < to;
		else if (in && !strncmp(line, "LazyFree:", 9))
			kb = strtol(line + 9, NULL, 10);
	}
	fclose(f);
	if (kb < 0)
		die("/proc/self/smaps has no LazyFree of this mapping");
	return kb * 1024 / page_size();
}

/* Nothing waits in a batch of this CPU after that. */
static void drain_batches(void)
{
	static unsigned char spare[16384] __attribute__((aligned(16384)));

	spare[0] = 1;
	madvise(spare, (size_t)page_size(), MADV_COLD);
}

static unsigned char *map_kind(enum kind kind, long pages)
{
	unsigned char *at = map_private(pages);

	if (madvise(at, (size_t)(pages * page_size()),
		    kind == BASE ? MADV_NOHUGEPAGE : MADV_HUGEPAGE) &&
	    kind != BASE)
		die("no huge pages in this kernel: leave --kind %s out",
		    kinds[kind].name);
	return at;
}

/* Only folios of this size come up where MADV_HUGEPAGE is given. */
static int kind_setup(enum kind kind)
{
	const char *large = kind == LARGE ? "madvise" : "never";
	const char *huge = kind == HUGE ? "madvise" : "never";
	int bad;

	bad = knob_set(THP "hugepages-64kB/enabled", large);
	bad |= knob_set(THP "hugepages-2048kB/enabled", huge);
	file_write("/proc/sys/vm/compact_memory", "1");
	return kind == BASE ? 0 : bad;
}

/* Folios of this kind that have come up so far, or -1. */
static long folios_so_far(enum kind kind)
{
	char path[128], buf[64];

	snprintf(path, sizeof(path),
		 THP "hugepages-%ldkB/stats/anon_fault_alloc",
		 kinds[kind].kb);
	if (kind == BASE || file_read(path, buf, sizeof(buf)) <= 0)
		return -1;
	return strtol(buf, NULL, 10);
}

static void round_free(enum kind kind, long pages, int round)
{
	unsigned char *at = map_kind(kind, pages);

	cost[TOUCH][round] = timed_touch(at, pages, SLICE);
	cost[FREE_FRESH][round] = timed_advice(at, pages, MADV_FREE);
	cost[FREE_AGAIN][round] = timed_advice(at, pages, MADV_FREE);
	cost[TOUCH_LAZY][round] = timed_touch(at, pages, pages);
	cost[FREE_REWRITTEN][round] = timed_advice(at, pages, MADV_FREE);
	cost[CYCLE_FREE][round] = cost[TOUCH][round] +
		cost[FREE_FRESH][round] + cost[TOUCH_LAZY][round];
	munmap(at, (size_t)(pages * page_size()));
}

static void round_dontneed(enum kind kind, long pages, int round)
{
	long folios = folios_so_far(kind);
	unsigned char *at = map_kind(kind, pages);

	cost[TOUCH][round] = timed_touch(at, pages, SLICE);
	if (folios >= 0) {
		folios = folios_so_far(kind) - folios;
		if (folios != pages * page_size() / 1024 / kinds[kind].kb)
			die("only %ld folios of %s on %ld pages: give more memory",
			    folios, kinds[kind].name, pages);
	}
	cost[DONTNEED][round] = timed_advice(at, pages, MADV_DONTNEED);
	cost[TOUCH_EMPTY][round] = timed_touch(at, pages, SLICE);
	cost[CYCLE_DONTNEED][round] = cost[TOUCH][round] +
		cost[DONTNEED][round] + cost[TOUCH_EMPTY][round];
	munmap(at, (size_t)(pages * page_size()));
}

/* How much of what it was asked for does the kernel make lazily free? */
static double share_free(enum kind kind, long pages)
{
	unsigned char *at = map_kind(kind, pages);
	double share;

	pages_fill(at, pages);
	if (madvise(at, (size_t)(pages * page_size()), MADV_FREE))
		die("MADV_FREE: %s", strerror(errno));
	drain_batches();
	share = (double)lazily_free(at) / (double)pages;
	munmap(at, (size_t)(pages * page_size()));
	return share;
}

static void run(enum kind kind, long pages, int rounds, int known)
{
	enum phase which;
	char name[96];
	int i;

	if (kind_setup(kind)) {
		printf("# %s: left out, not root or no such folios\n",
		       kinds[kind].name);
		return;
	}
	/* The first round is not counted. */
	for (i = -1; i < rounds; i++) {
		if (known)
			round_free(kind, pages, i < 0 ? 0 : i);
		round_dontneed(kind, pages, i < 0 ? 0 : i);
	}
	for (which = 0; which < PHASES; which++) {
		if (phases[which].free && !known)
			continue;
		snprintf(name, sizeof(name), "%s: %s", kinds[kind].name,
			 phases[which].name);
		printf("# %s:", name);
		for (i = 0; i < rounds; i++)
			printf(" %.3f", cost[which][i]);
		printf(" ns/page\n");
		if (!phases[which].log)
			sample(name, "ns/page", "less",
			       median(cost[which], rounds));
	}
	if (!known)
		return;
	snprintf(name, sizeof(name), "%s: lazily free of those asked for",
		 kinds[kind].name);
	sample(name, "share", "more", share_free(kind, pages));
}

static int free_is_known(void)
{
	unsigned char *at = map_private(1);
	int known;

	known = !madvise(at, (size_t)page_size(), MADV_FREE);
	if (!known && errno != EINVAL)
		die("MADV_FREE: %s", strerror(errno));
	munmap(at, (size_t)page_size());
	return known;
}

static void help(void)
{
	puts("usage: lfreuse [--kind base|64kB|2MB|all] [--pages N] [--rounds N]\n"
	     "\n"
	     "Cost per page of madvise(MADV_FREE) and of MADV_DONTNEED, alone and with the\n"
	     "touching of the memory before and after.\n"
	     "\n"
	     "  --kind KIND  base pages, folios of 64 kB or of 2 MB, or all in turn (all)\n"
	     "  --pages N    base pages of a call; a multiple of 512 (2048)\n"
	     "  --rounds N   rounds; the median is given (5)\n"
	     "\n"
	     "Where the kernel has no MADV_FREE, its figures are left out.\n"
	     "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "kind",	required_argument,	NULL, 'k' },
		{ "pages",	required_argument,	NULL, 'p' },
		{ "rounds",	required_argument,	NULL, 'r' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	const char *only = "all";
	int rounds = 5, known, i;
	long pages = 2048;

	bench_init("lfreuse");
	while ((i = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (i) {
		case 'k':
			only = optarg;
			break;
		case 'p':
			pages = bench_number("--pages", optarg, 512, 1 << 18);
			if (pages % 512)
				die_usage("--pages is %ld, give a multiple of 512",
					  pages);
			break;
		case 'r':
			rounds = (int)bench_number("--rounds", optarg, 1,
						   ROUNDS);
			break;
		case 'h':
			help();
			return 0;
		default:
			bench_bad_option(argv);
		}
	}
	bench_no_more_args(argc, argv);
	for (i = 0; i < KINDS && strcmp(only, kinds[i].name); i++)
		;
	if (i == KINDS && strcmp(only, "all"))
		die_usage("--kind is '%s', give base, 64kB, 2MB or all", only);

	/* One CPU, so that no page waits in the batch of another. */
	pin_cpu(0);
	idle_ns = clock_cost();
	known = free_is_known();
	if (!known)
		printf("# this kernel has no MADV_FREE\n");
	printf("# a reading of the clock takes %.0f ns\n", idle_ns);
	for (i = 0; i < KINDS; i++)
		if (!strcmp(only, "all") || !strcmp(only, kinds[i].name))
			run((enum kind)i, pages, rounds, known);
	bench_exit(0);
}
