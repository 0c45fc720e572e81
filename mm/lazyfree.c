// SPDX-License-Identifier: GPL-2.0
/*
 * madvise(MADV_FREE): memory that may be dropped until it is written again.
 *
 * The dirty bit is the truth. A lazily free folio is an anonymous folio
 * without PG_swapbacked, PG_dirty and a place in the swap cache, and all the
 * page-table entries that map it are clean. Reclaim drops such a folio instead
 * of swapping it out. A write makes an entry dirty again, without a trap where
 * the hardware sets the bit, and reclaim then finds that and makes the folio
 * an ordinary one again (try_to_unmap_one()).
 *
 * So a folio may be made lazily free only if nobody else wants its content.
 * Here that is read from the folio: if the entries of one run are all the
 * mappings it has, and it is not in the swap cache, where other processes
 * could find it, then it belongs to the caller alone. It stays so while the
 * page-table lock is held: fork is kept out by the lock on the VMA (its own or
 * mmap_lock), and a folio gets into the swap cache, or becomes KSM's, only
 * under the folio lock and with PG_dirty set by the time its entries lose their
 * dirty bits.
 *
 * The first look at the page tables waits for nothing. What it can't do under
 * the page-table lock is left for a second look: it drains the LRU batches of
 * all CPUs if need be, sleeps for folio locks and writeback, and splits large
 * folios that the range covers in part. Then it goes on where it stopped.
 * It gives an address up only if something is in the way there time and again.
 * What takes too long, to be written or to get back to the LRU, is unmapped,
 * as by MADV_DONTNEED.
 *
 * Lock order: lock on the VMA, folio lock (under the page-table lock only by
 * trylock), page-table lock, lruvec->lru_lock.
 */
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/sched/signal.h>
#include <linux/swap.h>
#include <linux/swapops.h>

#include "collapse_note.h"
#include "internal.h"
#include "lazyfree.h"
#include "swap.h"

/*
 * How often the second look stops at one address. It rarely takes more than
 * one: a folio may be isolated first, then migrating, then locked.
 */
#define LAZYFREE_TRIES	10

/*
 * How many ticks may be slept in one range for folios that are off the LRU.
 * Reclaim and migration put back what they isolated within milliseconds, but
 * nothing tells when.
 */
#define LAZYFREE_LRU_NAPS	25

/*
 * How many ticks may be slept in one range for folios that are being written.
 * A slow device may take longer.
 */
#define LAZYFREE_WRITE_NAPS	HZ

/* What became of a folio under the page-table lock. */
enum lazyfree_result {
	LAZYFREE_DONE,		/* lazily free: clean its entries */
	LAZYFREE_SHARED,	/* others use it: unmap it here */
	LAZYFREE_LATER,		/* look again */
	LAZYFREE_KEEP,		/* leave it as it is */
};

/* Folios that leave one list of one lruvec together. */
struct lru_move {
	enum lru_list lru;	/* with MGLRU, it only tells anon from file */
	enum zone_type zone;
	int gen;		/* MGLRU's generation; -1: a list of the classic LRU */
	long nr_pages;
};

/* The account that lruvec_del_folio() keeps for one folio, for many. */
static void lru_account_del(struct lruvec *lruvec, struct lru_move *move)
{
#ifdef CONFIG_LRU_GEN
	if (move->gen >= 0) {
		int type = is_file_lru(move->lru);
		long *nr = &lruvec->lrugen.nr_pages[move->gen][type][move->zone];
		enum lru_list lru = type * LRU_INACTIVE_FILE;

		WRITE_ONCE(*nr, *nr - move->nr_pages);
		if (lru_gen_is_active(lruvec, move->gen))
			lru += LRU_ACTIVE;
		__update_lru_size(lruvec, lru, move->zone, -move->nr_pages);
		return;
	}
#endif
	update_lru_size(lruvec, move->lru, move->zone, -move->nr_pages);
}

/* Counters are the dear part of an LRU move, so pay for them once per group. */
static void lru_move_account(struct lruvec *lruvec, struct lru_move *move)
{
	if (!move->nr_pages)
		return;
	lru_account_del(lruvec, move);
	update_lru_size(lruvec, LRU_INACTIVE_FILE, move->zone, move->nr_pages);
	update_lazyfree_size(lruvec, move->nr_pages);
	__count_vm_events(PGLAZYFREE, move->nr_pages);
	__count_memcg_events(lruvec_memcg(lruvec), PGLAZYFREE, move->nr_pages);
	move->nr_pages = 0;
}

/*
 * Is the folio on the lazyfree list, if it is on the LRU and not dirty? Those
 * of droppable mappings and those that somebody activated are not.
 */
static bool lazyfree_listed(struct folio *folio)
{
	return !(READ_ONCE(folio->flags) &
		 (BIT(PG_swapbacked) | BIT(PG_active) | LRU_GEN_MASK));
}

/* Move one folio to the lazyfree list and give it back to the LRU. */
static void lazyfree_move(struct lruvec *lruvec, struct folio *folio,
			  struct lru_move *move)
{
	enum zone_type zone = folio_zonenum(folio);
	enum lru_list lru = LRU_INACTIVE_FILE;
	unsigned long flags;
	int gen;

	list_move(&folio->lru, &lruvec->lazyfree);
	/*
	 * All in one go, because each atomic operation costs as much as the
	 * rest. PG_lru comes back with the same store that takes PG_swapbacked
	 * away: whoever isolates the folio from here on sees it as lazily free.
	 * Its age is that of its old content and means nothing any more.
	 */
	flags = set_mask_bits(&folio->flags,
			      LRU_GEN_MASK | LRU_REFS_MASK | BIT(PG_active) |
			      BIT(PG_referenced) | BIT(PG_workingset) |
			      BIT(PG_swapbacked),
			      BIT(PG_lru));

	gen = (int)((flags & LRU_GEN_MASK) >> LRU_GEN_PGOFF) - 1;
	if (flags & BIT(PG_swapbacked))
		lru = LRU_INACTIVE_ANON;
	else if (gen < 0 && !(flags & BIT(PG_active)))
		return;		/* it came to the list just before it was claimed */
	if (flags & BIT(PG_active))
		lru += LRU_ACTIVE;
	if (lru != move->lru || gen != move->gen || zone != move->zone) {
		lru_move_account(lruvec, move);
		move->lru = lru;
		move->gen = gen;
		move->zone = zone;
	}
	move->nr_pages += folio_nr_pages(folio);
}

/*
 * Make the collected folios lazily free. PG_lru was cleared when they were
 * collected, which keeps everybody else from moving them or from changing their
 * memory cgroup, but they are still on their lists.
 */
static void lazyfree_flush(struct lazyfree *lf)
{
	struct folio_batch *batch = &lf->folios;
	unsigned int i = 0;

	while (i < folio_batch_count(batch)) {
		struct folio *folio = batch->folios[i];
		struct lru_move move = { };
		struct lruvec *lruvec;

		lruvec = folio_lruvec_lock_irq(folio);
		__acquire(&lruvec->lru_lock);	/* sparse does not see it */
		do {
			lazyfree_move(lruvec, batch->folios[i++], &move);
		} while (i < folio_batch_count(batch) &&
			 folio_matches_lruvec(batch->folios[i], lruvec));
		lru_move_account(lruvec, &move);
		unlock_page_lruvec_irq(lruvec);
	}
	folio_batch_reinit(batch);
}

/*
 * Claim the folio from the LRU. As long as PG_lru is clear, nobody adds it to
 * the swap cache or finds it unevictable, so only now these are worth a look.
 * But an unevictable folio must not be off the LRU even for a moment: munlock()
 * would leave it to whoever isolated it to make it evictable.
 */
static bool lazyfree_claim(struct folio *folio)
{
	if (unlikely(folio_test_unevictable(folio)))
		return false;
	if (!folio_test_clear_lru(folio))
		return false;
	if (likely(!folio_test_unevictable(folio) &&
		   !folio_test_swapcache(folio)))
		return true;
	folio_set_lru(folio);
	return false;
}

/*
 * Take the folio off the LRU. A folio that was faulted in a moment ago may
 * still be in the batch of folios that its CPU is about to add, and munlock()
 * has such batches, too. Draining those of this CPU is cheap enough to try at
 * once, but only if it is needed: a heap that settled is on the LRU.
 */
static bool lazyfree_isolate(struct lazyfree *lf, struct folio *folio)
{
	if (likely(lazyfree_claim(folio)))
		return true;
	if (!lf->drained) {
		lf->drained = true;
		lru_add_drain();
		if (lazyfree_claim(folio))
			return true;
	}
	lf->off_lru = true;
	return false;
}

/*
 * Reclaim has the folio, or it is being written to swap. Wait some ticks of
 * @naps for the end of that. If it does not come, have the folio unmapped: it
 * is nobody's then, and goes when whoever has it lets go of it.
 */
static enum lazyfree_result lazyfree_in_time(struct lazyfree *lf,
					     unsigned int *naps)
{
	lf->nap = naps;
	return lf->patient && !*naps ? LAZYFREE_SHARED : LAZYFREE_LATER;
}

/*
 * Make @folio lazily free if the caller owns it: @nr mappings of it are in the
 * range. On LAZYFREE_DONE the caller must clean these mappings before it drops
 * the page-table lock. Until then reclaim can't tell, because it needs that
 * lock to look at them.
 */
static enum lazyfree_result lazyfree_folio(struct lazyfree *lf,
					   struct folio *folio, int nr)
{
	/*
	 * The folio lock keeps others from finding the folio in the swap
	 * cache, and from setting PG_dirty for an entry that they clear.
	 */
	bool locked = folio_test_swapcache(folio) || folio_test_dirty(folio);
	enum lazyfree_result result = LAZYFREE_SHARED;
	bool lock = false;

	lf->split = false;
	lf->nap = NULL;
	if (locked) {
		lock = folio != lf->held;
		if (lock && !folio_trylock(folio))
			return LAZYFREE_LATER;
	}

	/*
	 * One page of KSM's stands for many: the next one that is merged with
	 * it gets a clean entry, so its mapcount says nothing.
	 */
	if (folio_test_ksm(folio))
		goto out;

	if (folio_mapcount(folio) != nr) {
		if (folio_test_large(folio) &&
		    !folio_likely_mapped_shared(folio)) {
			lf->split = true;
			result = LAZYFREE_LATER;
		}
		goto out;
	}

	if (locked && folio_test_swapcache(folio)) {
		if (folio_test_writeback(folio)) {
			result = lazyfree_in_time(lf, &lf->write_naps);
			goto out;
		}
		/*
		 * Fails if a swap entry leads here. It is somebody else's, or
		 * that of a page that the folio has but that is not mapped.
		 */
		if (!folio_free_swap(folio)) {
			if (folio_test_large(folio) && nr < folio_nr_pages(folio) &&
			    !folio_entire_mapcount(folio)) {
				lf->split = true;
				result = LAZYFREE_LATER;
			}
			goto out;
		}
	}

	if (!lazyfree_listed(folio)) {
		if (!lazyfree_isolate(lf, folio)) {
			result = lazyfree_in_time(lf, &lf->lru_naps);
			goto out;
		}
		if (!folio_batch_add(&lf->folios, folio))
			lazyfree_flush(lf);
	}
	/* Nobody else has an entry that this could speak for. */
	if (locked)
		folio_clear_dirty(folio);
	result = LAZYFREE_DONE;
out:
	if (lock)
		folio_unlock(folio);
	/* A device may write to it for the caller: the entry must stay. */
	if (result == LAZYFREE_SHARED && folio_maybe_dma_pinned(folio))
		result = LAZYFREE_KEEP;
	return result;
}

/*
 * Something at @addr, @size bytes long, was in the way; @folio is what to wait
 * for. The first look notes that. Return: true if the second look must stop.
 */
static bool lazyfree_later(struct lazyfree *lf, unsigned long addr,
			   unsigned long size, struct folio *folio)
{
	if (!lf->patient) {
		lf->again_start = min(lf->again_start, addr);
		lf->again_end = max(lf->again_end, addr + size);
		return false;
	}
	if (addr != lf->stopped)
		lf->tries = LAZYFREE_TRIES;
	if (lf->nap) {
		if (!*lf->nap)
			return false;
	} else {
		if (!lf->tries)
			return false;
		lf->tries--;
	}
	lf->stopped = addr;
	/*
	 * It is mapped and the page-table lock is held: it can't go away. But
	 * a reference makes a migration fail, so take none if that may be why
	 * it is off the LRU.
	 */
	lf->blocker = lf->nap ? NULL : folio;
	if (lf->blocker)
		folio_get(lf->blocker);
	return true;
}

/* Let go of the folio that the second look waited for. */
static void lazyfree_release(struct lazyfree *lf)
{
	if (lf->held) {
		folio_unlock(lf->held);
		folio_put(lf->held);
		lf->held = NULL;
	}
}

#ifdef CONFIG_TRANSPARENT_HUGEPAGE
/* Return: true if there is nothing left to do below this PMD. */
static bool lazyfree_huge_pmd(struct lazyfree *lf, struct vm_area_struct *vma,
			      pmd_t *pmdp, unsigned long addr,
			      unsigned long end, bool *stop)
{
	bool whole = end - addr == HPAGE_PMD_SIZE;
	struct folio *folio;
	spinlock_t *ptl;	/* of the PMD */
	pmd_t pmd = pmdp_get_lockless(pmdp);

	if (!pmd_trans_huge(pmd) && !is_swap_pmd(pmd) && !pmd_devmap(pmd))
		return false;
	/* May flush and free pages, so not under the lock. */
	tlb_change_page_size(&lf->tlb, HPAGE_PMD_SIZE);
	ptl = pmd_trans_huge_lock(pmdp, vma);
	if (!ptl)
		return false;
	__acquire(ptl);		/* sparse does not see it */

	pmd = *pmdp;
	lf->split = false;
	lf->nap = NULL;
	if (!pmd_present(pmd)) {
		if (is_pmd_migration_entry(pmd))
			*stop = lazyfree_later(lf, addr, end - addr, NULL);
		goto out;
	}
	if (pmd_devmap(pmd) || is_huge_zero_pmd(pmd))
		goto out;

	folio = pmd_folio(pmd);
	/* One mapping leads to all pages; a part of it is not a mapping. */
	switch (lazyfree_folio(lf, folio, whole ? 1 : 0)) {
	case LAZYFREE_DONE:
		if (!pmd_young(pmd) && !pmd_dirty(pmd))
			break;
		/*
		 * Never empty, not even for a moment: madvise(MADV_DONTNEED)
		 * looks without the lock and would pass it over.
		 */
		pmdp_invalidate_ad(vma, addr, pmdp);
		set_pmd_at(vma->vm_mm, addr, pmdp, pmd_mkold(pmd_mkclean(pmd)));
		tlb_remove_pmd_tlb_entry(&lf->tlb, pmdp, addr);
		break;
	case LAZYFREE_LATER:
		*stop = lazyfree_later(lf, addr, end - addr, folio);
		break;
	case LAZYFREE_SHARED:
		spin_unlock(ptl);
		if (whole)
			return zap_huge_pmd(&lf->tlb, vma, pmdp, addr);
		/* The other side's PMD stays as it is. */
		split_huge_pmd(vma, pmdp, addr);
		return false;
	case LAZYFREE_KEEP:
		break;
	}
	lazyfree_flush(lf);
out:
	spin_unlock(ptl);
	return true;
}
#else
static inline bool lazyfree_huge_pmd(struct lazyfree *lf,
				     struct vm_area_struct *vma, pmd_t *pmdp,
				     unsigned long addr, unsigned long end,
				     bool *stop)
{
	return false;
}
#endif

/*
 * Unmap a run of entries whose folio others use. The first write to it would
 * cost a fault and a copy, so there is nothing to be gained from keeping it, and
 * the other side may get it for itself.
 */
static void lazyfree_unmap(struct lazyfree *lf, struct vm_area_struct *vma,
			   pmd_t *pmdp, unsigned long addr, pte_t *ptep,
			   struct page *page, int nr)
{
	struct mm_struct *mm = vma->vm_mm;
	pte_t pte;

	pte = get_and_clear_full_ptes(mm, addr, ptep, nr, 0);
	arch_check_zapped_pte(vma, pte);
	tlb_remove_tlb_entries(&lf->tlb, ptep, nr, addr);
	folio_remove_rmap_ptes(page_folio(page), page, nr, vma);
	add_mm_counter(mm, MM_ANONPAGES, -nr);
	collapse_note_holes(pmdp);
	/* The references of the mappings go when the TLBs are flushed. */
	lf->full |= __tlb_remove_folio_pages(&lf->tlb, page, nr, false);
}

/* A run of entries that map one folio. Return: the length of the run. */
static int lazyfree_present(struct lazyfree *lf, struct vm_area_struct *vma,
			    pmd_t *pmdp, unsigned long addr, unsigned long end,
			    pte_t *ptep, pte_t pte, bool *stop)
{
	struct page *page = vm_normal_page(vma, addr, pte);
	bool used = pte_young(pte) || pte_dirty(pte);
	enum lazyfree_result result = LAZYFREE_DONE;
	struct folio *folio;
	int nr = 1;
	bool listed;

	if (!page)
		return 1;
	folio = page_folio(page);
	if (folio_is_zone_device(folio) || !folio_test_anon(folio))
		return 1;

	if (folio_test_large(folio)) {
		bool young, dirty;

		nr = folio_pte_batch(folio, addr, ptep, pte,
				     (end - addr) >> PAGE_SHIFT,
				     FPB_IGNORE_DIRTY | FPB_IGNORE_SOFT_DIRTY,
				     NULL, &young, &dirty);
		used |= young || dirty;
	}

	listed = lazyfree_listed(folio) && !folio_test_dirty(folio);
	/* Freed before and not used since: no TLB knows it as dirty. */
	if (listed && !used)
		return nr;

	/* Used since, but nobody else's: the entries are all there is to it. */
	if (!listed || folio_test_ksm(folio) || folio_mapcount(folio) != nr)
		result = lazyfree_folio(lf, folio, nr);
	switch (result) {
	case LAZYFREE_DONE:
		if (!used)
			break;
		clear_young_dirty_ptes(vma, addr, ptep, nr,
				       CYDP_CLEAR_YOUNG | CYDP_CLEAR_DIRTY);
		tlb_remove_tlb_entries(&lf->tlb, ptep, nr, addr);
		break;
	case LAZYFREE_LATER:
		*stop = lazyfree_later(lf, addr, nr * PAGE_SIZE, folio);
		break;
	case LAZYFREE_SHARED:
		lazyfree_unmap(lf, vma, pmdp, addr, ptep, page, nr);
		break;
	case LAZYFREE_KEEP:
		break;
	}
	return nr;
}

#ifdef CONFIG_SWAP
/*
 * Find the first entry of the run whose slot could not be freed with it: the
 * swap cache has its folio, nobody else refers to it, and the folio is locked
 * or being written. Freed now, the slot would stay in use until reclaim comes
 * upon the folio. The entries are in a page table whose lock is held, so their
 * device can't go away.
 *
 * Return: how many entries come before it, and the folio with a reference in
 * @busy, or NULL there if there is none.
 */
static int lazyfree_busy_slot(swp_entry_t entry, int nr, struct folio **busy)
{
	struct swap_info_struct *si = swp_swap_info(entry);
	unsigned char *map;
	int i;

	*busy = NULL;
	/* Page tables may be corrupt; what frees the entries complains. */
	if (!si || swp_offset(entry) + nr > si->max)
		return nr;
	map = si->swap_map + swp_offset(entry);
	for (i = 0; i < nr; i++, entry.val++) {
		struct folio *folio;

		if (READ_ONCE(map[i]) != (SWAP_HAS_CACHE | 1))
			continue;
		folio = filemap_get_folio(swap_address_space(entry),
					  swap_cache_index(entry));
		if (IS_ERR(folio))
			continue;
		if (folio_test_locked(folio) || folio_test_writeback(folio)) {
			*busy = folio;
			break;
		}
		folio_put(folio);
	}
	return i;
}
#else
static inline int lazyfree_busy_slot(swp_entry_t entry, int nr,
				     struct folio **busy)
{
	*busy = NULL;
	return nr;
}
#endif

/*
 * A run of entries without a page. Swapped-out pages are freed at once: a fresh
 * page costs less than reading an old one. Return: the length of the run.
 */
static int lazyfree_absent(struct lazyfree *lf, struct mm_struct *mm,
			   pmd_t *pmdp, unsigned long addr, unsigned long end,
			   pte_t *ptep, pte_t pte, bool *stop)
{
	swp_entry_t entry = pte_to_swp_entry(pte);
	int nr;

	lf->split = false;
	lf->nap = NULL;
	if (!non_swap_entry(entry)) {
		struct folio *busy;

		nr = swap_pte_batch(ptep, (end - addr) >> PAGE_SHIFT, pte);
		nr = lazyfree_busy_slot(entry, nr, &busy);
		if (busy) {
			bool later = false;

			/* Free what comes before it, then wait for it. */
			if (!nr) {
				lf->nap = &lf->write_naps;
				*stop = lazyfree_later(lf, addr, PAGE_SIZE, busy);
				later = *stop || !lf->patient;
				nr = 1;
			}
			folio_put(busy);
			if (later)
				return 1;
		}
		clear_not_present_full_ptes(mm, addr, ptep, nr, 0);
		collapse_note_holes(pmdp);
		free_swap_and_cache_nr(entry, nr);
		add_mm_counter(mm, MM_SWAPENTS, -nr);
		return nr;
	}

	if (is_migration_entry(entry))
		*stop = lazyfree_later(lf, addr, PAGE_SIZE, NULL);
	else if (is_hwpoison_entry(entry) || is_poisoned_swp_entry(entry))
		pte_clear_not_present_full(mm, addr, ptep, 0);
	return 1;
}

/*
 * The entries below one PMD. Return: where to go on, which is @addr if the PMD
 * became huge, or empty, under our eyes. @stop says to go on only after a wait.
 */
static unsigned long lazyfree_pmd(struct lazyfree *lf,
				  struct vm_area_struct *vma, pmd_t *pmdp,
				  unsigned long addr, unsigned long end,
				  bool *stop)
{
	struct mm_struct *mm = vma->vm_mm;
	pte_t *first, *ptep;
	spinlock_t *ptl;	/* of the table */

	if (lazyfree_huge_pmd(lf, vma, pmdp, addr, end, stop))
		return end;
	tlb_change_page_size(&lf->tlb, PAGE_SIZE);
again:
	first = pte_offset_map_lock(mm, pmdp, addr, &ptl);
	if (!first)
		return addr;
	__acquire(ptl);		/* sparse does not see it */
	/* Reclaim may owe a flush for entries that it cleared in this table. */
	flush_tlb_batched_pending(mm);
	arch_enter_lazy_mmu_mode();
	for (ptep = first; addr < end && !*stop && !lf->full;) {
		pte_t pte = ptep_get(ptep);
		int nr = 1;

		if (pte_present(pte))
			nr = lazyfree_present(lf, vma, pmdp, addr, end, ptep,
					      pte, stop);
		else if (!pte_none(pte))
			nr = lazyfree_absent(lf, mm, pmdp, addr, end, ptep, pte,
					     stop);
		/* What was waited for is what the walk came to first. */
		if (unlikely(lf->held))
			lazyfree_release(lf);
		ptep += nr;
		addr += nr * PAGE_SIZE;
	}
	arch_leave_lazy_mmu_mode();
	/* The entries below this lock are all that keeps the folios. */
	lazyfree_flush(lf);
	pte_unmap_unlock(first, ptl);
	if (lf->full) {
		/* No room for more pages: free these, which flushes the TLBs. */
		lf->full = false;
		tlb_flush_mmu(&lf->tlb);
		if (addr < end && !*stop)
			goto again;
	}
	return addr;
}

/*
 * Find the first PMD at or after @addr that may have something below it. The
 * lock of the VMA is enough to keep the page tables, which the helpers of
 * pagewalk.c do not know.
 */
static pmd_t *lazyfree_find_pmd(struct mm_struct *mm, unsigned long *addr,
				unsigned long end)
{
	while (*addr < end) {
		pgd_t *pgd = pgd_offset(mm, *addr);
		unsigned long next = pgd_addr_end(*addr, end);
		p4d_t *p4d;
		pud_t *pud;
		pmd_t *pmd;

		if (!pgd_present(pgdp_get(pgd)))
			goto skip;
		p4d = p4d_offset(pgd, *addr);
		next = p4d_addr_end(*addr, end);
		if (!p4d_present(p4dp_get(p4d)))
			goto skip;
		pud = pud_offset(p4d, *addr);
		next = pud_addr_end(*addr, end);
		if (!pud_present(pudp_get(pud)))
			goto skip;
		pmd = pmd_offset(pud, *addr);
		next = pmd_addr_end(*addr, end);
		if (!pmd_none(pmdp_get_lockless(pmd)))
			return pmd;
skip:
		*addr = next;
	}
	return NULL;
}

/* Return: true if the walk stopped to wait. */
static bool lazyfree_walk(struct lazyfree *lf, struct vm_area_struct *vma,
			  unsigned long start, unsigned long end)
{
	struct mm_struct *mm = vma->vm_mm;
	struct mmu_notifier_range range;
	bool stop = false;
	pmd_t *pmdp;

	mmu_notifier_range_init(&range, MMU_NOTIFY_CLEAR, 0, mm, start, end);
	mmu_notifier_invalidate_range_start(&range);
	tlb_start_vma(&lf->tlb, vma);
	while (!stop && (pmdp = lazyfree_find_pmd(mm, &start, end))) {
		start = lazyfree_pmd(lf, vma, pmdp, start,
				     pmd_addr_end(start, end), &stop);
		cond_resched();
	}
	tlb_end_vma(&lf->tlb, vma);
	mmu_notifier_invalidate_range_end(&range);
	lazyfree_release(lf);
	return stop;
}

/**
 * lazyfree_nap - wait for something that tells nobody when it is over
 * @lf: The state of the call; lazyfree_range() or lazyfree_resume() returned
 *	-EAGAIN for it.
 *
 * Context: Process context, best without the lock on the VMA. Sleeps.
 * Return: 0, or -EINTR if the task is to die.
 */
int lazyfree_nap(struct lazyfree *lf)
{
	--*lf->nap;
	schedule_timeout_killable(1);
	return fatal_signal_pending(current) ? -EINTR : 0;
}

/*
 * A folio that is being written can't be split. Called, and returns, with the
 * folio locked, if not with an error.
 */
static int lazyfree_until_written(struct lazyfree *lf, struct folio *folio)
{
	int err = 0;

	lf->nap = &lf->write_naps;
	while (!err && folio_test_writeback(folio) && lf->write_naps) {
		folio_unlock(folio);
		err = lazyfree_nap(lf) ?: folio_lock_killable(folio);
	}
	return err;
}

/*
 * Wait for what the second look stopped at, with the lock on the VMA held and
 * nothing else. Return: 0 to go on there, -EINTR if the task is to die, -EAGAIN
 * to have the caller wait without the lock.
 */
static int lazyfree_wait(struct lazyfree *lf, struct mm_struct *mm)
{
	struct folio *folio = lf->blocker;
	bool again = false;
	int err;

	/*
	 * Others should not see stale entries while this sleeps. Nor can a
	 * folio be split while the gather holds references to a part of it.
	 */
	tlb_flush_mmu(&lf->tlb);

	if (lf->nap)
		return -EAGAIN;

	if (!folio) {
		pmd_t *pmdp = mm_find_pmd(mm, lf->stopped);

		if (pmdp && is_pmd_migration_entry(pmdp_get_lockless(pmdp)))
			pmd_migration_entry_wait(mm, pmdp);
		else if (pmdp)
			migration_entry_wait(mm, pmdp, lf->stopped);
		return fatal_signal_pending(current) ? -EINTR : 0;
	}

	err = folio_lock_killable(folio);
	if (err)
		goto put;
	if (lf->split) {
		err = lazyfree_until_written(lf, folio);
		if (err)
			goto put;
		/*
		 * If it can't be split, because it is pinned, the range keeps
		 * its part of it as it is: a device may be about to write
		 * there, and which page the pin is for can't be told. Any
		 * other reference may be gone in a moment.
		 */
		if (folio_test_large(folio) && split_folio(folio)) {
			again = !folio_maybe_dma_pinned(folio) && lf->lru_naps;
			if (!again)
				lf->tries = 0;
		}
		folio_unlock(folio);
		goto put;
	}
	/* Stays locked, or the next one could get in before the walk. */
	lf->held = folio;
	return 0;
put:
	folio_put(folio);
	if (again) {
		lf->nap = &lf->lru_naps;
		err = lazyfree_nap(lf);
	}
	return err;
}

static int lazyfree_second_look(struct lazyfree *lf, struct vm_area_struct *vma,
				unsigned long start)
{
	int err = 0;

	while (!err && lazyfree_walk(lf, vma, start, lf->again_end)) {
		err = lazyfree_wait(lf, vma->vm_mm);
		start = lf->stopped;
	}
	return err;
}

/**
 * lazyfree_begin - prepare for a call of madvise(MADV_FREE)
 * @lf: The state of the call.
 * @mm: The address space that it is for.
 *
 * Context: Process context. Ends with lazyfree_end().
 */
void lazyfree_begin(struct lazyfree *lf, struct mm_struct *mm)
{
	memset(lf, 0, sizeof(*lf));
	tlb_gather_mmu(&lf->tlb, mm);
	update_hiwater_rss(mm);
}

/**
 * lazyfree_allowed - may memory of this VMA be freed lazily?
 * @vma: The VMA.
 *
 * Only memory that has no other home than swap can be dropped, and none that
 * somebody locked or maps by page frame number.
 *
 * Context: Process context, the VMA locked for reading, or mmap_lock held.
 * Return: true if lazyfree_range() may be called for @vma.
 */
bool lazyfree_allowed(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) &&
	       !(vma->vm_flags & (VM_LOCKED | VM_HUGETLB | VM_PFNMAP));
}

/**
 * lazyfree_range - make the memory of a range lazily free
 * @lf: The state of the call.
 * @vma: The VMA that the range is in; lazyfree_allowed() says yes.
 * @start: Start of the range, page aligned.
 * @end: End of the range, page aligned.
 *
 * What belongs to the caller alone is lazily free afterwards. What others use,
 * too, is unmapped at once and stays as it is for them; what was swapped out is
 * freed at once. Only a folio that is pinned remains, if others use it, too, or
 * if it is large and the range covers a part of it.
 *
 * What may take its time is not waited for here: drop the lock, call
 * lazyfree_nap(), look up the VMA at @lf->stopped, lock it and call
 * lazyfree_resume().
 *
 * The TLBs may hold dirty entries of the range until lazyfree_end(): a write
 * that comes before is not seen as one, as if it had come before the call.
 *
 * Context: Process context, the VMA locked for reading, or mmap_lock held, at
 * least for reading. Sleeps.
 * Return: 0, -EINTR if the task is to die, or -EAGAIN if there is something to
 * wait for.
 */
int lazyfree_range(struct lazyfree *lf, struct vm_area_struct *vma,
		   unsigned long start, unsigned long end)
{
	if (fatal_signal_pending(current))
		return -EINTR;
	lf->patient = false;
	lf->off_lru = false;
	lf->lru_naps = LAZYFREE_LRU_NAPS;
	lf->write_naps = LAZYFREE_WRITE_NAPS;
	lf->stopped = end;
	lf->again_start = end;
	lf->again_end = start;
	lazyfree_walk(lf, vma, start, end);

	if (lf->again_start >= lf->again_end)
		return 0;
	if (lf->off_lru) {
		tlb_flush_mmu(&lf->tlb);
		lru_add_drain_all();
	}
	lf->patient = true;
	return lazyfree_second_look(lf, vma, lf->again_start);
}

/**
 * lazyfree_resume - go on after a wait without the lock
 * @lf: The state of the call.
 * @vma: The VMA that is there now; lazyfree_allowed() says yes.
 *
 * Context: Process context, the VMA locked for reading. Sleeps.
 * Return: As lazyfree_range().
 */
int lazyfree_resume(struct lazyfree *lf, struct vm_area_struct *vma)
{
	return lazyfree_second_look(lf, vma, lf->stopped);
}

/**
 * lazyfree_end - finish a call of madvise(MADV_FREE)
 * @lf: The state of the call.
 *
 * Flushes the TLBs, if any entry was cleaned: once, on architectures that can
 * flush across VMAs.
 *
 * Context: Process context.
 */
void lazyfree_end(struct lazyfree *lf)
{
	tlb_finish_mmu(&lf->tlb);
}
