// SPDX-License-Identifier: GPL-2.0
/*
 * cowfault: what one write fault on a shared anonymous page costs.
 *
 * Run it where the clock counts instructions, and ns/fault are instructions
 * per fault, the loop around them included.
 */
#include "bench.h"

#define ROUNDS		64
#define MAX_PAGES	(1 << 15)

enum phase {
	COPY_ANON,		/* first sharer, not in swap cache: copies */
	REUSE_ANON,		/* last sharer, not in swap cache: reuses */
	READ_CACHED,		/* swap entry whose page is in swap cache */
	COPY_CACHED,		/* first sharer, in swap cache: copies */
	REUSE_CACHED,		/* last sharer, in swap cache: reuses */
	COPY_IDLE,		/* last sharer, page in a pipe: copies */
	PHASES,
};

static const char * const phase_name[PHASES] = {
	[COPY_ANON]	= "copy, not in swap cache",
	[REUSE_ANON]	= "reuse, not in swap cache",
	[READ_CACHED]	= "read, in swap cache",
	[COPY_CACHED]	= "copy, in swap cache, still mapped",
	[REUSE_CACHED]	= "reuse, in swap cache",
	[COPY_IDLE]	= "copy, in swap cache, left idle",
};

struct shared {
	double ns[PHASES][ROUNDS];
	long faults[PHASES];
	long cached, left;
	int round;
};

struct side {
	unsigned char *at;
	long pages;
	int piped;
	struct shared *shared;
};

static unsigned char spare[16384] __attribute__((aligned(16384)));

static long faults_so_far(void)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return ru.ru_minflt + ru.ru_majflt;
}

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

/*
 * The clock is read around each fault, and the median of all faults taken: a
 * timer interrupt falls into few of them, and would move a mean. Two readings
 * of the clock with nothing between them cost the same each time; that much is
 * taken off.
 */
static __attribute__((noinline))
long timed(unsigned char *at, long pages, int write, double *ns)
{
	volatile unsigned char *p = at;
	static double cost[MAX_PAGES];
	long i, size = page_size(), faults;
	uint64_t start;
	double idle;

	for (i = 0; i < pages; i++) {
		start = now_ns();
		cost[i] = (double)(now_ns() - start);
	}
	idle = median(cost, pages);

	faults = faults_so_far();
	for (i = 0; i < pages; i++) {
		start = now_ns();
		if (write)
			p[i * size] = (unsigned char)(i | 1);
		else
			(void)p[i * size];
		cost[i] = (double)(now_ns() - start);
	}
	faults = faults_so_far() - faults;
	*ns = median(cost, pages) - idle;
	return faults;
}

static void measure(struct side *s, enum phase which)
{
	double ns = 0;
	long faults;

	/* A fork made stack and data shared, too: get their faults over. */
	timed(spare, 1, 1, &ns);
	timed(spare, 1, 0, &ns);
	faults = timed(s->at, s->pages, which != READ_CACHED, &ns);
	if (faults != s->pages)
		die("%s: %ld faults on %ld pages", phase_name[which], faults,
		    s->pages);
	s->shared->ns[which][s->shared->round] = ns;
	s->shared->faults[which] = faults;
}

static void anon_child(int fd, void *arg)
{
	step_take(fd);
	measure(arg, REUSE_ANON);
	step_give(fd);
}

static void round_anon(struct side *s)
{
	struct bench_child c;

	s->at = map_private(s->pages);
	if (madvise(s->at, (size_t)(s->pages * page_size()), MADV_NOHUGEPAGE))
		printf("# no MADV_NOHUGEPAGE: this kernel has no huge pages\n");
	pages_fill(s->at, s->pages);
	bench_spawn(&c, anon_child, s);
	measure(s, COPY_ANON);
	step_give(c.fd);
	step_take(c.fd);
	bench_join(&c, "last sharer");
	munmap(s->at, (size_t)(s->pages * page_size()));
}

/* Hold one more reference on every page, as a program that sends them. */
static void pages_to_pipe(int fd[2], unsigned char *at, long pages)
{
	struct iovec iov = { at, (size_t)(pages * page_size()) };
	ssize_t n;

	if (pipe2(fd, O_CLOEXEC))
		die("cannot make a pipe: %s", strerror(errno));
	if (fcntl(fd[1], F_SETPIPE_SZ, (int)iov.iov_len) < 0)
		die("no pipe of %zu bytes (%s): run as root, or give fewer --pages",
		    iov.iov_len, strerror(errno));
	while (iov.iov_len) {
		n = vmsplice(fd[1], &iov, 1, SPLICE_F_NONBLOCK);
		if (n <= 0)
			die("vmsplice: %s", strerror(errno));
		iov.iov_base = (char *)iov.iov_base + n;
		iov.iov_len -= (size_t)n;
	}
}

static void cached_child(int fd, void *arg)
{
	struct side *s = arg;
	int hold[2];

	step_take(fd);
	pages_read(s->at, s->pages);
	step_give(fd);
	step_take(fd);
	if (s->piped) {
		pages_to_pipe(hold, s->at, s->pages);
		measure(s, COPY_IDLE);
		close(hold[0]);
		close(hold[1]);
		s->shared->left = swap_cached_pages();
	} else {
		measure(s, REUSE_CACHED);
	}
	step_give(fd);
}

static void round_cached(struct side *s, int piped)
{
	size_t len = (size_t)(s->pages * page_size());
	struct bench_child c;
	long before, cached;

	s->piped = piped;
	s->at = map_private(s->pages);
	madvise(s->at, len, MADV_NOHUGEPAGE);
	pages_fill(s->at, s->pages);
	before = swap_cached_pages();
	pages_out(s->at, s->pages);
	if (pages_swapped(s->at, s->pages) != s->pages)
		die("not every page went to swap: give more memory or swap");

	/* Both sides map the pages from the swap cache. */
	bench_spawn(&c, cached_child, s);
	measure(s, READ_CACHED);
	step_give(c.fd);
	step_take(c.fd);
	cached = swap_cached_pages() - before;
	if (cached < s->pages - s->pages / 100)
		die("only %ld of %ld pages stay in the swap cache: give more memory",
		    cached, s->pages);
	s->shared->cached = cached;

	measure(s, COPY_CACHED);
	step_give(c.fd);
	step_take(c.fd);
	if (piped)
		s->shared->left -= before;
	bench_join(&c, "last sharer");
	munmap(s->at, len);
}

static void report(struct shared *sh, enum phase which, int rounds)
{
	double *ns = sh->ns[which];
	int i;

	printf("# %s:", phase_name[which]);
	for (i = 0; i < rounds; i++)
		printf(" %.1f", ns[i]);
	printf(" ns/fault; %ld faults\n", sh->faults[which]);
	sample(phase_name[which], "ns/fault", "less", median(ns, rounds));
}

static void help(void)
{
	puts("usage: cowfault [--pages N] [--rounds N] [--swap DEVICE] [--no-swap]\n"
	     "\n"
	     "Cost of a write fault on a page shared by fork, in and out of the swap cache.\n"
	     "\n"
	     "  --pages N      pages written in a round (4096)\n"
	     "  --rounds N     rounds of each kind; the median is given (5)\n"
	     "  --swap DEVICE  FORMAT this block device, and swap on it meanwhile\n"
	     "  --no-swap      leave out what needs swap\n"
	     "\n"
	     "Exit status: 0 done, 1 failed (a count of faults is wrong), 2 wrong usage.");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pages",	required_argument,	NULL, 'p' },
		{ "rounds",	required_argument,	NULL, 'r' },
		{ "swap",	required_argument,	NULL, 's' },
		{ "no-swap",	no_argument,		NULL, 'n' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	const char *swap = NULL;
	long pages = 4096;
	int rounds = 5, no_swap = 0, i;
	struct side s = { };
	enum phase which;

	bench_init("cowfault");
	while ((i = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (i) {
		case 'p':
			pages = bench_number("--pages", optarg, 1, MAX_PAGES);
			break;
		case 'r':
			rounds = (int)bench_number("--rounds", optarg, 1,
						   ROUNDS);
			break;
		case 's':
			swap = optarg;
			break;
		case 'n':
			no_swap = 1;
			break;
		case 'h':
			help();
			return 0;
		default:
			bench_bad_option(argv);
		}
	}
	bench_no_more_args(argc, argv);
	if (no_swap && swap)
		die_usage("--no-swap and --swap exclude each other: give one");
	if (!no_swap)
		swap_need(swap, pages);

	pin_cpu(0);
	s.pages = pages;
	s.shared = map_shared(sizeof(*s.shared));
	for (i = 0; i < rounds; i++) {
		s.shared->round = i;
		round_anon(&s);
		if (no_swap)
			continue;
		round_cached(&s, 0);
		round_cached(&s, 1);
	}
	for (which = 0; which < PHASES; which++)
		if (!no_swap || which <= REUSE_ANON)
			report(s.shared, which, rounds);
	sample("faults counted in each", "faults", "none",
	       (double)s.shared->faults[COPY_ANON]);
	if (!no_swap) {
		sample("shared, in swap cache", "pages", "none",
		       (double)s.shared->cached);
		sample("left in swap cache after the last copy", "pages",
		       "less", (double)(s.shared->left > 0 ?
					s.shared->left : 0));
	}
	bench_exit(0);
}
