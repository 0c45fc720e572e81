// SPDX-License-Identifier: GPL-2.0
/*
 * coworphan: what stays in the swap cache when the last sharer of its pages
 * copies them, and what that costs the next program that needs memory.
 */
#include "bench.h"

#define HUGE_PAGES	512
#define KSM		"/sys/kernel/mm/ksm/"

enum kind {
	BASE,		/* base pages that a pipe holds, too */
	LARGE,		/* large folios: are always copied page by page */
	MERGED,		/* KSM pages: are always copied */
	RETURNED,	/* KSM pages that went to swap: copied at swap-in */
	KINDS,
};

static const char * const kind_name[KINDS] = {
	[BASE] = "base", [LARGE] = "large", [MERGED] = "ksm",
	[RETURNED] = "ksm-in",
};

struct balloon {
	unsigned char *at;
	long pages;
	struct reclaim_stat st;
};

static struct balloon *balloon;

static void put(enum kind kind, const char *metric, const char *unit,
		const char *better, double value)
{
	char name[96];

	snprintf(name, sizeof(name), "%s: %s", kind_name[kind], metric);
	sample(name, unit, better, value > 0 ? value : 0);
}

struct snapshot {
	unsigned char *at;
	long pages;
	int pipe[2];
	enum kind kind;
};

/*
 * The worker takes a snapshot of what its parent has. Of base pages it sends
 * it through a pipe, without copying: the pipe then has a reference on each.
 */
static void snapshot(int fd, void *arg)
{
	struct snapshot *s = arg;
	struct iovec iov = { s->at, (size_t)(s->pages * page_size()) };
	ssize_t n;

	step_take(fd);
	pages_read(s->at, s->pages);
	while (s->kind == BASE && iov.iov_len) {
		n = vmsplice(s->pipe[1], &iov, 1, SPLICE_F_NONBLOCK);
		if (n <= 0)
			die("vmsplice: %s", strerror(errno));
		iov.iov_base = (char *)iov.iov_base + n;
		iov.iov_len -= (size_t)n;
	}
	step_give(fd);
	step_take(fd);
}

static void make_pipe(struct snapshot *s)
{
	long size = s->pages * page_size();

	if (pipe2(s->pipe, O_CLOEXEC | O_NONBLOCK))
		die("cannot make a pipe: %s", strerror(errno));
	if (fcntl(s->pipe[1], F_SETPIPE_SZ, (int)size) < 0)
		die("no pipe of %ld bytes (%s): run as root, or give fewer --pages",
		    size, strerror(errno));
}

/* The other end of the pipe reads the snapshot; no later write is in it. */
static void drain_pipe(struct snapshot *s)
{
	static unsigned char buf[16 * 4096] __attribute__((aligned(4096)));
	long pages = 0, i, got, size = page_size();

	while (pages < s->pages) {
		for (got = 0; got < (long)sizeof(buf); got += i) {
			i = read(s->pipe[0], buf + got,
				 sizeof(buf) - (size_t)got);
			if (i <= 0)
				break;
		}
		for (i = 0; i < got / size; i++, pages++)
			if (*(uint64_t *)(buf + i * size) !=
			    (uint64_t)pages + 1 ||
			    *(uint64_t *)(buf + i * size + 64))
				die("page %ld of the snapshot is wrong", pages);
		if (got < (long)sizeof(buf))
			break;
	}
	if (pages != s->pages)
		die("the snapshot has %ld pages of %ld", pages, s->pages);
	close(s->pipe[0]);
	close(s->pipe[1]);
}

static uint64_t *places(unsigned char *at, long pages)
{
	uint64_t *place = calloc((size_t)pages, sizeof(*place));

	if (!place)
		die("out of memory");
	pages_place(at, place, pages);
	return place;
}

/* How many pages of a range are where @place says. */
static long at_place(unsigned char *at, const uint64_t *place, long pages)
{
	uint64_t *now = places(at, pages);
	long i, n = 0;

	for (i = 0; i < pages; i++)
		n += now[i] == place[i];
	free(now);
	return n;
}

static unsigned char *map_mergeable(long pages)
{
	size_t len = (size_t)(pages * page_size());
	unsigned char *at = map_private(pages);

	madvise(at, len, MADV_NOHUGEPAGE);
	pages_fill(at, pages);
	if (madvise(at, len, MADV_MERGEABLE))
		die("MADV_MERGEABLE: %s", strerror(errno));
	return at;
}

/* Run KSM until two ranges have the same pages. */
static void merge(unsigned char *at, unsigned char *twin, long pages)
{
	long shared = 0;
	int i;

	if (file_write(KSM "run", "1"))
		die("cannot start KSM");
	for (i = 0; i < 2000 && shared < pages; i++) {
		uint64_t *place = places(at, pages);

		shared = at_place(twin, place, pages);
		free(place);
		sleep_ms(20);
	}
	if (file_write(KSM "run", "0"))
		die("cannot stop KSM");
	if (shared < pages - pages / 100)
		die("KSM merged %ld pages of %ld", shared, pages);
}

/*
 * MADV_PAGEOUT leaves what is mapped twice, so have the memory cgroup reclaim
 * everything, until nothing of the two ranges is left in memory.
 */
static void reclaim_both(unsigned char *at, unsigned char *twin, long pages)
{
	long gone = 0;
	int i;

	for (i = 0; i < 100 && gone < 2 * pages; i++) {
		cgroup_write("memory.reclaim", "1G");
		wait_writeback();
		gone = pages_swapped(at, pages) + pages_swapped(twin, pages);
		/* Reclaim goes by statistics that may be two seconds old. */
		if (!gone)
			sleep_ms(50);
	}
	if (gone < 2 * pages - pages / 50)
		die("only %ld of %ld pages go to swap", gone, 2 * pages);
}

/*
 * Two ranges whose pages are in the same places in swap, since KSM had made one
 * page of two. What comes back from there is no page of KSM's any more: it fits
 * one of the ranges, the other gets a copy at once.
 */
static unsigned char *second_range(unsigned char *at, long pages)
{
	unsigned char *twin = map_mergeable(pages);
	uint64_t *place;
	long same;

	merge(at, twin, pages);
	reclaim_both(at, twin, pages);
	place = places(twin, pages);
	same = at_place(at, place, pages);
	free(place);
	if (same < pages - pages / 100)
		die("%ld pages of %ld are in the same place in swap", same,
		    pages);
	return twin;
}

static void blow(int fd, void *arg)
{
	(void)arg;
	file_write("/proc/self/oom_score_adj", "1000");
	balloon->at = map_private(balloon->pages);
	madvise(balloon->at, (size_t)(balloon->pages * page_size()),
		MADV_NOHUGEPAGE);
	reclaim_read(&balloon->st);
	pages_fill(balloon->at, balloon->pages);
	reclaim_since(&balloon->st);
	step_give(fd);
	step_take(fd);
}

/*
 * The next program needs memory: as much as is there when nothing was left
 * behind. Then the first one goes through its pages once.
 */
static void pressure(enum kind kind, unsigned char *at, long pages, long grow)
{
	struct reclaim_stat st;
	struct bench_child c;

	balloon->pages = grow;
	bench_spawn(&c, blow, NULL);
	step_take(c.fd);
	st = balloon->st;
	put(kind, "pressure, scanned by reclaim", "pages", "less",
	    (double)st.scan);
	put(kind, "pressure, freed by reclaim", "pages", "none",
	    (double)st.steal);
	if (st.steal)
		put(kind, "pressure, scanned per page freed", "pages", "none",
		    (double)st.scan / (double)st.steal);
	put(kind, "pressure, swapped out", "pages", "less", (double)st.out);
	put(kind, "pressure, time", "ms", "less", (double)st.ns / 1e6);

	reclaim_read(&st);
	pages_read(at, pages);
	reclaim_since(&st);
	put(kind, "pressure, swapped in again", "pages", "less",
	    (double)st.in);
	step_give(c.fd);
	bench_join(&c, "program that needs memory");
}

/* Out to swap, shared by fork, back from swap, and copied by the last sharer. */
static void fork_and_copy(struct snapshot *s, long cached)
{
	long pages = s->pages;
	struct bench_child c;
	long long whole;

	if (s->kind == MERGED) {
		unsigned char *twin = map_mergeable(pages);

		merge(s->at, twin, pages);
		/* The last page that is mapped once only can go to swap. */
		munmap(twin, (size_t)(pages * page_size()));
	}
	whole = vmstat("thp_swpout");
	pages_out(s->at, pages);
	if (s->kind == BASE) {
		/*
		 * Only the content went out: the pages are still in the swap
		 * cache. Map them, and let them go, now that they are clean.
		 */
		pages_read(s->at, pages);
		pages_out(s->at, pages);
	}
	whole = vmstat("thp_swpout") - whole;

	/*
	 * The worker is forked, and both it and its parent have the pages
	 * back from swap. When it is gone, its parent is the last sharer.
	 */
	if (s->kind == BASE)
		make_pipe(s);
	bench_spawn(&c, snapshot, s);
	step_give(c.fd);
	step_take(c.fd);
	pages_read(s->at, pages);
	step_give(c.fd);
	bench_join(&c, "worker");
	put(s->kind, "shared, in swap cache", "pages", "none",
	    (double)(swap_cached_pages() - cached));

	pages_write(s->at, pages);
	if (s->kind == BASE)
		drain_pipe(s);
	if (s->kind == LARGE)
		put(s->kind, "swapped out whole", "folios", "none",
		    (double)whole);
}

static void run(enum kind kind, long pages)
{
	struct snapshot s = { .kind = kind, .pages = pages };
	size_t len = (size_t)(pages * page_size());
	long cached, used, unused, grow, total;
	unsigned char *twin = NULL;

	total = meminfo_pages("MemTotal");
	stat_refresh();
	unused = meminfo_pages("MemFree");
	cached = swap_cached_pages();
	used = swap_used_pages();

	if (kind == MERGED || kind == RETURNED) {
		s.at = map_mergeable(pages);
	} else {
		s.at = map_private(pages);
		if (madvise(s.at, len, kind == LARGE ? MADV_HUGEPAGE :
			    MADV_NOHUGEPAGE) && kind == LARGE)
			die("no huge pages in this kernel: leave --kind large out");
		pages_fill(s.at, pages);
	}
	if (kind == RETURNED) {
		twin = second_range(s.at, pages);
		/* The first range takes copies, the page waits for the other. */
		pages_write(s.at, pages);
		put(kind, "shared, in swap cache", "pages", "none",
		    (double)(swap_cached_pages() - cached));
		pages_read(twin, pages);
	} else {
		fork_and_copy(&s, cached);
	}
	put(kind, "left in swap cache", "pages", "less",
	    (double)(swap_cached_pages() - cached));
	put(kind, "left in swap slots", "pages", "less",
	    (double)(swap_used_pages() - used));

	/* Stay clear of the free memory that the kernel wants to keep. */
	grow = unused - pages * (twin ? 2 : 1) - total / 32 -
	       2 * file_long("/proc/sys/vm/min_free_kbytes") * 1024 /
	       page_size();
	printf("# %s: %ld pages, %ld were free, %ld are, the next needs %ld\n",
	       kind_name[kind], pages, unused, meminfo_pages("MemFree"), grow);
	if (grow <= pages / 4)
		printf("# no memory for the next: give fewer --pages\n");
	else
		pressure(kind, s.at, pages, grow);
	munmap(s.at, len);
	if (twin)
		munmap(twin, len);
}

struct job {
	enum kind kind;
	long pages;
};

/* In a process of its own: it leaves nothing but what the kernel forgot. */
static void job(int fd, void *arg)
{
	struct job *j = arg;

	(void)fd;
	if (j->kind == RETURNED && cgroup_write("cgroup.procs", "0"))
		die("cannot enter the memory cgroup: run as root");
	run(j->kind, j->pages);
}

static void help(void)
{
	puts("usage: coworphan [--kind KIND] [--pages N] [--swap DEVICE]\n"
	     "\n"
	     "What stays in the swap cache when the last sharer of its pages copies them, and\n"
	     "what that costs the next program that needs memory.\n"
	     "\n"
	     "  --kind KIND    base: pages of which a pipe has a reference; large: large folios;\n"
	     "                 ksm: KSM pages; ksm-in: KSM pages, copied when they come back\n"
	     "                 from swap; all: these in turn (all)\n"
	     "  --pages N      pages (a quarter of MemTotal; for ksm an eighth)\n"
	     "  --swap DEVICE  FORMAT this block device, and swap on it meanwhile\n"
	     "\n"
	     "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "kind",	required_argument,	NULL, 'k' },
		{ "pages",	required_argument,	NULL, 'p' },
		{ "swap",	required_argument,	NULL, 's' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	const char *swap = NULL, *only = "all";
	struct bench_child c;
	long pages = 0, total;
	struct job j;
	int i;

	bench_init("coworphan");
	while ((i = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (i) {
		case 'k':
			only = optarg;
			break;
		case 'p':
			pages = bench_number("--pages", optarg, 512, 1 << 18);
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
	for (i = 0; i < KINDS && strcmp(only, kind_name[i]); i++)
		;
	if (i == KINDS && strcmp(only, "all"))
		die_usage("--kind is '%s', give base, large, ksm, ksm-in or all", only);

	total = meminfo_pages("MemTotal");
	/* One CPU, so that no page waits in the batch of another. */
	pin_cpu(0);
	balloon = map_shared(sizeof(*balloon));
	for (i = 0; i < KINDS; i++) {
		if (strcmp(only, "all") && strcmp(only, kind_name[i]))
			continue;
		j.kind = (enum kind)i;
		j.pages = pages ? pages : total / (i >= MERGED ? 8 : 4);
		if (i == LARGE)
			j.pages = j.pages / HUGE_PAGES * HUGE_PAGES;
		swap_need(swap, 2 * j.pages);
		/* In here, as this process puts them back. */
		if (i >= MERGED && (knob_set(KSM "run", "0") ||
				    knob_set(KSM "sleep_millisecs", "0") ||
				    knob_set(KSM "pages_to_scan", "4096")))
			die("cannot set up %s: run as root, on a kernel with KSM",
			    KSM);
		if (i == LARGE)
			file_write("/proc/sys/vm/compact_memory", "1");
		if (i == RETURNED)
			cgroup_make("coworphan");
		bench_spawn(&c, job, &j);
		bench_join(&c, kind_name[i]);
		if (swap)
			swap_stop();
	}
	bench_exit(0);
}
