// SPDX-License-Identifier: GPL-2.0
/*
 * lfpressure: processes that touch memory and give it back, over and over,
 * and together touch more than there is: MADV_DONTNEED, then MADV_FREE.
 */
#include "bench.h"

#define PROCESSES	48
#define CHUNK		256	/* pages looked at, then touched */

enum advice {
	DONTNEED,
	FREE,
	ADVICES,
};

static const char * const advice_name[ADVICES] = {
	[DONTNEED] = "DONTNEED", [FREE] = "FREE",
};

static const int advice_value[ADVICES] = {
	[DONTNEED] = MADV_DONTNEED, [FREE] = MADV_FREE,
};

struct settings {
	long processes, loops, size, pages;
	enum advice advice;
};

static struct settings set = {
	.processes = 12,
	.loops = 5,
	.size = 200,
};

/* What each process finds out, in a line of its own. */
static struct found {
	/* Pages that it had given back, and that went to swap after that. */
	long swapped;
	long major;
} __attribute__((aligned(64))) *found;

struct result {
	struct reclaim_stat st;
	long long given, dropped;
	long swapped, major;
};

static long major_faults(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_majflt;
}

/*
 * What is a swap entry just before it is touched again has been swapped out
 * after the advice: the advice frees the entries that it meets.
 */
static long touch(unsigned char *at, int again)
{
	long i, n, swapped = 0;

	for (i = 0; i < set.pages; i += n) {
		n = set.pages - i < CHUNK ? set.pages - i : CHUNK;
		if (again)
			swapped += pages_swapped(at + i * page_size(), n);
		pages_fill(at + i * page_size(), n);
	}
	return swapped;
}

static void process(int fd, void *arg)
{
	size_t len = (size_t)(set.pages * page_size());
	struct found *f = arg;
	unsigned char *at;
	long loop, before;

	at = map_private(set.pages);
	madvise(at, len, MADV_NOHUGEPAGE);
	step_give(fd);
	step_take(fd);
	for (loop = 0; loop < set.loops; loop++) {
		before = major_faults();
		f->swapped += touch(at, loop > 0);
		if (loop)
			f->major += major_faults() - before;
		if (madvise(at, len, advice_value[set.advice]))
			die("MADV_%s: %s", advice_name[set.advice],
			    strerror(errno));
	}
	/* The last pages given back stay until the slowest is done. */
	step_give(fd);
	step_take(fd);
	f->swapped += pages_swapped(at, set.pages);
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

static void run(enum advice advice, const char *swap, struct result *r)
{
	struct bench_child c[PROCESSES];
	long i;

	set.advice = advice;
	swap_need(swap, set.processes * set.pages);
	memset(found, 0, (size_t)set.processes * sizeof(*found));
	memset(r, 0, sizeof(*r));

	for (i = 0; i < set.processes; i++) {
		bench_spawn(&c[i], process, &found[i]);
		step_take(c[i].fd);
	}
	stat_refresh();
	r->given = vmstat("pglazyfree");
	r->dropped = vmstat("pglazyfreed");
	reclaim_read(&r->st);
	for (i = 0; i < set.processes; i++)
		step_give(c[i].fd);
	for (i = 0; i < set.processes; i++)
		step_take(c[i].fd);
	reclaim_since(&r->st);
	stat_refresh();
	r->given = vmstat("pglazyfree") - r->given;
	r->dropped = vmstat("pglazyfreed") - r->dropped;
	for (i = 0; i < set.processes; i++) {
		step_give(c[i].fd);
		bench_join(&c[i], "process that touches memory");
		r->swapped += found[i].swapped;
		r->major += found[i].major;
	}
	if (swap)
		swap_stop();
}

static void put(enum advice advice, const char *metric, const char *unit,
		const char *better, double value)
{
	char name[96];

	snprintf(name, sizeof(name), "%s: %s", advice_name[advice], metric);
	sample(name, unit, better, value);
}

static void report(enum advice advice, const struct result *r)
{
	put(advice, "swapped in", "pages", "less", (double)r->st.in);
	put(advice, "swapped out", "pages", "less", (double)r->st.out);
	put(advice, "elapsed", "ms", "less", (double)r->st.ns / 1e6);
	put(advice, "scanned by reclaim", "pages", "none",
	    (double)r->st.scan);
	if (advice != FREE)
		return;
	put(advice, "swapped out after the advice", "pages", "less",
	    (double)r->swapped);
	put(advice, "faults that read such a page back", "faults", "less",
	    (double)r->major);
	put(advice, "came to be lazily free", "pages", "none", (double)r->given);
	put(advice, "dropped by reclaim", "pages", "none",
	    (double)r->dropped);
}

static void help(void)
{
	puts("usage: lfpressure [OPTION]...\n"
	     "\n"
	     "Processes that touch all their memory, give it back, and start again, where they\n"
	     "have more than there is: first with MADV_DONTNEED, then anew with MADV_FREE.\n"
	     "\n"
	     "  --processes N  how many at a time (12)\n"
	     "  --loops N      times that each touches its memory and gives it back (5)\n"
	     "  --size N       memory of all of them, in percent of MemTotal (200)\n"
	     "  --swap DEVICE  FORMAT this block device, and swap on it meanwhile\n"
	     "\n"
	     "Where the kernel has no MADV_FREE, its figures are left out.\n"
	     "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "processes",	required_argument,	NULL, 'p' },
		{ "loops",	required_argument,	NULL, 'l' },
		{ "size",	required_argument,	NULL, 'm' },
		{ "swap",	required_argument,	NULL, 's' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	struct result r[ADVICES];
	const char *swap = NULL;
	long total;
	int opt;

	bench_init("lfpressure");
	while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (opt) {
		case 'p':
			set.processes = bench_number("--processes", optarg, 1,
						     PROCESSES);
			break;
		case 'l':
			set.loops = bench_number("--loops", optarg, 1, 1000);
			break;
		case 'm':
			set.size = bench_number("--size", optarg, 1, 1000);
			break;
		case 's':
			swap = optarg;
			break;
		case 'h':
			help();
			return 0;
		default:
			bench_bad_option(argv);
		}
	}
	bench_no_more_args(argc, argv);
	total = meminfo_pages("MemTotal");
	set.pages = total * set.size / 100 / set.processes;
	if (set.pages < CHUNK)
		die_usage("--size %ld comes to less than %d pages a process: give more",
			  set.size, CHUNK);
	found = map_shared((size_t)set.processes * sizeof(*found));
	printf("# %ld processes of %ld pages, MemTotal %ld pages\n",
	       set.processes, set.pages, total);

	run(DONTNEED, swap, &r[DONTNEED]);
	report(DONTNEED, &r[DONTNEED]);
	if (!free_is_known()) {
		printf("# this kernel has no MADV_FREE\n");
		bench_exit(0);
	}
	run(FREE, swap, &r[FREE]);
	report(FREE, &r[FREE]);
	if (r[DONTNEED].st.in)
		sample("FREE / DONTNEED: swapped in", "ratio", "less",
		       (double)r[FREE].st.in / (double)r[DONTNEED].st.in);
	sample("FREE / DONTNEED: elapsed", "ratio", "less",
	       (double)r[FREE].st.ns / (double)r[DONTNEED].st.ns);
	bench_exit(0);
}
