/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Threads that allocate a chunk, copy one of the chunks there are into it,
 * search it and free it, over and over, as ebizzy does. The allocator gives
 * each freed chunk back to the kernel at once.
 *
 * One program for each allocator includes this.
 */
#ifndef LFALLOC_H
#define LFALLOC_H

#include "bench.h"
#include <pthread.h>

#define WORDS		(512 * 1024 / 8)	/* of a chunk */
#define CHUNKS		16
#define THREADS		32
#define WARM		2			/* records before the clock */
#define SETTINGS	8

enum advice {
	DONTNEED,
	FREE,
	NEVER,			/* one chunk for all records, never freed */
	ADVICES,
};

static const char * const advice_name[ADVICES] = {
	[DONTNEED] = "DONTNEED", [FREE] = "FREE",
	[NEVER] = "without malloc and free",
};

static const char * const advice_word[ADVICES] = {
	[DONTNEED] = "dontneed", [FREE] = "free", [NEVER] = "never",
};

struct allocator {
	const char *name;
	/* Environment that makes it give this advice at once. */
	const char *env[ADVICES][SETTINGS];
	/* What the environment cannot do, before there are threads. */
	void (*prepare)(enum advice advice);
};

static struct settings {
	long threads, records, seconds;
	int touch;
} set = {
	.threads = 1,
	.seconds = 2,
};

static struct worker {
	pthread_t thread;
	long nr, records, faults;
	uint64_t start, end;
} __attribute__((aligned(64))) workers[THREADS];

static uint64_t *chunk[CHUNKS];
static pthread_barrier_t all_ready;
static volatile int stop;
static enum advice advised;

struct line {
	uint64_t word[16];
};

/* By 16 byte registers, and not the copy of the C library: see README.md. */
static void copy_chunk(uint64_t *dst, const uint64_t *src)
{
	const struct line *from = (const struct line *)src;
	struct line *to = (struct line *)dst;
	const struct line *end = to + WORDS / 16;

	while (to < end) {
		*to++ = *from++;
		/* Or else the compiler calls memcpy() for all of it. */
		__asm__ volatile("" : : : "memory");
	}
}

/* Words go up by one, so that each chunk can be told from the others. */
static long find(const uint64_t *at, uint64_t key)
{
	long from = 0, to = WORDS, mid;

	while (from < to) {
		mid = from + (to - from) / 2;
		if (at[mid] < key)
			from = mid + 1;
		else
			to = mid;
	}
	return from < WORDS && at[from] == key ? from : -1;
}

static void one_record(uint64_t *state, uint64_t *copy)
{
	long which = (long)(xorshift(state) % CHUNKS);
	long at = (long)(xorshift(state) % WORDS);
	long words = page_size() / 8, i;

	if (advised != NEVER)
		copy = malloc(WORDS * sizeof(*copy));
	if (!copy)
		die("no memory for a chunk");
	if (set.touch) {
		for (i = 0; i < WORDS; i += words)
			*(volatile uint64_t *)(copy + i) = (uint64_t)i;
	} else {
		copy_chunk(copy, chunk[which]);
		if (find(copy, chunk[which][at]) != at)
			die("word %ld of chunk %ld is not in its copy", at,
			    which);
	}
	if (advised != NEVER)
		free(copy);
}

static long thread_faults(void)
{
	struct rusage ru;

	getrusage(RUSAGE_THREAD, &ru);
	return ru.ru_minflt + ru.ru_majflt;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t state = 88172645463325252ull + (uint64_t)w->nr, *copy;
	char *small;
	long i;

	/* Threads mostly have more than the chunk; so has this one. */
	small = malloc(64);
	copy = malloc(WORDS * sizeof(*copy));
	if (!small || !copy)
		die("no memory for a thread");
	small[0] = 0;
	for (i = 0; i < WORDS; i++)
		copy[i] = 1;
	if (advised != NEVER)
		free(copy);
	for (i = 0; i < WARM; i++)
		one_record(&state, copy);
	pthread_barrier_wait(&all_ready);
	w->faults = thread_faults();
	w->start = now_ns();
	while (set.records ? w->records < set.records : !stop) {
		one_record(&state, copy);
		w->records++;
	}
	w->end = now_ns();
	w->faults = thread_faults() - w->faults;
	if (advised == NEVER)
		free(copy);
	free(small);
	return NULL;
}

/* In the process that was started for it. */
static void measure(const struct allocator *a)
{
	uint64_t start = UINT64_MAX, end = 0;
	long i, j, records = 0, faults = 0;
	long long lazy;

	if (a->prepare)
		a->prepare(advised);
	for (i = 0; i < CHUNKS; i++) {
		chunk[i] = malloc(WORDS * sizeof(**chunk));
		if (!chunk[i])
			die("no memory for %d chunks", CHUNKS);
		for (j = 0; j < WORDS; j++)
			chunk[i][j] = (uint64_t)(i * WORDS + j);
	}
	stat_refresh();
	lazy = vmstat("pglazyfree");
	pthread_barrier_init(&all_ready, NULL, (unsigned int)set.threads + 1);
	for (i = 0; i < set.threads; i++) {
		workers[i].nr = i;
		if (pthread_create(&workers[i].thread, NULL, work,
				   &workers[i]))
			die("cannot start thread %ld", i);
	}
	pthread_barrier_wait(&all_ready);
	if (!set.records)
		sleep_ms(set.seconds * 1000);
	stop = 1;
	for (i = 0; i < set.threads; i++) {
		pthread_join(workers[i].thread, NULL);
		records += workers[i].records;
		faults += workers[i].faults;
		if (workers[i].start < start)
			start = workers[i].start;
		if (workers[i].end > end)
			end = workers[i].end;
	}
	stat_refresh();
	lazy = vmstat("pglazyfree") - lazy;
	printf("%ld %llu %ld %lld\n", records,
	       (unsigned long long)(end - start), faults, lazy);
}

/* The allocator reads its environment at the start of a program. */
static double measured(const struct allocator *a, enum advice advice)
{
	char threads[32], length[32], buf[128];
	unsigned long long ns;
	long records, faults, pages;
	size_t got = 0;
	long long lazy;
	double rate;
	ssize_t n;
	pid_t pid;
	int fd[2], i;

	if (pipe2(fd, O_CLOEXEC))
		die("cannot make a pipe: %s", strerror(errno));
	pid = bench_fork();
	if (!pid) {
		snprintf(threads, sizeof(threads), "--threads=%ld",
			 set.threads);
		snprintf(length, sizeof(length), "--%s=%ld",
			 set.records ? "records" : "seconds",
			 set.records ? set.records : set.seconds);
		for (i = 0; i < SETTINGS && a->env[advice][i]; i++)
			putenv((char *)a->env[advice][i]);
		dup2(fd[1], 1);
		execl("/proc/self/exe", bench.name, "--only",
		      advice_word[advice], threads, length,
		      set.touch ? "--touch" : NULL, NULL);
		_exit(1);
	}
	close(fd[1]);
	while ((n = read(fd[0], buf + got, sizeof(buf) - 1 - got)) > 0 ||
	       (n < 0 && errno == EINTR))
		got += n > 0 ? (size_t)n : 0;
	buf[got] = '\0';
	close(fd[0]);
	bench_reap(pid, advice_name[advice]);
	if (sscanf(buf, "%ld %llu %ld %lld", &records, &ns, &faults,
		   &lazy) != 4 ||
	    !records || !ns)
		die("%s: no record was done: give more --seconds",
		    advice_name[advice]);
	rate = (double)records * 1e9 / (double)ns;
	printf("# %s: %ld records, %llu ns, %ld faults; %lld pages came to be lazily free\n",
	       advice_name[advice], records, ns, faults, lazy);

	/*
	 * Did the allocator do as it was told? A page counts as lazily free
	 * once, and not again when it has been written and freed again.
	 */
	pages = WORDS * 8 / page_size();
	if (advice == DONTNEED && faults < records * pages / 2)
		die("%s did not use MADV_DONTNEED: %ld faults in %ld records",
		    a->name, faults, records);
	if (advice == FREE && (faults > records * pages / 10 ||
			       lazy < pages / 2))
		die("%s did not use MADV_FREE: %ld faults in %ld records, %lld pages lazily free",
		    a->name, faults, records, lazy);
	return rate;
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

static void help(const struct allocator *a)
{
	printf("usage: lfalloc-%s [OPTION]...\n"
	       "\n"
	       "Threads that allocate 512 kB, copy into it, search it, free it, where %s\n"
	       "gives it back at once: with MADV_DONTNEED, then with MADV_FREE.\n"
	       "\n"
	       "  --threads N  threads (1)\n"
	       "  --seconds N  how long (2)\n"
	       "  --records N  in place of a time: records of each thread\n"
	       "  --touch      write one word of each page, in place of copy and search\n"
	       "  --only WHAT  dontneed, free or never: only that, as the environment tells the\n"
	       "               allocator; prints records, ns, faults, pages lazily freed\n"
	       "\n"
	       "Where the kernel has no MADV_FREE, its figures are left out.\n"
	       "Exit status: 0 done, 1 failed, 2 wrong usage.\n",
	       a->name, a->name);
}

static void put(const struct allocator *a, const char *metric,
		const char *unit, const char *better, double value)
{
	char name[128];

	snprintf(name, sizeof(name), "%s, %ld thread%s: %s", a->name,
		 set.threads, set.threads == 1 ? "" : "s", metric);
	sample(name, unit, better, value);
}

static int alloc_main(int argc, char **argv, const struct allocator *a,
		      const char *version)
{
	static const struct option options[] = {
		{ "threads",	required_argument,	NULL, 't' },
		{ "seconds",	required_argument,	NULL, 's' },
		{ "records",	required_argument,	NULL, 'r' },
		{ "touch",	no_argument,		NULL, 'T' },
		{ "only",	required_argument,	NULL, 'o' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	const char *only = NULL;
	double rate[ADVICES];
	char name[32];
	int opt, i;

	snprintf(name, sizeof(name), "lfalloc-%s", a->name);
	bench_init(name);
	while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (opt) {
		case 't':
			set.threads = bench_number("--threads", optarg, 1,
						   THREADS);
			break;
		case 's':
			set.seconds = bench_number("--seconds", optarg, 1,
						   3600);
			break;
		case 'r':
			set.records = bench_number("--records", optarg, 1,
						   1 << 30);
			break;
		case 'T':
			set.touch = 1;
			break;
		case 'o':
			only = optarg;
			break;
		case 'h':
			help(a);
			return 0;
		default:
			bench_bad_option(argv);
		}
	}
	bench_no_more_args(argc, argv);
	if (only) {
		for (i = 0; i < ADVICES && strcmp(only, advice_word[i]); i++)
			;
		if (i == ADVICES)
			die_usage("--only is '%s', give dontneed, free or never",
				  only);
		advised = (enum advice)i;
		measure(a);
		bench_exit(0);
	}

	printf("# %s %s\n", a->name, version);
	/* Without the allocator's part: no kernel can do more than that. */
	rate[NEVER] = set.threads == 1 ? measured(a, NEVER) : 0;
	rate[DONTNEED] = measured(a, DONTNEED);
	put(a, "DONTNEED", "records/s", "more", rate[DONTNEED]);
	if (free_is_known()) {
		rate[FREE] = measured(a, FREE);
		put(a, "FREE", "records/s", "more", rate[FREE]);
		put(a, "FREE / DONTNEED", "ratio", "more",
		    rate[FREE] / rate[DONTNEED]);
	} else {
		printf("# this kernel has no MADV_FREE\n");
	}
	if (rate[NEVER] > 0) {
		put(a, "without malloc and free", "records/s", "none",
		    rate[NEVER]);
		put(a, "the most that can be had / DONTNEED", "ratio", "none",
		    rate[NEVER] / rate[DONTNEED]);
	}
	bench_exit(0);
	return 0;
}

#endif /* LFALLOC_H */
