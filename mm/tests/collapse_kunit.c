// SPDX-License-Identifier: GPL-2.0
/*
 * The decision whether a range of anonymous memory may become a huge page: a
 * table of ranges, and what has to hold for every range.
 */
#include <kunit/test.h>

#include "../collapse.h"

#define SIZE	512U

/* The defaults of khugepaged on x86. */
#define DEFAULTS		\
	.size = SIZE,		\
	.none = SIZE - 1,	\
	.swap = SIZE / 8,	\
	.shared = SIZE / 2

static const struct collapse_limits khugepaged = { DEFAULTS };

/* The same, for a range that swapoff brought back. */
static const struct collapse_limits returned = { DEFAULTS, .returned = true };

/* All that khugepaged may be told to allow. */
static const struct collapse_limits generous = {
	.size = SIZE,
	.none = SIZE - 1,
	.swap = SIZE - 1,
	.shared = SIZE - 1,
};

/* The least. */
static const struct collapse_limits strict = {
	.size = SIZE,
};

/* madvise(MADV_COLLAPSE) */
static const struct collapse_limits asked = {
	.asked = true,
	.size = SIZE,
	.none = SIZE,
	.swap = SIZE,
	.shared = SIZE,
};

/* The same where userfaultfd waits for missing pages. */
static const struct collapse_limits asked_armed = {
	.asked = true,
	.size = SIZE,
	.swap = SIZE,
	.shared = SIZE,
};

struct a_range {
	const char *name;
	struct collapse_facts facts;
	const struct collapse_limits *limits;
	enum collapse_verdict verdict;
};

static const struct a_range ranges[] = {
	/* Ordinary memory. */
	{ "all written", { .writable = 512, .young = 512 },
	  &khugepaged, COLLAPSE_MAY },
	{ "one young page is enough", { .writable = 512, .young = 1 },
	  &khugepaged, COLLAPSE_MAY },
	{ "nobody uses it", { .writable = 512 },
	  &khugepaged, COLLAPSE_NOT_YOUNG },
	{ "nobody uses it, but asked for", { .writable = 512 },
	  &asked, COLLAPSE_MAY },

	/* Read-only PTEs. */
	{ "after fork", { .readonly = 512, .young = 1 },
	  &khugepaged, COLLAPSE_MAY },
	{ "after fork, strict", { .readonly = 512, .young = 1 },
	  &strict, COLLAPSE_MAY },
	{ "after swapoff", { .readonly = 512 },
	  &khugepaged, COLLAPSE_NOT_YOUNG },
	{ "after swapoff, told so", { .readonly = 512 },
	  &returned, COLLAPSE_MAY },
	{ "after swapoff, some written", { .readonly = 500, .writable = 12 },
	  &returned, COLLAPSE_MAY },
	{ "after swapoff, one hole", { .readonly = 511, .none = 1 },
	  &returned, COLLAPSE_NOT_YOUNG },
	{ "after swapoff, one hole, used",
	  { .readonly = 511, .none = 1, .young = 1 },
	  &returned, COLLAPSE_MAY },
	{ "swapoff goes on", { .readonly = 511, .swap = 1 },
	  &returned, COLLAPSE_NOT_YOUNG },
	{ "after swapoff, shared with many",
	  { .readonly = 512, .shared = 257 },
	  &returned, COLLAPSE_TOO_MANY_SHARED },
	{ "after swapoff, asked for", { .readonly = 512 },
	  &asked, COLLAPSE_MAY },
	{ "one page written since fork",
	  { .readonly = 511, .writable = 1, .young = 1 },
	  &khugepaged, COLLAPSE_MAY },
	{ "one read-only page", { .readonly = 1, .writable = 511, .young = 9 },
	  &strict, COLLAPSE_MAY },
	{ "read-only, userfaultfd", { .readonly = 512 },
	  &asked_armed, COLLAPSE_MAY },

	/* Holes. */
	{ "one page", { .none = 511, .writable = 1, .young = 1 },
	  &khugepaged, COLLAPSE_MAY },
	{ "one page, strict", { .none = 511, .writable = 1, .young = 1 },
	  &strict, COLLAPSE_TOO_MANY_NONE },
	{ "one hole, strict", { .none = 1, .writable = 511, .young = 511 },
	  &strict, COLLAPSE_TOO_MANY_NONE },
	{ "nothing", { .none = 512 },
	  &khugepaged, COLLAPSE_TOO_MANY_NONE },
	{ "nothing, asked for", { .none = 512 },
	  &asked, COLLAPSE_NO_PAGES },
	{ "one page, asked for", { .none = 511, .writable = 1 },
	  &asked, COLLAPSE_MAY },
	{ "one hole, userfaultfd", { .none = 1, .writable = 511 },
	  &asked_armed, COLLAPSE_TOO_MANY_NONE },

	/* The shared zero page. */
	{ "read, never written", { .zero = 512 },
	  &khugepaged, COLLAPSE_TOO_MANY_NONE },
	{ "read, never written, asked for", { .zero = 512 },
	  &asked, COLLAPSE_NO_PAGES },
	{ "one page that cannot be written",
	  { .zero = 511, .readonly = 1, .young = 1 },
	  &khugepaged, COLLAPSE_UNWRITTEN },
	{ "the same, asked for", { .zero = 511, .readonly = 1 },
	  &asked, COLLAPSE_MAY },
	{ "one page that can", { .zero = 511, .writable = 1, .young = 1 },
	  &khugepaged, COLLAPSE_MAY },
	{ "one page read, one written",
	  { .zero = 510, .readonly = 1, .writable = 1, .young = 2 },
	  &khugepaged, COLLAPSE_MAY },
	{ "just more than half unwritten",
	  { .zero = 257, .readonly = 255, .young = 255 },
	  &khugepaged, COLLAPSE_UNWRITTEN },
	{ "half unwritten", { .zero = 256, .readonly = 256, .young = 256 },
	  &khugepaged, COLLAPSE_MAY },
	{ "zero pages and holes together",
	  { .none = 256, .zero = 1, .readonly = 255, .young = 255 },
	  &khugepaged, COLLAPSE_UNWRITTEN },
	{ "holes alone", { .none = 257, .readonly = 255, .young = 255 },
	  &khugepaged, COLLAPSE_TOO_MANY_NONE },
	{ "half holes", { .none = 256, .readonly = 256, .young = 1 },
	  &khugepaged, COLLAPSE_MAY },
	{ "what is in swap was written",
	  { .zero = 256, .readonly = 200, .swap = 56, .young = 256 },
	  &khugepaged, COLLAPSE_MAY },

	/* Swap. */
	{ "at the limit", { .swap = 64, .writable = 448, .young = 256 },
	  &khugepaged, COLLAPSE_MAY },
	{ "over the limit", { .swap = 65, .writable = 447, .young = 447 },
	  &khugepaged, COLLAPSE_TOO_MANY_SWAP },
	{ "not used enough", { .swap = 1, .writable = 511, .young = 255 },
	  &khugepaged, COLLAPSE_NOT_YOUNG },
	{ "the rest read-only", { .swap = 64, .readonly = 448, .young = 448 },
	  &khugepaged, COLLAPSE_MAY },
	{ "one page, strict", { .swap = 1, .writable = 511, .young = 511 },
	  &strict, COLLAPSE_TOO_MANY_SWAP },
	{ "all of it, asked for", { .swap = 512 },
	  &asked, COLLAPSE_MAY },

	/* Other processes. */
	{ "at the limit", { .readonly = 512, .shared = 256, .young = 512 },
	  &khugepaged, COLLAPSE_MAY },
	{ "over the limit", { .readonly = 512, .shared = 257, .young = 512 },
	  &khugepaged, COLLAPSE_TOO_MANY_SHARED },
	{ "one page, strict", { .readonly = 512, .shared = 1, .young = 512 },
	  &strict, COLLAPSE_TOO_MANY_SHARED },
	{ "all of it, asked for", { .readonly = 512, .shared = 512 },
	  &asked, COLLAPSE_MAY },

	/* KSM. */
	{ "merged", { .readonly = 512, .ksm = 512, .young = 512 },
	  &generous, COLLAPSE_KSM },
	{ "one page merged",
	  { .readonly = 1, .writable = 511, .ksm = 1, .young = 512 },
	  &khugepaged, COLLAPSE_KSM },
	{ "one page merged with the zero page",
	  { .zero = 1, .writable = 511, .ksm = 1, .young = 511 },
	  &khugepaged, COLLAPSE_KSM },
	{ "merged, asked for", { .readonly = 512, .ksm = 512 },
	  &asked, COLLAPSE_MAY },

	/* Lazily free pages. */
	{ "one page", { .writable = 512, .lazyfree = 1, .young = 512 },
	  &generous, COLLAPSE_LAZYFREE },
	{ "all but one", { .writable = 512, .lazyfree = 511, .young = 1 },
	  &generous, COLLAPSE_LAZYFREE },
	{ "asked for", { .writable = 512, .lazyfree = 511 },
	  &asked, COLLAPSE_MAY },

	/* Protected by userfaultfd. */
	{ "one page", { .readonly = 512, .uffd_wp = 1, .young = 512 },
	  &generous, COLLAPSE_UFFD },
	{ "one page in swap, asked for",
	  { .swap = 1, .writable = 511, .uffd_wp = 1 },
	  &asked, COLLAPSE_UFFD },
};

static const struct collapse_limits *const all_limits[] = {
	&khugepaged, &returned, &generous, &strict, &asked, &asked_armed,
};

static void collapse_test_table(struct kunit *test)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(ranges); i++) {
		const struct a_range *r = &ranges[i];

		KUNIT_EXPECT_EQ_MSG(test, collapse_decide(&r->facts, r->limits),
				    r->verdict, "range %u: %s", i, r->name);
	}
}

/* Every PTE is one thing of five, so the table itself can be wrong. */
static void collapse_test_table_adds_up(struct kunit *test)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(ranges); i++) {
		const struct collapse_facts *f = &ranges[i].facts;

		KUNIT_EXPECT_EQ_MSG(test, f->none + f->zero + f->swap +
				    f->writable + f->readonly, SIZE,
				    "range %u: %s", i, ranges[i].name);
	}
}

static unsigned int *nth_count(struct collapse_facts *f, unsigned int n)
{
	unsigned int *counts[] = {
		&f->none, &f->zero, &f->swap, &f->writable, &f->readonly,
		&f->shared, &f->ksm, &f->lazyfree, &f->uffd_wp, &f->young,
	};

	return n < ARRAY_SIZE(counts) ? counts[n] : NULL;
}

/*
 * What the walk is refused for in the middle, the whole range is refused for,
 * whatever the rest holds: else the walk would stop too early.
 */
static void collapse_test_refusal_lasts(struct kunit *test)
{
	unsigned int i, l, n, refused = 0;

	for (i = 0; i < ARRAY_SIZE(ranges); i++)
		for (l = 0; l < ARRAY_SIZE(all_limits); l++) {
			struct collapse_facts f = ranges[i].facts;
			unsigned int *count;

			if (!collapse_refuses(&f, all_limits[l]))
				continue;
			refused++;
			KUNIT_EXPECT_NE(test, COLLAPSE_MAY,
					collapse_decide(&f, all_limits[l]));
			for (n = 0; (count = nth_count(&f, n)); n++) {
				*count += 1;
				KUNIT_EXPECT_NE_MSG(test, COLLAPSE_MAY,
						    collapse_refuses(&f, all_limits[l]),
						    "range %u, limits %u, count %u",
						    i, l, n);
			}
		}
	KUNIT_EXPECT_GT(test, refused, 0);
}

/* A writable PTE in the place of a read-only one never makes it worse. */
static void collapse_test_readonly(struct kunit *test)
{
	unsigned int i, l, pages = 0;

	for (i = 0; i < ARRAY_SIZE(ranges); i++)
		for (l = 0; l < ARRAY_SIZE(all_limits); l++) {
			struct collapse_facts ro = ranges[i].facts, rw = ro;
			enum collapse_verdict verdict;

			ro.readonly += ro.writable;
			ro.writable = 0;
			rw.writable += rw.readonly;
			rw.readonly = 0;
			verdict = collapse_decide(&ro, all_limits[l]);
			if (verdict == COLLAPSE_MAY) {
				pages++;
				KUNIT_EXPECT_EQ(test, COLLAPSE_MAY,
						collapse_decide(&rw, all_limits[l]));
			} else if (ro.none + ro.zero <= SIZE / 2) {
				/* Not sparse: refused for something else. */
				KUNIT_EXPECT_EQ(test, verdict,
						collapse_decide(&rw, all_limits[l]));
			}
		}
	KUNIT_EXPECT_GT(test, pages, 0);
}

/* Of a range with holes that the program made, little is filled. */
static void collapse_test_holes(struct kunit *test)
{
	struct collapse_facts f = { .none = 64, .writable = 448, .young = 448 };
	struct collapse_limits limits = khugepaged;

	collapse_keep_holes(&limits);
	KUNIT_EXPECT_EQ(test, COLLAPSE_MAY, collapse_decide(&f, &limits));
	f.none++;
	f.writable--;
	KUNIT_EXPECT_EQ(test, COLLAPSE_TOO_MANY_NONE, collapse_decide(&f, &limits));
	KUNIT_EXPECT_EQ(test, COLLAPSE_MAY, collapse_decide(&f, &khugepaged));
	f.zero = f.none;
	f.none = 0;
	KUNIT_EXPECT_EQ(test, COLLAPSE_TOO_MANY_NONE, collapse_decide(&f, &limits));

	/* An administrator who allows less still has his way. */
	limits = strict;
	collapse_keep_holes(&limits);
	KUNIT_EXPECT_EQ(test, limits.none, 0);
}

static struct kunit_case collapse_test_cases[] = {
	KUNIT_CASE(collapse_test_table),
	KUNIT_CASE(collapse_test_table_adds_up),
	KUNIT_CASE(collapse_test_refusal_lasts),
	KUNIT_CASE(collapse_test_readonly),
	KUNIT_CASE(collapse_test_holes),
	{}
};

static struct kunit_suite collapse_test_suite = {
	.name = "collapse",
	.test_cases = collapse_test_cases,
};

kunit_test_suites(&collapse_test_suite);

MODULE_DESCRIPTION("KUnit tests of the decision to collapse a range");
MODULE_LICENSE("GPL");
