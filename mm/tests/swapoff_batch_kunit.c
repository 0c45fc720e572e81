// SPDX-License-Identifier: GPL-2.0
/* The batch of swapoff: sorting, groups, capacity. */
#include <kunit/test.h>
#include <linux/limits.h>
#include <linux/prandom.h>
#include <linux/sizes.h>

#include "../swapoff_batch.h"

static int batch_test_init(struct kunit *test)
{
	struct swapoff_batch *batch;

	batch = kunit_kzalloc(test, sizeof(*batch), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, batch);
	swapoff_batch_init(batch, SZ_1M);
	test->priv = batch;
	return 0;
}

static void batch_test_exit(struct kunit *test)
{
	swapoff_batch_destroy(test->priv);
}

/* The owner is a serial number, and @where belongs to the slot. */
static void add(struct kunit *test, u32 slot)
{
	struct swapoff_batch *batch = test->priv;

	if (!swapoff_batch_room(batch))
		KUNIT_ASSERT_TRUE(test, swapoff_batch_reserve(batch));
	swapoff_batch_add(batch, slot, batch->nr, (u64)slot << 20 | 5);
}

/* Sorted, and each record that went in is there once and in one piece. */
static void sort_and_check(struct kunit *test)
{
	struct swapoff_batch *batch = test->priv;
	unsigned int nr = batch->nr, i, wrong = 0;
	u32 *slot;

	slot = kunit_kcalloc(test, nr + 1, sizeof(*slot), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, slot);
	for (i = 0; i < nr; i++)
		slot[batch->record[i].owner] = batch->record[i].slot;

	swapoff_batch_sort(batch);
	KUNIT_ASSERT_EQ(test, nr, batch->nr);
	for (i = 0; i < nr; i++) {
		const struct swapoff_record *record = &batch->record[i];

		if (i && record[-1].slot > record->slot)
			wrong++;
		if (record->where != ((u64)record->slot << 20 | 5))
			wrong++;
		if (record->owner >= nr) {
			wrong++;
			continue;
		}
		/* Seen once more would not match: no slot is all ones here. */
		if (slot[record->owner] != record->slot)
			wrong++;
		slot[record->owner] = U32_MAX;
	}
	KUNIT_EXPECT_EQ(test, wrong, 0);
}

static void batch_test_empty(struct kunit *test)
{
	struct swapoff_batch *batch = test->priv;

	KUNIT_EXPECT_EQ(test, swapoff_batch_room(batch), 0);
	sort_and_check(test);
	KUNIT_EXPECT_TRUE(test, swapoff_batch_reserve(batch));
	KUNIT_EXPECT_GE(test, swapoff_batch_room(batch), SWAPOFF_BATCH_STEP);
	sort_and_check(test);
}

static void batch_test_in_order(struct kunit *test)
{
	u32 i;

	for (i = 1; i < 3000; i++)
		add(test, i);
	sort_and_check(test);
}

static void batch_test_reversed(struct kunit *test)
{
	u32 i;

	for (i = 3000; i; i--)
		add(test, i);
	sort_and_check(test);
}

/* All sizes around the one where the sort changes its way. */
static void batch_test_small(struct kunit *test)
{
	struct swapoff_batch *batch = test->priv;
	struct rnd_state rnd;
	u32 nr, i;

	prandom_seed_state(&rnd, 1);
	for (nr = 1; nr < 40; nr++) {
		batch->nr = 0;
		for (i = 0; i < nr; i++)
			add(test, prandom_u32_state(&rnd) % 16);
		sort_and_check(test);
	}
}

static void batch_test_random(struct kunit *test)
{
	struct rnd_state rnd;
	u32 i;

	prandom_seed_state(&rnd, 2);
	for (i = 0; i < 40000; i++)
		add(test, prandom_u32_state(&rnd) >> 1);
	sort_and_check(test);
}

/* Slots at both ends of what there is, and nothing in between. */
static void batch_test_extremes(struct kunit *test)
{
	u32 i;

	for (i = 0; i < 1000; i++)
		add(test, i & 1 ? i : U32_MAX - 1 - i);
	sort_and_check(test);
}

static void batch_test_many_owners(struct kunit *test)
{
	static const u32 slots[] = { 7, 3, 7, 900, 3 };
	struct swapoff_batch *batch = test->priv;
	u32 i;

	for (i = 0; i < 5000; i++)
		add(test, slots[i % ARRAY_SIZE(slots)]);
	sort_and_check(test);
	KUNIT_EXPECT_EQ(test, batch->record[0].slot, 3);
	KUNIT_EXPECT_EQ(test, swapoff_batch_group(batch, 0), 2000);
	KUNIT_EXPECT_EQ(test, batch->record[2000].slot, 7);
	KUNIT_EXPECT_EQ(test, swapoff_batch_group(batch, 2000), 2000);
	KUNIT_EXPECT_EQ(test, batch->record[4000].slot, 900);
	KUNIT_EXPECT_EQ(test, swapoff_batch_group(batch, 4000), 1000);
	/* From the middle of a group on, it is what remains. */
	KUNIT_EXPECT_EQ(test, swapoff_batch_group(batch, 4999), 1);
}

/* It is never larger than allowed, says so when it is full, and is reusable. */
static void batch_test_full(struct kunit *test)
{
	struct swapoff_batch *batch = test->priv;
	const unsigned int limit = 5 * SWAPOFF_BATCH_STEP;
	unsigned int i;

	swapoff_batch_init(batch, limit);
	while (swapoff_batch_reserve(batch))
		for (i = 0; i < SWAPOFF_BATCH_STEP; i++)
			add(test, batch->nr ^ 0x2a5);
	KUNIT_EXPECT_EQ(test, batch->nr, limit);
	KUNIT_EXPECT_LE(test, batch->max, limit);
	sort_and_check(test);

	batch->nr = 0;
	KUNIT_EXPECT_TRUE(test, swapoff_batch_reserve(batch));
}

/* A step's worth fits, whatever the limit says. */
static void batch_test_least(struct kunit *test)
{
	struct swapoff_batch *batch = test->priv;

	swapoff_batch_init(batch, 0);
	KUNIT_EXPECT_TRUE(test, swapoff_batch_reserve(batch));
	KUNIT_EXPECT_EQ(test, swapoff_batch_room(batch), SWAPOFF_BATCH_STEP);
	add(test, 1);
	KUNIT_EXPECT_FALSE(test, swapoff_batch_reserve(batch));
}

static struct kunit_case swapoff_batch_cases[] = {
	KUNIT_CASE(batch_test_empty),
	KUNIT_CASE(batch_test_in_order),
	KUNIT_CASE(batch_test_reversed),
	KUNIT_CASE(batch_test_small),
	KUNIT_CASE(batch_test_random),
	KUNIT_CASE(batch_test_extremes),
	KUNIT_CASE(batch_test_many_owners),
	KUNIT_CASE(batch_test_full),
	KUNIT_CASE(batch_test_least),
	{}
};

static struct kunit_suite swapoff_batch_suite = {
	.name = "swapoff-batch",
	.init = batch_test_init,
	.exit = batch_test_exit,
	.test_cases = swapoff_batch_cases,
};

kunit_test_suite(swapoff_batch_suite);

MODULE_DESCRIPTION("KUnit tests of swapoff's batch");
MODULE_LICENSE("GPL");
