// SPDX-License-Identifier: GPL-2.0
/*
 * What swapoff knows about the users of swap slots, sorted by slot.
 *
 * Plain data in, plain data out: nothing here takes a lock or looks at a page.
 */
#include <linux/bitops.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "swapoff_batch.h"

#define FIRST_SIZE	(8U * SWAPOFF_BATCH_STEP)
#define INSERTION_SORT	12

/**
 * swapoff_batch_init - make a batch, empty and without memory
 * @batch: the batch
 * @limit: how many records it may ever hold; at least a step's worth are allowed
 *
 * Context: Any.
 */
void swapoff_batch_init(struct swapoff_batch *batch, unsigned long limit)
{
	memset(batch, 0, sizeof(*batch));
	batch->limit = clamp(limit, (unsigned long)SWAPOFF_BATCH_STEP,
			     (unsigned long)INT_MAX / 2);
}

/**
 * swapoff_batch_destroy - give the memory of a batch back
 * @batch: the batch; empty and without memory afterwards
 *
 * Context: May sleep.
 */
void swapoff_batch_destroy(struct swapoff_batch *batch)
{
	kvfree(batch->record);
	batch->record = NULL;
	batch->nr = 0;
	batch->max = 0;
}

/* Make room for @max records in all, if there is memory for so many. */
static bool batch_resize(struct swapoff_batch *batch, unsigned int max)
{
	struct swapoff_record *record;

	/* Memory is what the caller is short of: ask without insisting. */
	record = kvmalloc_array(max, sizeof(*record),
				GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	if (!record)
		return false;

	if (batch->nr)
		memcpy(record, batch->record,
		       batch->nr * sizeof(*record));
	kvfree(batch->record);
	batch->record = record;
	batch->max = max;
	return true;
}

/**
 * swapoff_batch_reserve - make room for SWAPOFF_BATCH_STEP more records
 * @batch: the batch
 *
 * The batch grows by doubling, and by less where memory or the limit don't
 * allow that.
 *
 * Context: May sleep.
 * Return: false if the batch is as large as it can be, and is to be emptied; if
 * it is empty already, there is no memory at all.
 */
bool swapoff_batch_reserve(struct swapoff_batch *batch)
{
	unsigned int least = batch->nr + SWAPOFF_BATCH_STEP;
	unsigned int max;

	if (swapoff_batch_room(batch) >= SWAPOFF_BATCH_STEP)
		return true;
	if (least > batch->limit)
		return false;

	max = clamp(max(2 * batch->max, FIRST_SIZE), least, batch->limit);
	if (batch_resize(batch, max))
		return true;
	/* Not worth another copy, unless there is nothing to copy. */
	return !batch->max && batch_resize(batch, least);
}

static bool batch_in_order(const struct swapoff_batch *batch)
{
	unsigned int i;

	for (i = 1; i < batch->nr; i++)
		if (batch->record[i].slot < batch->record[i - 1].slot)
			return false;
	return true;
}

static void insertion_sort(struct swapoff_record *record, unsigned int nr)
{
	unsigned int i, j;

	for (i = 1; i < nr; i++) {
		struct swapoff_record this = record[i];

		for (j = i; j && record[j - 1].slot > this.slot; j--)
			record[j] = record[j - 1];
		record[j] = this;
	}
}

/* Bring the records without @bit in their slot to the front; count them. */
static unsigned int partition(struct swapoff_record *record, unsigned int nr,
			      u32 bit)
{
	unsigned int low = 0, high = nr;

	while (low < high) {
		if (!(record[low].slot & bit))
			low++;
		else if (record[high - 1].slot & bit)
			high--;
		else
			swap(record[low], record[high - 1]);
	}
	return low;
}

/**
 * swapoff_batch_sort - sort the records by slot
 * @batch: the batch
 *
 * A radix sort in place, from the highest bit down: the batch may fill all
 * memory that there is, and its time must not depend on what order the slots
 * are in. The order of records with the same slot is arbitrary.
 *
 * Context: May sleep.
 */
void swapoff_batch_sort(struct swapoff_batch *batch)
{
	/* What remains to be sorted: each part differs in the bits below @bits. */
	struct {
		unsigned int first, nr;
		int bits;
	} part[33], this;
	int parts = 0;
	u32 all = 0;
	unsigned int i;

	if (batch_in_order(batch))
		return;
	for (i = 0; i < batch->nr; i++)
		all |= batch->record[i].slot;

	part[parts].first = 0;
	part[parts].nr = batch->nr;
	part[parts++].bits = fls(all);
	while (parts) {
		this = part[--parts];
		while (this.bits && this.nr > INSERTION_SORT) {
			struct swapoff_record *first;
			unsigned int low;

			/*
			 * The part put by has one bit less than the one before
			 * it, so there are never more of them than bits.
			 */
			first = batch->record + this.first;
			low = partition(first, this.nr, BIT(--this.bits));
			part[parts].first = this.first + low;
			part[parts].nr = this.nr - low;
			part[parts++].bits = this.bits;
			this.nr = low;
			cond_resched();
		}
		if (this.bits)
			insertion_sort(batch->record + this.first, this.nr);
	}
}

/**
 * swapoff_batch_group - count the records of one slot in a sorted batch
 * @batch: the batch
 * @first: the first record of the slot
 *
 * Context: Any.
 * Return: how many records there are from @first on with the same slot.
 */
unsigned int swapoff_batch_group(const struct swapoff_batch *batch,
				 unsigned int first)
{
	unsigned int next = first + 1;

	while (next < batch->nr &&
	       batch->record[next].slot == batch->record[first].slot)
		next++;
	return next - first;
}
