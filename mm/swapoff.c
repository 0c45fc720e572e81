// SPDX-License-Identifier: GPL-2.0
/*
 * Emptying a swap area: gather, sort, stream.
 *
 * A swap slot does not tell who uses it, and the address spaces know their
 * slots in an order that has nothing to do with the order on the device. So
 * the address spaces and the shmem inodes are walked first, without any I/O,
 * and a small record is kept for every use of a slot in the area. The records
 * are sorted by slot. Then the device is read from front to back, with many
 * reads in flight, and each page that arrives is given to all users that the
 * records name for it, after which its slot is free.
 *
 * As many records are gathered as memory allows. If they don't all fit, what
 * is there is streamed, and the walk goes on from where it stopped.
 *
 * A record is a hint. Nothing keeps its user from going away, from moving or
 * from reading the page by itself in the meantime: whether it still uses the
 * slot is seen under the lock of the page table, or of the inode's pages. What
 * came into being behind the walk, by fork() or because reclaim put a page
 * back, is found by the next pass: there are passes until no slot is in use.
 *
 * Locks, outermost first: mmap_lock, folio lock, page table lock. None of them
 * is held while I/O is waited for, save a folio's own lock. A folio that has
 * been read keeps its lock while it is given to one user after the other:
 * otherwise reclaim could take it back from the first before the last has it,
 * with the same slot. The mmap_lock of each is then taken by trylock, and for
 * a single page table entry.
 */
#include <linux/blkdev.h>
#include <linux/jiffies.h>
#include <linux/log2.h>
#include <linux/memcontrol.h>
#include <linux/mempolicy.h>
#include <linux/mm.h>
#include <linux/oom.h>
#include <linux/pagemap.h>
#include <linux/pagewalk.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/swap.h>
#include <linux/swap_cgroup.h>
#include <linux/swapops.h>
#include <linux/userfaultfd_k.h>

#include "collapse_note.h"
#include "internal.h"
#include "swap.h"
#include "swapoff.h"
#include "swapoff_batch.h"

/*
 * Never have the OOM killer do what returning ENOMEM does: neither globally
 * nor in the memory cgroup that the page is charged to.
 */
#define SWAPOFF_CAREFUL	(__GFP_RETRY_MAYFAIL | __GFP_NOWARN)
#define SWAPOFF_GFP	(GFP_HIGHUSER_MOVABLE | SWAPOFF_CAREFUL)

/*
 * Reads in flight at most. Half of them are submitted at once, which is enough
 * for large requests.
 */
#define READS_MAX	1024U
#define READS_MIN	32U

/*
 * Pages in flight can't be reclaimed: they may be this part of memory, and of
 * what a memory cgroup may have that one of them belongs to.
 */
#define READS_PART	16

/*
 * How often memory for a page is waited for, and how long, before it is ENOMEM.
 * More often while pages are being written, for these are about to be free.
 */
#define HUNGRY_MAX	10
#define HUNGRY_MAX_BUSY	100
#define HUNGRY_WAIT	(HZ / 10)

/* Page tables looked at before the mmap_lock is let go of. */
#define TABLES_AT_ONCE	32

/* The owner of a record is a shmem inode, not an mm. */
#define OWNER_SHMEM	BIT(31)

/* How long the OOM killer waits for swapoff to give up. */
#define OOM_PATIENCE	(5 * HZ)

/* A page on its way in, and the records that are about it. */
struct swapoff_read {
	struct folio *folio;
	unsigned int first;
	unsigned int nr;
};

struct swapoff {
	struct swap_info_struct *si;
	struct swapoff_batch batch;

	/* Whom this pass walks, and up to where it has come. */
	struct mm_struct **mm;
	unsigned int nr_mms;
	struct shmem_swapoff_pin *pin;
	unsigned int nr_pins;
	unsigned int next_owner;
	u64 next_where;
	bool thorough;

	/* Reads in flight: a ring, filled at @head and emptied at @tail. */
	struct swapoff_read *read;
	unsigned int head, tail;
	unsigned int next_record;
	unsigned int request;	/* pages that the device takes at once */

	/* A memory cgroup where nothing can be reclaimed, and until when. */
	struct mem_cgroup *barren;
	unsigned long barren_until;

	/* Set when the OOM killer wants the memory more than we do. */
	struct notifier_block oom;
	unsigned long oom_time;
	bool oom_seen;
};

/* Is the slot used by anybody, be it that it is in the swap cache as well? */
static bool slot_used(struct swapoff *so, unsigned long slot)
{
	unsigned char count = READ_ONCE(so->si->swap_map[slot]);

	return count != SWAP_MAP_BAD && (count & ~SWAP_HAS_CACHE);
}

/* Is there a reason to stop? */
static int swapoff_stopped(struct swapoff *so)
{
	if (READ_ONCE(so->oom_seen))
		return -ENOMEM;
	return signal_pending(current) ? -EINTR : 0;
}

/*
 * Somebody needs memory so badly that a task would be killed. Giving up swapoff
 * gives the swap area back, which is memory, too: claim to have found some, and
 * stop.
 */
static int swapoff_oom(struct notifier_block *nb, unsigned long unused,
		       void *found)
{
	struct swapoff *so = container_of(nb, struct swapoff, oom);
	unsigned long *freed = found;

	/* One at a time comes here: the OOM killer has a lock. */
	if (!so->oom_seen) {
		so->oom_time = jiffies;
		WRITE_ONCE(so->oom_seen, true);
	}
	if (time_before(jiffies, so->oom_time + OOM_PATIENCE))
		*freed += 1;
	return NOTIFY_OK;
}

/* Wait for memory, for the @hungry time in a row, if it is worth it. */
static int wait_for_memory(struct swapoff *so, unsigned int *hungry)
{
	if (*hungry >= (global_node_page_state(NR_WRITEBACK) ?
			HUNGRY_MAX_BUSY : HUNGRY_MAX))
		return -ENOMEM;
	++*hungry;
	lru_add_drain();
	schedule_timeout_interruptible(HUNGRY_WAIT);
	return swapoff_stopped(so);
}

/* Gather ---------------------------------------------------------------- */

enum {
	WALK_BREAK = 1,		/* let go of the mmap_lock for a moment */
	WALK_FULL,		/* no room in the batch */
};

struct mm_gather {
	struct swapoff *so;
	unsigned int owner;
	unsigned int tables;
	unsigned long next;	/* the address to go on from */
};

static int gather_pmd(pmd_t *pmd, unsigned long addr, unsigned long end,
		      struct mm_walk *walk)
{
	struct mm_gather *gather = walk->private;
	struct swapoff *so = gather->so;
	pte_t *start, *pte;

	gather->next = addr;
	if (swapoff_batch_room(&so->batch) < (end - addr) >> PAGE_SHIFT)
		return WALK_FULL;
	/* One table at least, or there would be no end under contention. */
	if (gather->tables &&
	    (gather->tables == TABLES_AT_ONCE || need_resched() ||
	     mmap_lock_is_contended(walk->mm)))
		return WALK_BREAK;
	gather->tables++;

	/* No lock: what is seen here is looked at again when it matters. */
	start = pte_offset_map(pmd, addr);
	if (!start)
		return 0;
	__acquire(RCU);		/* sparse does not see it */
	for (pte = start; addr < end; pte++, addr += PAGE_SIZE) {
		pte_t ptent = ptep_get_lockless(pte);
		swp_entry_t entry;

		if (!is_swap_pte(ptent))
			continue;
		entry = pte_to_swp_entry(ptent);
		if (swp_type(entry) == so->si->type)
			swapoff_batch_add(&so->batch, swp_offset(entry),
					  gather->owner, addr >> PAGE_SHIFT);
	}
	pte_unmap(start);
	return 0;
}

static const struct mm_walk_ops gather_ops = {
	.pmd_entry = gather_pmd,
	.walk_lock = PGWALK_RDLOCK,
};

/* Walk from @gather->next on, as far as one hold of the mmap_lock goes. */
static int gather_some(struct mm_struct *mm, struct mm_gather *gather)
{
	VMA_ITERATOR(vmi, mm, gather->next);
	struct vm_area_struct *vma;
	int ret = 0;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	gather->tables = 0;
	if (!check_stable_address_space(mm)) {
		for_each_vma(vmi, vma) {
			if (!vma->anon_vma || is_vm_hugetlb_page(vma))
				continue;
			ret = walk_page_range_vma(vma, max(vma->vm_start,
							   gather->next),
						  vma->vm_end, &gather_ops,
						  gather);
			if (ret)
				break;
		}
	}
	mmap_read_unlock(mm);
	return ret;
}

static int gather_mm(struct swapoff *so, struct mm_struct *mm)
{
	struct mm_gather gather = {
		.so = so,
		.owner = so->next_owner,
		.next = so->next_where << PAGE_SHIFT,
	};
	int ret = 0;

	/* On its way out: it lets go of its slots by itself. */
	if (!mmget_not_zero(mm))
		return 0;

	/*
	 * Most have no swap at all, and large page tables. The counter can lag
	 * behind fork(), so don't trust it for ever.
	 */
	if (so->thorough || percpu_counter_sum(&mm->rss_stat[MM_SWAPENTS]) > 0) {
		while ((ret = gather_some(mm, &gather)) == WALK_BREAK) {
			cond_resched();
			ret = swapoff_stopped(so);
			if (ret)
				break;
		}
	}
	so->next_where = gather.next >> PAGE_SHIFT;
	mmput(mm);
	return ret;
}

/*
 * Fill the batch, going on from where the last call stopped.
 * Returns WALK_FULL if there is more to come, 0 if not, or an error.
 */
static int gather(struct swapoff *so)
{
	unsigned int mm, hungry = 0;
	int ret;

	while (so->next_owner < so->nr_pins + so->nr_mms) {
		ret = swapoff_stopped(so);
		if (ret)
			return ret;
		if (!swapoff_batch_reserve(&so->batch)) {
			if (so->batch.nr)
				return WALK_FULL;
			ret = wait_for_memory(so, &hungry);
			if (ret)
				return ret;
			continue;
		}

		if (so->next_owner < so->nr_pins) {
			ret = shmem_swapoff_gather(&so->pin[so->next_owner],
						   so->si->type,
						   so->next_owner | OWNER_SHMEM,
						   &so->next_where, &so->batch);
		} else {
			mm = so->next_owner - so->nr_pins;
			ret = gather_mm(so, so->mm[mm]);
		}
		if (ret < 0)
			return ret;
		if (!ret) {
			so->next_owner++;
			so->next_where = 0;
		}
		cond_resched();
	}
	return 0;
}

/* Pin all mms that may have swap. Their memory is theirs to free. */
static int pin_mms(struct swapoff *so)
{
	struct mm_struct *mm;
	unsigned int nr, room = 0;

	for (;;) {
		nr = 0;
		spin_lock(&mmlist_lock);
		list_for_each_entry(mm, &init_mm.mmlist, mmlist) {
			if (nr < room) {
				mmgrab(mm);
				so->mm[nr] = mm;
			}
			nr++;
		}
		spin_unlock(&mmlist_lock);
		so->nr_mms = min(nr, room);
		if (nr <= room)
			return 0;

		while (so->nr_mms)
			mmdrop(so->mm[--so->nr_mms]);
		kvfree(so->mm);
		room = nr + nr / 8 + 16;
		so->mm = kvmalloc_array(room, sizeof(*so->mm),
					GFP_KERNEL | SWAPOFF_CAREFUL);
		if (!so->mm)
			return -ENOMEM;
	}
}

static int pin_owners(struct swapoff *so)
{
	so->next_owner = 0;
	so->next_where = 0;
	return shmem_swapoff_pin(&so->pin, &so->nr_pins) ?: pin_mms(so);
}

static void unpin_owners(struct swapoff *so)
{
	while (so->nr_mms)
		mmdrop(so->mm[--so->nr_mms]);
	kvfree(so->mm);
	so->mm = NULL;
	shmem_swapoff_unpin(so->pin, so->nr_pins);
	so->pin = NULL;
	so->nr_pins = 0;
}

/* Stream: giving a page to its users ------------------------------------- */

/* Lock a folio and see the end of its writeback. */
static void lock_settled(struct folio *folio)
{
	folio_lock(folio);
	folio_wait_writeback(folio);
}

/* Is the locked folio still what the slot holds? */
static bool folio_has_slot(struct folio *folio, swp_entry_t entry)
{
	return folio_test_swapcache(folio) && entry.val >= folio->swap.val &&
	       entry.val - folio->swap.val < folio_nr_pages(folio);
}

/* What a read fault would do about the right to write. */
static pte_t pte_as_read_fault(struct vm_area_struct *vma, struct page *page,
			       pte_t old, bool exclusive)
{
	/* Nobody has used the page: it is not young. */
	pte_t pte = pte_mkold(mk_pte(page, vma->vm_page_prot));

	if (pte_swp_soft_dirty(old))
		pte = pte_mksoft_dirty(pte);
	if (pte_swp_uffd_wp(old))
		pte = pte_mkuffd_wp(pte);
	if (exclusive && (vma->vm_flags & VM_WRITE) &&
	    !userfaultfd_pte_wp(vma, pte) && !pte_needs_soft_dirty_wp(vma, pte))
		pte = pte_mkwrite(pte, vma);
	return pte;
}

/*
 * Put the page of a slot into one page table, if the slot is there.
 *
 * The mmap_lock is held for reading, and @cached, the folio in the swap cache or
 * one that nobody else knows, is locked and not under writeback.
 */
static int map_slot(struct mm_struct *mm, unsigned long addr, swp_entry_t entry,
		    struct folio *cached)
{
	struct page *page = folio_file_page(cached, swp_offset(entry));
	struct folio *folio;
	struct vm_area_struct *vma;
	spinlock_t *ptl;	/* of the page table */
	bool exclusive, poisoned;
	pte_t *pte, old, new;
	pmd_t *pmd;

	if (check_stable_address_space(mm))
		return 0;
	vma = vma_lookup(mm, addr);
	if (!vma || !vma->anon_vma)
		return 0;
	pmd = mm_find_pmd(mm, addr);
	if (!pmd)
		return 0;

	folio = cached;
	if (folio_test_anon(cached)) {
		folio = ksm_copy_at_swapin(cached, vma, addr, SWAPOFF_GFP);
		if (!folio)
			return -ENOMEM;
	}
	poisoned = IS_ERR(folio) || PageHWPoison(page);
	if (IS_ERR(folio))
		folio = cached;

	pte = pte_offset_map_lock(mm, pmd, addr, &ptl);
	if (!pte)
		goto put_copy;
	__acquire(ptl);		/* sparse does not see it */
	old = ptep_get(pte);
	if (!is_swap_pte(old) || pte_to_swp_entry(old).val != entry.val)
		goto unlock;

	dec_mm_counter(mm, MM_SWAPENTS);
	if (poisoned || !folio_test_uptodate(cached)) {
		/* The data is lost. Say so when it is asked for, not before. */
		set_pte_at(mm, addr, pte,
			   swp_entry_to_pte(poisoned ? make_hwpoison_entry(page) :
					    make_poisoned_swp_entry()));
		swap_free(entry);
		goto unlock;
	}

	arch_swap_restore(folio_swap(entry, folio), folio);
	inc_mm_counter(mm, MM_ANONPAGES);
	folio_get(folio);
	if (folio != cached) {
		page = folio_page(folio, 0);
		exclusive = true;
		folio_add_new_anon_rmap(folio, vma, addr, RMAP_EXCLUSIVE);
		folio_add_lru_vma(folio, vma);
	} else {
		rmap_t flags;

		/*
		 * One that is not in the swap cache is this entry's alone, even
		 * if a fork has doubled the entry since the slot was looked at:
		 * the child has a use of the slot by itself, and reads it anew.
		 */
		exclusive = !folio_test_swapcache(folio) ||
			    (pte_swp_exclusive(old) && !folio_test_ksm(folio));
		flags = exclusive ? RMAP_EXCLUSIVE : RMAP_NONE;
		if (folio_test_anon(folio)) {
			folio_add_anon_rmap_pte(folio, page, vma, addr, flags);
		} else {
			/* Fresh from the device, so it is a small one. */
			VM_WARN_ON_ONCE_FOLIO(folio_test_large(folio), folio);
			folio_add_new_anon_rmap(folio, vma, addr, flags);
			mlock_vma_folio(folio, vma);
		}
	}
	new = pte_as_read_fault(vma, page, old, exclusive);
	set_pte_at(mm, addr, pte, new);
	collapse_note_swapoff(vma, pmd, addr);
	swap_free(entry);
unlock:
	pte_unmap_unlock(pte, ptl);
put_copy:
	if (folio != cached) {
		folio_unlock(folio);
		folio_put(folio);
	}
	return 0;
}

/*
 * Take the mmap_lock while holding the folio lock, which is the wrong way
 * round: unless it is free, let go of the folio first. Returns with the folio
 * locked and not under writeback in any case.
 */
static int lock_mm(struct swapoff *so, struct mm_struct *mm,
		   struct folio *folio)
{
	int ret;

	while (!mmap_read_trylock(mm)) {
		folio_unlock(folio);
		ret = mmap_read_lock_killable(mm);
		if (!ret) {
			if (folio_trylock(folio)) {
				if (!folio_test_writeback(folio))
					return 0;
				folio_unlock(folio);
			}
			mmap_read_unlock(mm);
		}
		lock_settled(folio);
		if (!ret)
			ret = swapoff_stopped(so);
		if (ret)
			return ret;
	}
	return 0;
}

/* Give the locked @folio to the user that one record names. */
static int give_to_mm(struct swapoff *so, const struct swapoff_record *record,
		      struct folio *folio)
{
	struct mm_struct *mm = so->mm[record->owner - so->nr_pins];
	swp_entry_t entry = swp_entry(so->si->type, record->slot);
	int ret;

	if (!mmget_not_zero(mm))
		return 0;
	ret = lock_mm(so, mm, folio);
	if (!ret) {
		/* The folio may have been without its lock for a moment. */
		if (folio_has_slot(folio, entry))
			ret = map_slot(mm, record->where << PAGE_SHIFT, entry,
				       folio);
		mmap_read_unlock(mm);
	}
	/* Not mmput(): the end of an mm must not wait for our folio. */
	mmput_async(mm);
	return ret;
}

/* Wait for the page of one slot, give it to all its users, free the slot. */
static int finish_read(struct swapoff *so, const struct swapoff_read *read)
{
	const struct swapoff_record *record = &so->batch.record[read->first];
	swp_entry_t entry = swp_entry(so->si->type, record->slot);
	struct folio *folio = read->folio;
	unsigned int i;
	int ret = 0;

	folio_lock(folio);
	if (!folio_has_slot(folio, entry))
		goto unlock;
	if (!folio_test_uptodate(folio) && !folio_test_large(folio) &&
	    !folio_test_hwpoison(folio)) {
		/*
		 * An error in one sector can fail the whole of a request, of
		 * which this page was a small part: ask for it alone. But not
		 * into memory that has failed.
		 */
		swap_read_folio(folio, NULL);
		folio_lock(folio);
		if (!folio_has_slot(folio, entry))
			goto unlock;
	}
	folio_wait_writeback(folio);

	if (record->owner & OWNER_SHMEM) {
		folio_unlock(folio);
		return shmem_swapoff_page(&so->pin[record->owner & ~OWNER_SHMEM],
					  so->si->type, record->where,
					  SWAPOFF_CAREFUL);
	}
	for (i = 0; i < read->nr && !ret; i++)
		ret = give_to_mm(so, &record[i], folio);
	/*
	 * As soon as can be: as long as the folio is in the swap cache, reclaim
	 * has no other slot for it than this one.
	 */
	folio_free_swap(folio);
unlock:
	folio_unlock(folio);
	return ret;
}

/* Stream: keeping the device busy ----------------------------------------- */

/* How many reads may be in flight now. */
static unsigned int reads_allowed(struct swapoff *so)
{
	/* A device that reads at once gains nothing; keep the caches warm. */
	if (so->si->flags & SWP_SYNCHRONOUS_IO)
		return READS_MIN;
	return clamp(si_mem_available() / READS_PART, (long)READS_MIN,
		     (long)READS_MAX);
}

#ifdef CONFIG_MEMCG
static unsigned long reclaim_from(struct mem_cgroup *memcg)
{
	return try_to_free_mem_cgroup_pages(memcg, SWAP_CLUSTER_MAX,
					    GFP_KERNEL | SWAPOFF_CAREFUL,
					    MEMCG_RECLAIM_MAY_SWAP, NULL);
}

/*
 * The page of @entry is about to be charged to the memory cgroup that it came
 * from, or to ours if that is gone. If not much room is left there, make some:
 * the others there need memory, too, and for them the OOM killer would come. If
 * there is nothing to reclaim, those whose pages these are get them as long as
 * they fit, but our own cgroup does not pay with its last pages for somebody
 * else. Not more than a part of the limit is in flight; @allowed is lowered
 * accordingly.
 */
static int leave_room(struct swapoff *so, swp_entry_t entry,
		      unsigned int *allowed)
{
	struct mem_cgroup *memcg, *tight = NULL;
	bool theirs, found;

	if (mem_cgroup_disabled())
		return 0;

	rcu_read_lock();
	memcg = mem_cgroup_from_id(lookup_swap_cgroup_id(entry));
	theirs = memcg && !css_is_dying(&memcg->css);
	if (!theirs)
		memcg = mem_cgroup_from_task(current);
	for (; memcg; memcg = parent_mem_cgroup(memcg)) {
		unsigned long max = READ_ONCE(memcg->memory.max);
		unsigned int part = clamp(max / READS_PART,
					  (unsigned long)READS_MIN,
					  (unsigned long)READS_MAX);

		*allowed = min(*allowed, part);
		if (page_counter_read(&memcg->memory) + part > max)
			tight = memcg;
	}
	/* Where there was nothing a moment ago, don't look for each page. */
	found = tight && tight == so->barren &&
		time_before(jiffies, so->barren_until);
	if (!tight || found || !css_tryget(&tight->css)) {
		rcu_read_unlock();
		return found && !theirs ? -ENOMEM : 0;
	}
	rcu_read_unlock();

	found = reclaim_from(tight);
	if (!found) {
		/*
		 * Reclaim goes by statistics that can be seconds old. What
		 * comes back from swap is mostly active; with those of before
		 * it may believe that enough is not, and age nothing.
		 */
		mem_cgroup_flush_stats(tight);
		found = reclaim_from(tight);
	}
	if (!found) {
		/* For comparison; there may be another one there by then. */
		so->barren = tight;
		so->barren_until = jiffies + HUNGRY_WAIT;
	}
	css_put(&tight->css);
	return found || theirs ? 0 : -ENOMEM;
}
#else
static inline int leave_room(struct swapoff *so, swp_entry_t entry,
			     unsigned int *allowed)
{
	return 0;
}
#endif

/* Where the first user of a slot wants its memory. Returned with a reference. */
static struct mempolicy *policy_of(struct swapoff *so,
				   const struct swapoff_record *record,
				   pgoff_t *ilx, struct swap_iocb **plug)
{
	struct mempolicy *policy = NULL;
	struct vm_area_struct *vma;
	struct mm_struct *mm;

	*ilx = NO_INTERLEAVE_INDEX;
	if (nr_online_nodes == 1)
		goto out;

	if (record->owner & OWNER_SHMEM) {
		policy = shmem_swapoff_policy(&so->pin[record->owner &
						       ~OWNER_SHMEM],
					      record->where, ilx);
		if (policy)
			return policy;
		goto out;
	}

	mm = so->mm[record->owner - so->nr_pins];
	if (!mmget_not_zero(mm))
		goto out;
	if (!mmap_read_trylock(mm)) {
		/* Whoever has it may wait for a read that is in the plug. */
		swap_read_unplug(*plug);
		*plug = NULL;
		if (mmap_read_lock_killable(mm)) {
			mmput_async(mm);
			goto out;
		}
	}
	vma = vma_lookup(mm, record->where << PAGE_SHIFT);
	if (vma) {
		policy = get_vma_policy(vma, record->where << PAGE_SHIFT, 0,
					ilx);
		/* One reference, whether it came with one or not. */
		mpol_get(policy);
		mpol_cond_put(policy);
	}
	mmap_read_unlock(mm);
	mmput_async(mm);
out:
	if (!policy) {
		policy = get_task_policy(current);
		mpol_get(policy);
	}
	return policy;
}

/*
 * A device that reads at once does not need the swap cache, either, if the slot
 * has a single user: much of the work would be to put the page in there and to
 * take it out again. Slots like these are read as do_swap_page() reads them,
 * with SWAP_HAS_CACHE as the claim that keeps everybody else away.
 *
 * Some wait for the end of the claim with an mmap_lock held: nothing may be
 * waited for that they could hold. Returns -EAGAIN if that is not possible.
 *
 * If the user has let go of the slot meanwhile, or has moved the entry, map_slot()
 * does not find it, and the page that was read goes again. With the area out of
 * use nobody gets this slot anew, so an entry that is the same still is the same
 * use. Whoever drops the last use leaves the slot to swapcache_clear().
 */
static int read_for_one(struct swapoff *so, const struct swapoff_record *record,
			struct mempolicy *policy, pgoff_t ilx)
{
	swp_entry_t entry = swp_entry(so->si->type, record->slot);
	struct mm_struct *mm = so->mm[record->owner - so->nr_pins];
	struct folio *folio;
	int ret = -ENOMEM;

	folio = folio_alloc_mpol(SWAPOFF_GFP, 0, policy, ilx, numa_node_id());
	if (!folio)
		return ret;
	__folio_set_locked(folio);
	__folio_set_swapbacked(folio);
	if (mem_cgroup_swapin_charge_folio(folio, NULL, SWAPOFF_GFP, entry))
		goto put;
	ret = -EAGAIN;
	if (swapcache_prepare(entry, 1))
		goto put;

	folio->swap = entry;
	swap_read_folio(folio, NULL);
	folio->private = NULL;
	folio_lock(folio);
	if (!folio_test_uptodate(folio))
		goto clear;

	if (!mmget_not_zero(mm)) {
		ret = 0;
		goto clear;
	}
	if (mmap_read_trylock(mm)) {
		/* Not a refault: the program has not asked for the page. */
		folio_add_lru(folio);
		ret = map_slot(mm, record->where << PAGE_SHIFT, entry, folio);
		mmap_read_unlock(mm);
	}
	mmput_async(mm);
clear:
	swapcache_clear(so->si, entry, 1);
put:
	folio_unlock(folio);
	folio_put(folio);
	return ret;
}

/*
 * Have the page of one slot, which @nr records are about, in the swap cache or
 * on its way there. Returns NULL if there is nothing to wait for: nobody uses
 * the slot any more, or its user has the page.
 */
static struct folio *start_read(struct swapoff *so,
				const struct swapoff_record *record,
				unsigned int nr, unsigned int *allowed,
				struct swap_iocb **plug)
{
	swp_entry_t entry = swp_entry(so->si->type, record->slot);
	unsigned char count = READ_ONCE(so->si->swap_map[record->slot]);
	struct folio *folio = NULL;
	struct mempolicy *policy;
	int ret = -EAGAIN;
	bool fresh;
	pgoff_t ilx;

	if (!slot_used(so, record->slot))
		return NULL;
	/* What the swap cache has is charged already. */
	if (!(count & SWAP_HAS_CACHE)) {
		ret = leave_room(so, entry, allowed);
		if (ret)
			return ERR_PTR(ret);
		ret = -EAGAIN;
	}
	policy = policy_of(so, record, &ilx, plug);
	if (nr == 1 && count == 1 && so->si->flags & SWP_SYNCHRONOUS_IO &&
	    !(record->owner & OWNER_SHMEM))
		ret = read_for_one(so, record, policy, ilx);
	if (ret == -EAGAIN)
		folio = __read_swap_cache_async(entry, SWAPOFF_GFP, policy, ilx,
						&fresh, false);
	mpol_put(policy);
	if (ret != -EAGAIN)
		return ERR_PTR(ret);
	if (!folio)
		return slot_used(so, record->slot) ? ERR_PTR(-ENOMEM) : NULL;
	if (fresh)
		swap_read_folio(folio, plug);
	return folio;
}

/*
 * How many pages the device takes in one request. Some take more if the pages
 * are neighbours in memory, which these seldom are.
 */
static unsigned int request_pages(const struct swap_info_struct *si)
{
	struct request_queue *q;

	if (!si->bdev)
		return READS_MAX;
	q = bdev_get_queue(si->bdev);
	return clamp(queue_max_sectors(q) >> (PAGE_SHIFT - SECTOR_SHIFT), 1U,
		     (unsigned int)queue_max_segments(q));
}

/*
 * Submit reads until @allowed are in flight, or a request ends shortly before
 * that and the next one would be cut: at the end of a run of neighbours, or of
 * what the device takes at once. Fewer if the memory cgroups are too small for
 * that, or the records end.
 */
static int start_reads(struct swapoff *so, unsigned int *allowed)
{
	struct swap_iocb *splug = NULL;
	struct swapoff_read *read;
	struct blk_plug plug;
	struct folio *folio;
	unsigned int nr, run = 0;
	u32 slot = 0;
	int ret = 0;

	/* Neighbours become one request of the device. */
	blk_start_plug(&plug);
	while (so->next_record < so->batch.nr && so->head - so->tail < *allowed) {
		if (so->batch.record[so->next_record].slot != slot + 1)
			run = 0;
		/* Rather one large request less than two small ones. */
		if (so->head - so->tail > *allowed / 4 * 3 &&
		    run % so->request == 0)
			break;
		ret = swapoff_stopped(so);
		if (ret)
			break;
		slot = so->batch.record[so->next_record].slot;
		run++;
		nr = swapoff_batch_group(&so->batch, so->next_record);
		folio = start_read(so, &so->batch.record[so->next_record], nr,
				   allowed, &splug);
		if (IS_ERR(folio)) {
			ret = PTR_ERR(folio);
			break;
		}
		if (folio) {
			read = &so->read[so->head++ % READS_MAX];
			read->folio = folio;
			read->first = so->next_record;
			read->nr = nr;
		}
		so->next_record += nr;
		cond_resched();
	}
	blk_finish_plug(&plug);
	swap_read_unplug(splug);
	return ret;
}

/* Read all slots of the batch in order, and leave the batch empty. */
static int stream(struct swapoff *so)
{
	unsigned int flying, allowed = 0, hungry = 0, before;
	struct swapoff_read *read;
	bool starved = false;
	int ret = 0;

	swapoff_batch_sort(&so->batch);
	so->head = 0;
	so->tail = 0;
	so->next_record = 0;
	for (;;) {
		flying = so->head - so->tail;
		if (!flying || (!starved && flying <= allowed / 2)) {
			allowed = reads_allowed(so);
			before = so->next_record;
			ret = start_reads(so, &allowed);
			if (so->next_record != before)
				hungry = 0;
			flying = so->head - so->tail;
			/*
			 * Those that are there already can be given away, and
			 * swapped out to another area; then there is memory for
			 * the next, once they have been written.
			 */
			starved = ret == -ENOMEM;
			if (starved && !flying) {
				ret = wait_for_memory(so, &hungry);
				if (ret)
					break;
				continue;
			}
			if (!flying || (ret && !starved))
				break;
		}
		ret = swapoff_stopped(so);
		if (ret)
			break;
		read = &so->read[so->tail++ % READS_MAX];
		do {
			/* Some users want a copy, or have tables to grow. */
			ret = finish_read(so, read);
			if (ret != -ENOMEM)
				break;
			ret = wait_for_memory(so, &hungry);
		} while (!ret);
		folio_put(read->folio);
		if (ret)
			break;
		hungry = 0;
		cond_resched();
	}

	/* What is still on its way comes to rest in the swap cache. */
	while (so->tail != so->head)
		folio_put(so->read[so->tail++ % READS_MAX].folio);
	so->batch.nr = 0;
	return ret;
}

/* ------------------------------------------------------------------------ */

/* Free the slots that nobody but the swap cache has. */
static int free_cached(struct swapoff *so)
{
	struct swap_info_struct *si = so->si;
	unsigned char *map = si->swap_map;
	struct folio *folio;
	swp_entry_t entry;
	unsigned long slot;
	int ret;

	for (slot = 0; slot < si->max && READ_ONCE(si->inuse_pages); slot++) {
		unsigned char count = READ_ONCE(map[slot]);

		if (!(slot % SZ_64K)) {
			ret = swapoff_stopped(so);
			if (ret)
				return ret;
			cond_resched();
		}
		if (!count) {
			unsigned long next = min_t(unsigned long, si->max,
						   ALIGN(slot + 1, SZ_64K));
			unsigned char *used = memchr_inv(map + slot, 0,
							 next - slot);

			/* The loop adds one */
			slot = (used ? used - map : next) - 1;
		}
		if (count != SWAP_HAS_CACHE)
			continue;

		entry = swp_entry(si->type, slot);
		folio = swap_cache_get_folio(entry, NULL, 0);
		if (!folio)
			continue;
		/* It may be another slot's by now: that is just as well. */
		lock_settled(folio);
		folio_free_swap(folio);
		folio_unlock(folio);
		folio_put(folio);
	}
	return 0;
}

/* Walk everybody once, and read what they have in the area. */
static int one_pass(struct swapoff *so)
{
	int more, ret;

	ret = pin_owners(so);
	while (!ret) {
		more = gather(so);
		ret = more < 0 ? more : stream(so);
		if (more != WALK_FULL)
			break;
	}
	unpin_owners(so);
	so->batch.nr = 0;
	return ret;
}

static int passes(struct swapoff *so)
{
	struct swap_info_struct *si = so->si;
	unsigned int before, wait = 1;
	int ret;

	for (;;) {
		before = READ_ONCE(si->inuse_pages);
		ret = free_cached(so);
		if (!READ_ONCE(si->inuse_pages))
			return 0;
		ret = ret ?: one_pass(so);
		if (!READ_ONCE(si->inuse_pages))
			return 0;
		ret = ret ?: swapoff_stopped(so);
		if (ret)
			return ret;

		/*
		 * What is left belongs to somebody who is about to let go of it
		 * (an exit, a page on its way to shmem's swap) or who has just
		 * got it (a fork, reclaim). There is no limit to how often that
		 * can happen, but no hurry either.
		 */
		wait = READ_ONCE(si->inuse_pages) < before ? 1 : 2 * wait;
		so->thorough = wait > 1;
		schedule_timeout_interruptible(min(wait, HZ / 4));
		wait = min(wait, HZ);
	}
}

/**
 * swapoff_prepare - have swapoff_fits() see what is there now
 *
 * Context: Process context. May sleep.
 */
void swapoff_prepare(void)
{
#ifdef CONFIG_MEMCG
	if (!mem_cgroup_disabled())
		mem_cgroup_flush_stats(root_mem_cgroup);
#endif
}

/**
 * swapoff_fits - can the memory cgroups take what they have in swap?
 * @si: the area that is to go
 *
 * As long as swapoff is at work, and if there is no other area, the tasks in a
 * memory cgroup can't be swapped out at all. If the limit is too low for what
 * comes back, one would be killed sooner or later: better say so before the
 * area is put out of use. The counters are not exact; when in doubt, try.
 *
 * Context: Any, after swapoff_prepare(), with swap_lock held.
 * Return: false if a memory cgroup has not enough room.
 */
bool swapoff_fits(struct swap_info_struct *si)
{
#ifdef CONFIG_MEMCG
	unsigned long error = 2 * MEMCG_CHARGE_BATCH * num_online_cpus();
	struct mem_cgroup *memcg;

	/* Version 1 has no counter for swap alone. */
	if (mem_cgroup_disabled() || total_swap_pages > si->pages ||
	    !cgroup_subsys_on_dfl(memory_cgrp_subsys))
		return true;

	/* What removed ones have in swap counts for their parents, but is ours. */
	for (memcg = mem_cgroup_iter(NULL, NULL, NULL); memcg;
	     memcg = mem_cgroup_iter(NULL, memcg, NULL))
		if (css_is_dying(&memcg->css))
			error += page_counter_read(&memcg->swap);

	for (memcg = mem_cgroup_iter(NULL, NULL, NULL); memcg;
	     memcg = mem_cgroup_iter(NULL, memcg, NULL)) {
		unsigned long max = READ_ONCE(memcg->memory.max);
		unsigned long used = page_counter_read(&memcg->memory) +
				     page_counter_read(&memcg->swap);
		unsigned long less = error;

		/* In the swap cache, it counts twice. */
		less += memcg_page_state(memcg, NR_SWAPCACHE);
		less += memcg_page_state(memcg, NR_INACTIVE_FILE);
		less += memcg_page_state(memcg, NR_ACTIVE_FILE);
		less += memcg_page_state(memcg, NR_SLAB_RECLAIMABLE_B) >>
			PAGE_SHIFT;
		if (!css_is_dying(&memcg->css) && used > max &&
		    used - max > less) {
			mem_cgroup_iter_break(NULL, memcg);
			return false;
		}
	}
#endif
	return true;
}

/**
 * swapoff_drain - empty a swap area
 * @si: the area; the caller has seen to it that no slot is allocated any more
 *
 * Read everything that is in the area and give it back to whoever uses it,
 * until no slot is in use.
 *
 * Context: Process context. May sleep. Several areas can be emptied at once.
 * Return: 0 when the area is empty. -EINTR on a signal, and -ENOMEM where there
 * is no memory for what is left, or where the OOM killer would have killed for
 * it. Then what has been brought in is in memory, and nothing is lost.
 */
int swapoff_drain(struct swap_info_struct *si)
{
	struct swapoff so = {
		.si = si,
		.request = request_pages(si),
		.oom.notifier_call = swapoff_oom,
	};
	int ret;

	if (READ_ONCE(si->inuse_pages)) {
		so.read = kvmalloc_array(READS_MAX, sizeof(*so.read),
					 GFP_KERNEL | SWAPOFF_CAREFUL);
		if (!so.read)
			return -ENOMEM;

		/* Records for a part of memory, but always for 64 Ki uses. */
		swapoff_batch_init(&so.batch,
				   max(si_mem_available() / 8, (long)SZ_1M >> PAGE_SHIFT) *
				   (PAGE_SIZE / sizeof(struct swapoff_record)));
		register_oom_notifier(&so.oom);
		ret = passes(&so);
		unregister_oom_notifier(&so.oom);
		swapoff_batch_destroy(&so.batch);
		kvfree(so.read);
		if (ret)
			return ret;
	}

	/*
	 * The caller frees what the release of the last slot has used: it must
	 * not do so before that is over. Pairs with smp_wmb() in
	 * swap_range_free().
	 */
	smp_mb();
	return 0;
}
