// SPDX-License-Identifier: GPL-2.0
/*
 * swapoffbench: how long swapoff takes, what it reads for that, and what it
 * costs, beside a plain read of the same bytes of the device.
 */
#include "bench.h"

#include <poll.h>

#define SIZES		8
#define GATES		3
#define REQUEST		(1ul << 20)
#define ZRAM		"/sys/block/zram0/"
#define TRACING		"/sys/kernel/tracing/"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC	1U
#endif

static struct settings {
	const char *dev;
	long mb[SIZES], processes[SIZES];
	int sizes, counts;
	long sharers, rounds, limit;
	int shuffled, tmpfs, zram, bystander, tables;
} set = {
	.mb = { 60 },
	.processes = { 1 },
	.sizes = 1,
	.counts = 1,
	.sharers = 1,
	.rounds = 1,
	.limit = 30,
};

/* When a bystander's stalls are looked for. */
enum phase { NEVER, READING, SWAPOFF, PHASES };

/* What the processes tell, and one count of arrivals for each gate. */
static struct board {
	long arrived[GATES];
	long wrong;
	int phase;
	uint64_t stall[PHASES];		/* the longest, in ns */
} *board;

/* The slots that anonymous memory has, a byte for each. */
static struct {
	unsigned char *used;
	unsigned long nr;
} slots;

/* A gate opens when its writing end is closed: all who read go on. */
static int gate[GATES][2];

static void arrive(int at)
{
	char c;

	__atomic_add_fetch(&board->arrived[at], 1, __ATOMIC_SEQ_CST);
	while (read(gate[at][0], &c, 1) < 0 && errno == EINTR)
		;
}

/*
 * Until the gate opens: map a page, write to it, unmap it. That needs the lock
 * of the address space whose pages come back meanwhile.
 */
static void stand_by(int at)
{
	struct pollfd open = { .fd = gate[at][0] };
	unsigned char *page;
	uint64_t took;
	int phase;

	__atomic_add_fetch(&board->arrived[at], 1, __ATOMIC_SEQ_CST);
	while (!poll(&open, 1, 1)) {
		phase = __atomic_load_n(&board->phase, __ATOMIC_SEQ_CST);
		took = now_ns();
		page = map_private(1);
		pages_fill(page, 1);
		munmap(page, (size_t)page_size());
		took = now_ns() - took;
		if (took > board->stall[phase])
			board->stall[phase] = took;
	}
}

static void wait_for(int at, long all)
{
	long waited;

	for (waited = 0; waited < 120000; waited++) {
		if (__atomic_load_n(&board->arrived[at], __ATOMIC_SEQ_CST) >= all)
			return;
		sleep_ms(1);
	}
	die("%ld of %ld processes get ready: is there memory enough?",
	    board->arrived[at], all);
}

static void open_gate(int at)
{
	close(gate[at][1]);
	gate[at][1] = -1;
}

/* One of 256 words after another: for a compressor, much like a heap. */
static void fill_page(unsigned char *at, uint64_t tag)
{
	uint64_t state = tag * 0x9e3779b97f4a7c15ull | 1;
	long i, words = page_size() / 8;

	*(volatile uint64_t *)at = tag;
	for (i = 1; i < words; i++)
		((volatile uint64_t *)at)[i] =
			((xorshift(&state) & 255) + 1) * 0x2545f4914f6cdd1dull;
}

static long count_wrong(unsigned char *at, long pages, uint64_t tag)
{
	long i, wrong = 0;

	for (i = 0; i < pages; i++)
		if (*(volatile uint64_t *)(at + i * page_size()) !=
		    tag + (uint64_t)i)
			wrong++;
	return wrong;
}

/*
 * Pages go to swap in the order in which they were first written to, which
 * makes it the order of their slots.
 */
static void fill(unsigned char *at, long pages, uint64_t tag)
{
	long *order = malloc((size_t)pages * sizeof(*order)), i, j, tmp;
	uint64_t state = tag + 1;

	if (!order)
		die("out of memory");
	for (i = 0; i < pages; i++)
		order[i] = i;
	for (i = pages - 1; set.shuffled && i > 0; i--) {
		j = (long)(xorshift(&state) % (uint64_t)(i + 1));
		tmp = order[i];
		order[i] = order[j];
		order[j] = tmp;
	}
	for (i = 0; i < pages; i++)
		fill_page(at + order[i] * page_size(), tag + (uint64_t)order[i]);
	free(order);
}

static unsigned char *map_file(long pages)
{
	size_t len = (size_t)(pages * page_size());
	int fd = memfd_create("swapoffbench", MFD_CLOEXEC);
	void *p;

	if (fd < 0 || ftruncate(fd, (off_t)len))
		die("memfd_create: %s", strerror(errno));
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		die("cannot map a file: %s", strerror(errno));
	close(fd);
	return p;
}

/* Fork; the child dies with its parent. */
static pid_t fork_member(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		die("cannot fork: %s", strerror(errno));
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

/* Tell what slots the pages have: zram does not use them from front to back. */
static void tell_slots(unsigned char *at, long pages)
{
	uint64_t *place = malloc((size_t)pages * sizeof(*place));
	unsigned long slot;
	long i;

	if (!place)
		die("out of memory");
	pages_place(at, place, pages);
	for (i = 0; i < pages; i++) {
		/* Documentation/admin-guide/mm/pagemap.rst: type, offset */
		slot = place_swapped(place[i]) ?
		       (place[i] & ~PLACE_SWAPPED) >> 5 : 0;
		if (slot && slot < slots.nr)
			slots.used[slot] = 1;
	}
	free(place);
}

static void member(long who, long pages)
{
	uint64_t tag = ((uint64_t)who + 1) << 32;
	unsigned char *at = set.tmpfs ? map_file(pages) : map_private(pages);
	long i, wrong;

	madvise(at, (size_t)(pages * page_size()), MADV_NOHUGEPAGE);
	fill(at, pages, tag);
	arrive(0);
	if (!set.tmpfs)
		tell_slots(at, pages);
	for (i = 1; i < set.sharers; i++)
		if (!fork_member())
			break;
	if (set.bystander && !who && i == set.sharers)
		stand_by(1);
	else
		arrive(1);
	/* Swapoff is over: what has come back? */
	wrong = count_wrong(at, pages, tag);
	__atomic_add_fetch(&board->wrong, wrong, __ATOMIC_SEQ_CST);
	arrive(2);
	_exit(0);
}

struct job {
	long processes, pages;
};

/* The parent of all of them, so that the cgroup has them from the start. */
static void head(int fd, void *arg)
{
	const struct job *job = arg;
	char path[128];
	long i;

	for (i = 0; i < GATES; i++)
		close(gate[i][1]);
	snprintf(path, sizeof(path), "%s/cgroup.procs", bench.cgroup);
	if (file_write(path, "0"))
		die("cannot enter %s: %s", bench.cgroup, strerror(errno));
	for (i = 0; i < job->processes; i++)
		if (!fork_member())
			member(i, job->pages);
	step_give(fd);
	step_take(fd);
}

static long long group_stat(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/memory.stat", bench.cgroup);
	return stat_line(path, name);
}

/* Until nothing of it is in memory, nor in the swap cache. */
static void reclaim_all(long long bytes)
{
	long long in_memory = 0;
	char buf[32];
	int i;

	for (i = 0; i < 200; i++) {
		in_memory = group_stat("anon") + group_stat("shmem") +
			    group_stat("swapcached");
		if (in_memory < bytes / 100 + (1 << 18))
			return;
		snprintf(buf, sizeof(buf), "%lld", in_memory);
		cgroup_write("memory.reclaim", buf);
		wait_writeback();
	}
	die("%lld of %lld bytes stay in memory", in_memory, bytes);
}

static void disk_stat(long *reads, long *sectors)
{
	char path[128], buf[256], *at = buf;
	long n[3];
	int i;

	snprintf(path, sizeof(path), "/sys/block/%s/stat",
		 strrchr(bench.swap, '/') + 1);
	if (file_read(path, buf, sizeof(buf)) <= 0)
		die("cannot read %s: %s", path, strerror(errno));
	for (i = 0; i < 3; i++)
		n[i] = strtol(at, &at, 10);
	*reads = n[0];
	*sectors = n[2];
}

/*
 * Count how often a page table is mapped to be looked at, which is what all
 * kernels do with this function. The probe takes time, so this is done apart.
 */
static void probe_tables(void)
{
	static const char event[] = "swapoffbench/tables";
	char probe[64], off[64];

	snprintf(probe, sizeof(probe), "p:%s __pte_offset_map", event);
	snprintf(off, sizeof(off), "-:%s", event);
	if (undo_later(TRACING "kprobe_events", off) ||
	    file_write(TRACING "kprobe_events", probe) ||
	    knob_set(TRACING "events/swapoffbench/tables/enable", "1"))
		die_usage("no probe: the kernel needs CONFIG_KPROBE_EVENTS, and "
			  TRACING " mounted");
}

static long tables_mapped(void)
{
	char buf[4096], *at;

	if (!set.tables)
		return 0;
	if (file_read(TRACING "kprobe_profile", buf, sizeof(buf)) <= 0)
		die("cannot read " TRACING "kprobe_profile: %s",
		    strerror(errno));
	at = strstr(buf, "tables");
	return at ? strtol(at + strlen("tables"), NULL, 10) : 0;
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* What a piece of work has taken. */
struct cost {
	uint64_t ns, cpu;
	long reads, sectors, tables;
	long long in;
};

static void cost_start(struct cost *c)
{
	stat_refresh();
	c->in = vmstat("pswpin");
	disk_stat(&c->reads, &c->sectors);
	c->tables = tables_mapped();
	c->cpu = cpu_ns();
	c->ns = now_ns();
}

static void cost_end(struct cost *c)
{
	long reads, sectors;

	c->ns = now_ns() - c->ns;
	c->cpu = cpu_ns() - c->cpu;
	c->tables = tables_mapped() - c->tables;
	disk_stat(&reads, &sectors);
	c->reads = reads - c->reads;
	c->sectors = sectors - c->sectors;
	stat_refresh();
	c->in = vmstat("pswpin") - c->in;
}

/* The next piece to read after @from, REQUEST at most: 0 at the end. */
static size_t next_piece(unsigned long *from, long *rest)
{
	const unsigned long most = REQUEST / (unsigned long)page_size();
	unsigned long to;

	if (set.tmpfs) {
		/* Nobody tells, but a disk is used from front to back. */
		to = *rest < (long)most ? *from + (unsigned long)*rest :
					  *from + most;
	} else {
		while (*from < slots.nr && !slots.used[*from])
			++*from;
		for (to = *from; to < slots.nr && slots.used[to]; to++)
			if (to == *from + most)
				break;
	}
	*rest -= (long)(to - *from);
	return (to - *from) * (size_t)page_size();
}

/* What swap has on the device, from front to back. */
static void read_raw(struct cost *c, const long pages)
{
	int fd = open(bench.swap, O_RDONLY | O_DIRECT | O_CLOEXEC), round;
	unsigned long at;
	size_t len;
	void *buf;
	long rest;

	if (fd < 0)
		die("cannot read %s: %s", bench.swap, strerror(errno));
	buf = mmap(NULL, REQUEST, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf == MAP_FAILED)
		die("out of memory");
	memset(buf, 1, REQUEST);
	/* The second time counts: the first reads of a guest are slow. */
	for (round = 0; round < 2; round++) {
		at = 0;
		rest = pages;
		cost_start(c);
		while ((len = next_piece(&at, &rest)) != 0) {
			if (pread(fd, buf, len, (off_t)at * page_size()) !=
			    (ssize_t)len)
				die("cannot read %s at page %lu: %s",
				    bench.swap, at, strerror(errno));
			at += len / (size_t)page_size();
		}
		cost_end(c);
	}
	/*
	 * Nothing is waited for with zram, while the scheduler's account lacks
	 * some milliseconds where it wanted to switch in the middle of a request.
	 */
	if (set.zram)
		c->cpu = c->ns;
	if (rest < -pages / 100 || rest > pages / 100)
		die("the slots of %ld pages are not known", rest);
	munmap(buf, REQUEST);
	close(fd);
}

static void size_zram(long mb)
{
	char buf[32];

	if (file_write(ZRAM "reset", "1"))
		die_usage("no zram: the kernel needs CONFIG_ZRAM");
	snprintf(buf, sizeof(buf), "%ldM", mb);
	if (file_write(ZRAM "disksize", buf))
		die("zram: %s", strerror(errno));
}

static void run(long mb, long processes, struct cost *off, struct cost *raw,
		long *used)
{
	struct job job = {
		.processes = processes,
		.pages = mb * (1 << 20) / page_size() / processes,
	};
	long all = processes, i;
	struct bench_child c;

	if (set.zram)
		size_zram(2 * mb + 16);
	swap_need(set.dev, mb * (1 << 20) / page_size());
	memset(board, 0, sizeof(*board));
	slots.nr = (unsigned long)meminfo_pages("SwapTotal") + 1;
	slots.used = map_shared(slots.nr);
	for (i = 0; i < GATES; i++)
		if (pipe2(gate[i], O_CLOEXEC))
			die("pipe: %s", strerror(errno));
	bench_spawn(&c, head, &job);
	step_take(c.fd);
	wait_for(0, all);
	reclaim_all((long long)mb << 20);
	open_gate(0);
	all *= set.sharers;
	wait_for(1, all);
	/* Not what /proc/swaps says: slots in the CPUs' caches are in that */
	*used = job.pages * job.processes;

	/* Before: zram forgets what is in a slot when it is freed */
	board->phase = READING;
	read_raw(raw, *used);
	board->phase = SWAPOFF;
	cost_start(off);
	bench.swap_on = 0;
	if (swapoff(bench.swap))
		die("swapoff: %s", strerror(errno));
	cost_end(off);
	board->phase = NEVER;

	open_gate(1);
	wait_for(2, all);
	if (board->wrong)
		die("%ld pages came back wrong", board->wrong);
	open_gate(2);
	step_give(c.fd);
	bench_join(&c, "process with swapped memory");
	munmap(slots.used, slots.nr);
	for (i = 0; i < GATES; i++)
		close(gate[i][0]);
}

static void report(const char *label, const struct cost *off,
		   const struct cost *raw, long used)
{
	char name[96];
	double pages = (double)used;
	const struct {
		const char *metric, *unit, *better;
		double value;
	} samples[] = {
		{ "elapsed", "ms", "less", (double)off->ns / 1e6 },
		{ "elapsed / raw read", "ratio", "less",
		  (double)off->ns / (double)raw->ns },
		{ "block reads", "reads", "less", (double)off->reads },
		{ "read size", "KiB", "more", off->reads ?
		  (double)off->sectors / 2 / (double)off->reads : 0 },
		{ "swapped in per page", "ratio", "less",
		  (double)off->in / pages },
		{ "CPU time of swapoff", "ns/page", "less",
		  (double)off->cpu / pages },
		{ "CPU time / raw read", "ratio", "less",
		  (double)off->cpu / (double)raw->cpu },
		{ "pages", "pages", "none", pages },
		{ "raw read: elapsed", "ms", "none", (double)raw->ns / 1e6 },
		{ "raw read: block reads", "reads", "none",
		  (double)raw->reads },
		{ "raw read: CPU time", "ns/page", "none",
		  (double)raw->cpu / pages },
	};
	unsigned int i;

	if (set.tables) {
		snprintf(name, sizeof(name), "page tables visited%s", label);
		sample(name, "visits", "less", (double)off->tables);
		return;
	}
	for (i = 0; i < sizeof(samples) / sizeof(samples[0]); i++) {
		/* zram reads are not counted by all kernels */
		if (set.zram && (i == 2 || i == 3 || i == 9))
			continue;
		snprintf(name, sizeof(name), "%s%s", samples[i].metric, label);
		sample(name, samples[i].unit, samples[i].better,
		       samples[i].value);
	}
	if (set.bystander) {
		sample("longest stall of a bystander", "ms", "less",
		       (double)board->stall[SWAPOFF] / 1e6);
		sample("longest stall without swapoff", "ms", "none",
		       (double)board->stall[READING] / 1e6);
	}
}

static int list(const char *option, char *word, long *to, long max)
{
	char *part, *rest = word;
	int n = 0;

	while ((part = strsep(&rest, ",")) != NULL) {
		if (n == SIZES)
			die_usage("%s takes at most %d values", option, SIZES);
		to[n++] = bench_number(option, part, 1, max);
	}
	return n;
}

static void help(void)
{
	puts("usage: swapoffbench --swap DEVICE [OPTION]...\n"
	     "       swapoffbench --zram [OPTION]...\n"
	     "\n"
	     "Has processes fill memory, swaps it out, reads the same bytes of the device from front\n"
	     "to back, in requests of 1 MiB, and measures swapoff. All pages are checked.\n"
	     "\n"
	     "  --swap DEVICE  FORMAT this block device, and swap on it meanwhile\n"
	     "  --zram         take /dev/zram0 for it; WHAT IS ON IT IS LOST\n"
	     "  --mb N,...     memory of all processes together (60)\n"
	     "  --processes N,...  that many, each with its part of the memory (1)\n"
	     "  --sharers N    processes that have each page by fork (1)\n"
	     "  --shuffled     slots are not in the order of addresses\n"
	     "  --tmpfs        memory of a file, not anonymous\n"
	     "  --bystander    one swapped process maps, writes and unmaps a page all the time: how long\n"
	     "                 does that take at most, while swapoff is at work and before it?\n"
	     "  --tables       count how often a page table is looked at, and nothing else, for the\n"
	     "                 counting takes time\n"
	     "  --rounds N     (1)\n"
	     "  --limit S      leave the rest of several sizes out if the next would take more than S\n"
	     "                 seconds, were time to grow with the square of the size; the rest of several\n"
	     "                 numbers of processes if the last took longer (30)\n"
	     "\n"
	     "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

static void options(int argc, char **argv)
{
	static const struct option known[] = {
		{ "swap",	required_argument,	NULL, 'd' },
		{ "zram",	no_argument,		NULL, 'z' },
		{ "mb",		required_argument,	NULL, 'm' },
		{ "processes",	required_argument,	NULL, 'p' },
		{ "sharers",	required_argument,	NULL, 's' },
		{ "shuffled",	no_argument,		NULL, 'o' },
		{ "tmpfs",	no_argument,		NULL, 't' },
		{ "bystander",	no_argument,		NULL, 'b' },
		{ "tables",	no_argument,		NULL, 'T' },
		{ "rounds",	required_argument,	NULL, 'r' },
		{ "limit",	required_argument,	NULL, 'l' },
		{ "help",	no_argument,		NULL, 'h' },
		{ }
	};
	int opt;

	while ((opt = getopt_long(argc, argv, "h", known, NULL)) != -1) {
		switch (opt) {
		case 'd':
			set.dev = optarg;
			break;
		case 'z':
			set.zram = 1;
			set.dev = "/dev/zram0";
			break;
		case 'm':
			set.sizes = list("--mb", optarg, set.mb, 1 << 16);
			break;
		case 'p':
			set.counts = list("--processes", optarg, set.processes,
					  1000);
			break;
		case 's':
			set.sharers = bench_number("--sharers", optarg, 1, 1000);
			break;
		case 'o':
			set.shuffled = 1;
			break;
		case 't':
			set.tmpfs = 1;
			break;
		case 'b':
			set.bystander = 1;
			break;
		case 'T':
			set.tables = 1;
			break;
		case 'r':
			set.rounds = bench_number("--rounds", optarg, 1, 100);
			break;
		case 'l':
			set.limit = bench_number("--limit", optarg, 1, 100000);
			break;
		case 'h':
			help();
			exit(0);
		default:
			bench_bad_option(argv);
		}
	}
	bench_no_more_args(argc, argv);
	if (!set.dev)
		die_usage("name what to swap on: --swap DEVICE or --zram");
	if (set.sizes > 1 && set.counts > 1)
		die_usage("several values for --mb or for --processes, not both");
}

int main(int argc, char **argv)
{
	struct cost off, raw;
	char label[48] = "";
	double next;
	long used;
	int i, n;

	bench_init("swapoffbench");
	options(argc, argv);
	board = map_shared(sizeof(*board));
	cgroup_make("swapoffbench");
	if (set.tables)
		probe_tables();
	n = set.sizes * set.counts;
	for (i = 0; i < n; i++) {
		long mb = set.mb[set.sizes > 1 ? i : 0], round;
		long processes = set.processes[set.counts > 1 ? i : 0];

		if (set.sizes > 1)
			snprintf(label, sizeof(label), " with %ld MB", mb);
		else if (set.counts > 1)
			snprintf(label, sizeof(label), " with %ld processes",
				 processes);
		for (round = 0; round < set.rounds; round++) {
			run(mb, processes, &off, &raw, &used);
			report(label, &off, &raw, used);
		}
		if (i + 1 == n)
			break;
		next = (double)off.ns / 1e9;
		if (set.sizes > 1)
			next *= (double)set.mb[i + 1] / (double)mb *
				(double)set.mb[i + 1] / (double)mb;
		if (next > (double)set.limit) {
			printf("# the rest is left out: it would take more than %ld s\n",
			       set.limit);
			break;
		}
	}
	if (set.zram)
		file_write(ZRAM "reset", "1");
	bench_exit(0);
}
