// SPDX-License-Identifier: GPL-2.0
/*
 * collapsebench: how soon a program has its memory in huge pages again after it
 * was swapped out or shared with a child, and what khugepaged takes for that.
 */
#include "bench.h"

#ifndef MADV_COLD
#define MADV_COLD	20
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE	25
#endif

#define KHUGEPAGED	"/sys/kernel/mm/transparent_hugepage/khugepaged/"
#define HUGE_BYTES	(2L << 20)
#define GOAL		95	/* percent */

static struct settings {
	long pages, seconds, idle;
	const char *swap;
} set = {
	.seconds = 60,
	.idle = 1200,
};

static const long points[] = { 0, 2, 5, 10, 15, 30, 60, 120, 300 };

#define POINTS	(sizeof(points) / sizeof(points[0]))

/* khugepaged ------------------------------------------------------------- */

static long khugepaged_pid(void)
{
	char path[64], comm[32];
	long pid;

	for (pid = 2; pid < 4096; pid++) {
		snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
		if (file_read(path, comm, sizeof(comm)) > 0 &&
		    !strcmp(comm, "khugepaged"))
			return pid;
	}
	die("khugepaged does not run: set transparent_hugepage/enabled to madvise");
}

/* Nanoseconds on a CPU; with a clock that counts instructions, those. */
static unsigned long long khugepaged_ns(void)
{
	static long pid;
	char path[64], buf[128];

	if (!pid)
		pid = khugepaged_pid();
	snprintf(path, sizeof(path), "/proc/%ld/schedstat", pid);
	if (file_read(path, buf, sizeof(buf)) <= 0)
		die("cannot read %s (CONFIG_SCHED_INFO)", path);
	return strtoull(buf, NULL, 10);
}

struct work {
	unsigned long long ns;
	long scans, collapsed;
};

static void work_read(struct work *w)
{
	w->ns = khugepaged_ns();
	w->scans = file_long(KHUGEPAGED "full_scans");
	w->collapsed = file_long(KHUGEPAGED "pages_collapsed");
}

static void work_since(struct work *w)
{
	struct work t;

	work_read(&t);
	w->ns = t.ns - w->ns;
	w->scans = t.scans - w->scans;
	w->collapsed = t.collapsed - w->collapsed;
}

/*
 * Wait until khugepaged has had a turn. From one of these to another it is a
 * whole number of turns: one more or less in twenty minutes would be 1 %.
 */
static void after_a_turn(void)
{
	unsigned long long was = khugepaged_ns();
	int i;

	for (i = 0; i < 1000 && khugepaged_ns() == was; i++)
		sleep_ms(20);
	sleep_ms(100);
}

/* The program ------------------------------------------------------------ */

static size_t all_bytes(void)
{
	return (size_t)(set.pages * page_size());
}

static double huge_share(void)
{
	long long kb = stat_line("/proc/self/smaps_rollup", "AnonHugePages");

	return 100.0 * (double)kb * 1024 / (double)all_bytes();
}

static unsigned char *map_huge(void)
{
	unsigned char *at = map_private(set.pages);

	if (madvise(at, all_bytes(), MADV_HUGEPAGE))
		die("MADV_HUGEPAGE: %s", strerror(errno));
	pages_fill(at, set.pages);
	if (huge_share() < 99)
		die("only %.0f %% of the memory comes in huge pages: give the guest more",
		    huge_share());
	return at;
}

/* Pages that are not as they were filled are an error of the kernel. */
static void check(unsigned char *at)
{
	long i;

	for (i = 0; i < set.pages; i++)
		if (*(volatile uint64_t *)(at + i * page_size()) !=
		    (uint64_t)i + 1)
			die("page %ld has wrong data", i);
}

/* All but a quarter, as in the original experiment. */
static void most_out(unsigned char *at)
{
	long kept = set.pages / 4;

	pages_out(at + kept * page_size(), set.pages - kept);
}

static void nothing(int fd, void *unused)
{
	(void)unused;
	step_give(fd);
	step_take(fd);
}

enum kind {
	MIX,
	READS,
	SWAPOFF,
	SHARED,
	FORK,
	KINDS,
};

static const char * const kind_name[KINDS] = {
	[MIX] = "reads and writes", [READS] = "reads", [SWAPOFF] = "swapoff",
	[SHARED] = "shared", [FORK] = "fork",
};

/* Leaves memory which is all there, in small pages but for a quarter or less. */
static unsigned char *past(enum kind kind)
{
	struct bench_child c;
	unsigned char *at;
	long i;

	if (kind == FORK) {
		at = map_private(set.pages);
		madvise(at, all_bytes(), MADV_NOHUGEPAGE);
		pages_fill(at, set.pages);
		madvise(at, all_bytes(), MADV_HUGEPAGE);
		bench_spawn(&c, nothing, NULL);
		step_take(c.fd);
		step_give(c.fd);
		bench_join(&c, "child");
		pages_read(at, set.pages);
		return at;
	}

	/* Before there is memory: this forks, which would leave its mark. */
	swap_need(set.swap, set.pages);
	at = map_huge();
	most_out(at);
	switch (kind) {
	case MIX:
		for (i = 0; i < set.pages; i++)
			if (i % 2)
				pages_write(at + i * page_size(), 1);
			else
				pages_read(at + i * page_size(), 1);
		break;
	case SHARED:
		bench_spawn(&c, nothing, NULL);
		step_take(c.fd);
		pages_read(at, set.pages);
		step_give(c.fd);
		bench_join(&c, "child");
		break;
	case SWAPOFF:
		swap_stop();
		pages_read(at, set.pages);
		break;
	default:
		pages_read(at, set.pages);
	}
	if (pages_swapped(at, set.pages))
		die("%ld pages are still in swap", pages_swapped(at, set.pages));
	return at;
}

static void put(const char *kind, const char *metric, const char *unit,
		const char *better, double value)
{
	char name[96];

	snprintf(name, sizeof(name), "%s: %s", kind, metric);
	sample(name, unit, better, value);
}

static void run(enum kind kind)
{
	unsigned char *at = past(kind);
	const char *name = kind_name[kind];
	double share = 0, ready = (double)set.seconds;
	uint64_t start, now;
	struct work w;
	char what[64];
	unsigned int next = 0;
	long second, i, taken = 0;
	int reached = 0;

	work_read(&w);
	start = now_ns();
	for (second = 0; second <= set.seconds; second++) {
		now = now_ns() - start;
		if (now < (uint64_t)second * 1000000000)
			sleep_ms((long)(((uint64_t)second * 1000000000 - now) /
					1000000));
		share = huge_share();
		printf("# %s: %ld s %.1f %%\n", name, second, share);
		if (!reached && share >= GOAL) {
			reached = 1;
			ready = (double)second;
		}
		if (next < POINTS && second == points[next]) {
			snprintf(what, sizeof(what),
				 "in huge pages after %ld s", second);
			put(name, what, "%", second ? "more" : "none", share);
			next++;
		}
	}
	work_since(&w);
	put(name, "until 95 % are in huge pages", "s", "less", ready);
	put(name, "memory of the program at the end", "MiB", "less",
	    (double)stat_line("/proc/self/smaps_rollup", "Rss") / 1024);
	put(name, "CPU of khugepaged", "ms", "none", (double)w.ns / 1e6);
	put(name, "CPU of khugepaged per huge page", "us", "less",
	    w.collapsed ? (double)w.ns / 1e3 / (double)w.collapsed : 0);
	put(name, "huge pages made", "", "none", (double)w.collapsed);
	put(name, "full scans", "", "none", (double)w.scans);

	/* What is left, on request. */
	for (i = 0; i + HUGE_BYTES <= (long)all_bytes(); i += HUGE_BYTES)
		taken += !madvise(at + i, HUGE_BYTES, MADV_COLLAPSE);
	put(name, "MADV_COLLAPSE succeeds", "%", "more",
	    100.0 * (double)taken * HUGE_BYTES / (double)all_bytes());
	check(at);
	munmap(at, all_bytes());
	if (set.swap)
		swap_stop();
}

/*
 * Nothing to do, for khugepaged to find out; for long enough to have some
 * rounds through all of memory, of which none begins in many a minute.
 */
static void idle(const char *name, int huge)
{
	unsigned char *at;
	struct work w;
	uint64_t start;
	double minutes;

	if (huge) {
		at = map_huge();
	} else {
		at = map_private(set.pages);
		madvise(at, all_bytes(), MADV_NOHUGEPAGE);
		pages_fill(at, set.pages);
		/* Not used: a huge page would be of no use. */
		madvise(at, all_bytes(), MADV_COLD);
		madvise(at, all_bytes(), MADV_HUGEPAGE);
	}
	/* What it has to do at first does not count. */
	sleep_ms(set.seconds * 1000);
	after_a_turn();
	work_read(&w);
	start = now_ns();
	sleep_ms(set.idle * 1000);
	after_a_turn();
	work_since(&w);
	minutes = (double)(now_ns() - start) / 60e9;
	put(name, "CPU of khugepaged", "us/min", "less",
	    (double)w.ns / 1e3 / minutes);
	put(name, "full scans", "1/min", "none", (double)w.scans / minutes);
	put(name, "huge pages made", "", "none", (double)w.collapsed);
	munmap(at, all_bytes());
}

static void help(void)
{
	puts("usage: collapsebench [OPTION]... CASE...\n"
	     "\n"
	     "How soon memory comes back in huge pages, at the settings of khugepaged that it\n"
	     "finds; the CPU that khugepaged takes for it. Of a program in huge pages all but\n"
	     "a quarter is swapped out, and then:\n"
	     "  mix      read and written back, every second page\n"
	     "  reads    read back\n"
	     "  swapoff  brought back by swapoff, then read\n"
	     "  shared   read back while a child has it too, which ends then\n"
	     "And:\n"
	     "  fork     small pages, shared with a child that has ended; no swap\n"
	     "  idle     nothing to do: all is in huge pages; or in small pages not used\n"
	     "\n"
	     "  --size N       memory of the program in MiB (200)\n"
	     "  --seconds N    how long it waits (60)\n"
	     "  --idle N       how long khugepaged is watched with nothing to do, in seconds\n"
	     "                 (1200: for a clock that counts instructions, which skips idle time)\n"
	     "  --swap DEVICE  FORMAT this block device, and swap on it meanwhile\n"
	     "\n"
	     "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "size",	required_argument,	NULL, 'm' },
		{ "seconds",	required_argument,	NULL, 't' },
		{ "idle",	required_argument,	NULL, 'i' },
		{ "swap",	required_argument,	NULL, 's' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	static const char * const cases[KINDS] = {
		[MIX] = "mix", [READS] = "reads", [SWAPOFF] = "swapoff",
		[SHARED] = "shared", [FORK] = "fork",
	};
	long size = 200;
	int opt, i;

	bench_init("collapsebench");
	while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (opt) {
		case 'm':
			size = bench_number("--size", optarg, 8, 100000);
			break;
		case 't':
			set.seconds = bench_number("--seconds", optarg, 1, 3600);
			break;
		case 'i':
			set.idle = bench_number("--idle", optarg, 1, 36000);
			break;
		case 's':
			set.swap = optarg;
			break;
		case 'h':
			help();
			return 0;
		default:
			bench_bad_option(argv);
		}
	}
	if (optind == argc)
		die_usage("name one or more cases: mix, reads, swapoff, shared, fork, idle");
	set.pages = size / 2 * 2 * (1L << 20) / page_size();
	khugepaged_ns();

	for (; optind < argc; optind++) {
		if (!strcmp(argv[optind], "idle")) {
			idle("idle, huge pages", 1);
			idle("idle, pages not used", 0);
			continue;
		}
		for (i = 0; i < KINDS && strcmp(argv[optind], cases[i]); i++)
			;
		if (i == KINDS)
			die_usage("'%s' is no case: see --help", argv[optind]);
		if (i == SWAPOFF && !set.swap)
			die_usage("case swapoff needs --swap DEVICE (it is formatted)");
		run((enum kind)i);
	}
	bench_exit(0);
}
