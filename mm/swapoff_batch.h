/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _MM_SWAPOFF_BATCH_H
#define _MM_SWAPOFF_BATCH_H

#include <linux/types.h>

/*
 * One place where a swap slot is used. @owner and @where mean nothing here;
 * swapoff.c has an address space or a shmem inode in mind, and a page in it.
 */
struct swapoff_record {
	u64 where;
	u32 slot;
	u32 owner;
};

/* A heap of records that is filled, sorted by slot, read and emptied. */
struct swapoff_batch {
	struct swapoff_record *record;
	unsigned int nr;		/* records in it */
	unsigned int max;		/* records that fit */
	unsigned int limit;		/* records that may ever fit */
};

/* What one look at a page table can give: room for so many is asked for. */
#define SWAPOFF_BATCH_STEP	512U

void swapoff_batch_init(struct swapoff_batch *batch, unsigned long limit);
void swapoff_batch_destroy(struct swapoff_batch *batch);
bool swapoff_batch_reserve(struct swapoff_batch *batch);
void swapoff_batch_sort(struct swapoff_batch *batch);
unsigned int swapoff_batch_group(const struct swapoff_batch *batch,
				 unsigned int first);

/* How many records can be added. */
static inline unsigned int swapoff_batch_room(const struct swapoff_batch *batch)
{
	return batch->max - batch->nr;
}

/* Add a record. The caller has seen that there is room. */
static inline void swapoff_batch_add(struct swapoff_batch *batch, u32 slot,
				     u32 owner, u64 where)
{
	struct swapoff_record *record = &batch->record[batch->nr++];

	record->where = where;
	record->slot = slot;
	record->owner = owner;
}

#endif /* _MM_SWAPOFF_BATCH_H */
