// SPDX-License-Identifier: GPL-2.0
/*
 * cowmix: random reads and writes on more memory than there is, by a store
 * that forks workers now and then, as a store that takes snapshots.
 */
#include "bench.h"

#define WORKERS		16
#define CHUNK		512	/* pages that --renew drops at a time */

struct settings {
	long seconds, size, workers, life, writes, hot, thp, renew, seed;
	int together;
	long pages;
};

/* Each process counts in a line of its own. */
struct line {
	volatile long ops;
	volatile int done;
} __attribute__((aligned(64)));

static struct shared {
	struct line store, worker[WORKERS];
	volatile int stop;
	volatile long forks, renewed;
	/* --together: how many have come to, and left for, a step. */
	long arrived __attribute__((aligned(64)));
} *shared;

static struct settings set = {
	.seconds = 8, .size = 150, .workers = 2, .life = 2000, .writes = 30,
	.hot = 50, .seed = 1,
};

static unsigned char *mem;
static uint64_t rng;

/* One operation: a word of some page is read or written. */
static void operate(struct line *line)
{
	uint64_t r = xorshift(&rng);
	uint64_t kind = xorshift(&rng);
	unsigned long page = (unsigned long)set.pages;
	volatile uint64_t *p;

	/* So much of the operations goes to the first fifth of the pages. */
	if (kind % 100 < (uint64_t)set.hot)
		page /= 5;
	page = (unsigned long)(r >> 8) % page;
	p = (volatile uint64_t *)(mem + page * (unsigned long)page_size() +
				  (r & 63) * 64);
	if (kind / 100 % 100 < (uint64_t)set.writes)
		*p = r | 1;
	else
		(void)*p;
	line->ops++;
}

/*
 * All sharers go through the same operations, and start each at the same
 * time. Only whole lives are gone through, so nobody waits for the gone.
 */
static void live_together(struct line *line, pid_t *pids)
{
	long all = set.workers + 1, step, i, spins;
	int status = 0;

	for (step = 1; step <= set.life; step++) {
		__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_SEQ_CST);
		for (spins = 1; __atomic_load_n(&shared->arrived,
						__ATOMIC_SEQ_CST) <
		     step * all; spins++) {
			if (spins % 64 == 0)
				sched_yield();
			if (!pids || spins % 65536)
				continue;
			for (i = 0; i < set.workers; i++)
				if (waitpid(pids[i], &status, WNOHANG) &&
				    status)
					die("a worker died early (out of memory?)");
		}
		operate(line);
	}
}

static void worker(struct line *line)
{
	long i;

	if (set.together) {
		live_together(line, NULL);
	} else {
		for (i = 0; i < set.life && !shared->stop; i++)
			operate(line);
	}
	line->done = 1;
	_exit(0);
}

static pid_t start_worker(long i)
{
	pid_t pid;

	shared->worker[i].done = 0;
	shared->forks++;
	pid = bench_fork();
	if (!pid) {
		/* The store goes on with its numbers, the worker does not. */
		if (!set.together)
			rng ^= 0x9e3779b97f4a7c15ull *
			       (uint64_t)shared->forks;
		worker(&shared->worker[i]);
	}
	return pid;
}

/* What a store does that frees blocks and allocates new ones. */
static void renew(void)
{
	unsigned long chunks = (unsigned long)set.pages / CHUNK;
	size_t size = (size_t)page_size() * CHUNK;
	unsigned char *at;

	if (!chunks)
		return;
	at = mem + xorshift(&rng) % chunks * size;
	if (madvise(at, size, MADV_DONTNEED))
		die("MADV_DONTNEED: %s", strerror(errno));
	pages_fill(at, CHUNK);
	shared->renewed++;
}

static void store(int fd, void *arg)
{
	pid_t pids[WORKERS] = { };
	long i;

	(void)arg;
	/* Should memory run out, the store goes, not the one that counts. */
	file_write("/proc/self/oom_score_adj", "500");
	mem = map_private(set.pages);
	if (madvise(mem, (size_t)(set.pages * page_size()),
		    set.thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		printf("# no huge pages in this kernel\n");
	pages_fill(mem, set.pages);
	rng = (uint64_t)set.seed * 0x2545f4914f6cdd1dull;
	step_give(fd);
	step_take(fd);

	while (!shared->stop) {
		if (set.together) {
			shared->arrived = 0;
			for (i = 0; i < set.workers; i++)
				pids[i] = start_worker(i);
			live_together(&shared->store, pids);
			for (i = 0; i < set.workers; i++)
				bench_reap(pids[i], "worker");
			if (set.renew)
				renew();
			continue;
		}
		for (i = 0; i < set.workers; i++) {
			if (pids[i] && !shared->worker[i].done)
				continue;
			if (pids[i])
				bench_reap(pids[i], "worker");
			pids[i] = start_worker(i);
		}
		/* So the workers' lives overlap, and do not end at once. */
		for (i = 0; i < 64 && !shared->stop; i++) {
			operate(&shared->store);
			if (set.renew && shared->store.ops % set.renew == 0)
				renew();
		}
	}
	for (i = 0; i < set.workers && !set.together; i++)
		if (pids[i])
			bench_reap(pids[i], "worker");
	step_give(fd);
	step_take(fd);
}

/* Have large folios of the wanted size, and of no other. */
static void thp_setup(void)
{
	static const char dir[] = "/sys/kernel/mm/transparent_hugepage";
	char path[128];

	if (!set.thp)
		return;
	snprintf(path, sizeof(path), "%s/hugepages-%ldkB/enabled", dir,
		 set.thp);
	if (knob_set(path, "madvise"))
		die_usage("no huge pages of %ld kB (or not root): see %s",
			  set.thp, dir);
	snprintf(path, sizeof(path), "%s/hugepages-2048kB/enabled", dir);
	if (set.thp != 2048 && knob_set(path, "never"))
		printf("# %s stays as it is\n", path);
}

static long long thp_swapped(void)
{
	char path[128], buf[64];

	if (!set.thp)
		return 0;
	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/transparent_hugepage/hugepages-%ldkB/stats/swpout",
		 set.thp);
	if (file_read(path, buf, sizeof(buf)) <= 0)
		return 0;
	return strtoll(buf, NULL, 10);
}

static void help(void)
{
	puts("usage: cowmix [OPTION]...\n"
	     "\n"
	     "Random reads and writes on more memory than there is, by a store and by workers\n"
	     "that it forks, each for a number of operations.\n"
	     "\n"
	     "  --seconds N    how long, after memory has been filled (8)\n"
	     "  --size N       memory of the store, in percent of MemTotal (150)\n"
	     "  --workers N    workers alive at a time (2)\n"
	     "  --life N       operations of a worker (2000)\n"
	     "  --writes N     percent of the operations that write (30)\n"
	     "  --hot N        percent of the operations that go to the first fifth (50)\n"
	     "  --thp KB       memory comes in large folios of this size; 0: base pages (0)\n"
	     "  --renew N      every N operations (--together: every life) the store frees\n"
	     "                 and refills 512 pages; 0: never (0)\n"
	     "  --together     store and workers do the same operations at the same time\n"
	     "  --seed N       seed of the random numbers (1)\n"
	     "  --swap DEVICE  FORMAT this block device, and swap on it meanwhile\n"
	     "\n"
	     "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

static void per_thousand(const char *metric, const char *better, long long n,
			 long ops)
{
	sample(metric, "pages/1000 ops", better,
	       1000.0 * (double)n / (double)ops);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seconds",	required_argument,	NULL, 't' },
		{ "size",	required_argument,	NULL, 'm' },
		{ "workers",	required_argument,	NULL, 'w' },
		{ "life",	required_argument,	NULL, 'l' },
		{ "writes",	required_argument,	NULL, 'W' },
		{ "hot",	required_argument,	NULL, 'H' },
		{ "thp",	required_argument,	NULL, 'T' },
		{ "renew",	required_argument,	NULL, 'R' },
		{ "together",	no_argument,		NULL, 'g' },
		{ "seed",	required_argument,	NULL, 'S' },
		{ "swap",	required_argument,	NULL, 's' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	long cached, used, ops, samples = 0, i;
	double cached_sum = 0, used_sum = 0;
	const char *swap = NULL;
	struct reclaim_stat st;
	struct bench_child c;
	long long whole;
	uint64_t end;
	int opt;

	bench_init("cowmix");
	while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (opt) {
		case 't':
			set.seconds = bench_number("--seconds", optarg, 1,
						   3600);
			break;
		case 'm':
			set.size = bench_number("--size", optarg, 1, 1000);
			break;
		case 'w':
			set.workers = bench_number("--workers", optarg, 0,
						   WORKERS);
			break;
		case 'l':
			set.life = bench_number("--life", optarg, 1, 1 << 30);
			break;
		case 'W':
			set.writes = bench_number("--writes", optarg, 0, 100);
			break;
		case 'H':
			set.hot = bench_number("--hot", optarg, 0, 100);
			break;
		case 'T':
			set.thp = bench_number("--thp", optarg, 0, 2048);
			break;
		case 'R':
			set.renew = bench_number("--renew", optarg, 0,
						 1 << 30);
			break;
		case 'g':
			set.together = 1;
			break;
		case 'S':
			set.seed = bench_number("--seed", optarg, 1, 1 << 30);
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
	set.pages = meminfo_pages("MemTotal") * set.size / 100 / CHUNK * CHUNK;
	if (set.pages < CHUNK)
		die_usage("--size %ld comes to less than %d pages: give more",
			  set.size, CHUNK);
	swap_need(swap, set.pages);
	thp_setup();
	shared = map_shared(sizeof(*shared));
	printf("# store of %ld pages, MemTotal %ld pages, swap %ld pages\n",
	       set.pages, meminfo_pages("MemTotal"),
	       meminfo_pages("SwapTotal"));

	cached = swap_cached_pages();
	used = swap_used_pages();
	whole = thp_swapped();
	bench_spawn(&c, store, NULL);
	step_take(c.fd);
	printf("# filled: SwapCached %ld, used %ld\n", swap_cached_pages(),
	       swap_used_pages());

	reclaim_read(&st);
	end = st.ns + (uint64_t)set.seconds * 1000000000ull;
	step_give(c.fd);
	while (now_ns() < end) {
		sleep_ms(250);
		cached_sum += (double)swap_cached_pages();
		used_sum += (double)swap_used_pages();
		samples++;
	}
	shared->stop = 1;
	step_take(c.fd);
	reclaim_since(&st);
	ops = shared->store.ops;
	for (i = 0; i < WORKERS; i++)
		ops += shared->worker[i].ops;
	if (!ops)
		die("not one operation was done: give more --seconds");
	whole = thp_swapped() - whole;

	/* All that the store has is given back with it. */
	step_give(c.fd);
	bench_join(&c, "store");
	wait_writeback();

	printf("# %ld operations of the store, %ld workers, %ld times renewed\n",
	       shared->store.ops, shared->forks, shared->renewed);
	sample("operations", "ops", "more", (double)ops);
	sample("operations per second", "ops/s", "more",
	       (double)ops * 1e9 / (double)st.ns);
	per_thousand("swapped in", "less", st.in, ops);
	per_thousand("swapped out", "less", st.out, ops);
	per_thousand("major faults", "none", st.major, ops);
	sample("swap cache, average", "pages", "less",
	       cached_sum / (double)samples);
	sample("swap slots used, average", "pages", "less",
	       used_sum / (double)samples);
	per_thousand("scanned by reclaim", "less", st.scan, ops);
	if (st.steal)
		sample("scanned per page freed", "pages", "less",
		       (double)st.scan / (double)st.steal);
	cached = swap_cached_pages() - cached;
	used = swap_used_pages() - used;
	sample("swap cache left after exit", "pages", "less",
	       (double)(cached > 0 ? cached : 0));
	sample("swap slots left after exit", "pages", "less",
	       (double)(used > 0 ? used : 0));
	if (set.thp)
		sample("large folios swapped out whole", "folios", "none",
		       (double)whole);
	bench_exit(0);
}
