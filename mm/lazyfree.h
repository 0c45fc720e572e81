/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _MM_LAZYFREE_H
#define _MM_LAZYFREE_H

#include <linux/mm_types.h>
#include <linux/pagevec.h>

#include <asm/tlb.h>

/**
 * struct lazyfree - one call of madvise(MADV_FREE)
 * @tlb: Collects what the TLBs must forget, over all VMAs of the call.
 * @folios: Folios taken off the LRU that wait for lazyfree_flush(). No
 *	reference is held on them, so they must be flushed before the
 *	page-table lock that keeps them mapped is dropped.
 * @full: @tlb has no room for more pages.
 * @drained: The LRU batches of this CPU were drained.
 * @off_lru: The first look met a folio that was not on the LRU.
 * @patient: This is the second look, which may stop to wait.
 * @split: @blocker is a large folio that the range covers in part.
 * @nap: What is in the way tells nobody when it is gone: the budget for naps
 *	till then, which is one of the two below, or NULL.
 * @again_start: First address that needs a second look.
 * @again_end: End of the addresses that need a second look.
 * @stopped: Where the second look stopped last.
 * @tries: How often it may still stop there.
 * @blocker: The folio that it stopped for, with a reference, or NULL if it
 *	stopped for a nap, or at a migration entry.
 * @held: The folio that was waited for, with a reference and locked.
 * @lru_naps: How many ticks may still be slept in this range for folios off
 *	the LRU, or for references that keep one from being split.
 * @write_naps: How many for folios that are being written to swap, or read.
 */
struct lazyfree {
	struct mmu_gather tlb;
	struct folio_batch folios;
	bool full;
	bool drained;
	bool off_lru;
	bool patient;
	bool split;
	unsigned int *nap;
	unsigned long again_start;
	unsigned long again_end;
	unsigned long stopped;
	unsigned int tries;
	struct folio *blocker;
	struct folio *held;
	unsigned int lru_naps;
	unsigned int write_naps;
};

void lazyfree_begin(struct lazyfree *lf, struct mm_struct *mm);
bool lazyfree_allowed(struct vm_area_struct *vma);
int lazyfree_range(struct lazyfree *lf, struct vm_area_struct *vma,
		   unsigned long start, unsigned long end);
int lazyfree_nap(struct lazyfree *lf);
int lazyfree_resume(struct lazyfree *lf, struct vm_area_struct *vma);
void lazyfree_end(struct lazyfree *lf);

#endif /* _MM_LAZYFREE_H */
