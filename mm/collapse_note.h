/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the rest of mm notes in a page table for khugepaged to find.
 *
 * A range that khugepaged can collapse has exactly one page table, so a note
 * in the table's descriptor costs no memory, needs no lookup, and goes when the
 * table goes. Page flags serve, which mean nothing for a page table, are clear
 * in a page fresh from the allocator and may be set in one that is freed.
 * Where two tables share a page, both see the notes of either; that costs a
 * wasted look, or leaves a hole open.
 *
 * All of it is called with the lock of the page table held, which keeps the
 * table from being freed; the bits are atomic since the flags have other users.
 */
#ifndef _MM_COLLAPSE_NOTE_H
#define _MM_COLLAPSE_NOTE_H

#include <linux/mm.h>
#include <linux/page-flags.h>
#include <linux/pgtable.h>
#include <linux/sched/coredump.h>

/* Pages came back from swap; khugepaged was told, and did not look since. */
#define COLLAPSE_NOTE_SWAPIN	PG_referenced
/* swapoff brought pages back, which nobody need have used since. */
#define COLLAPSE_NOTE_SWAPOFF	PG_uptodate
/* The program gave back part of the range. */
#define COLLAPSE_NOTE_HOLES	PG_owner_2
/* khugepaged left the holes open once, and twice. */
#define COLLAPSE_NOTE_OLD	PG_workingset
#define COLLAPSE_NOTE_OLDER	PG_reclaim

#ifdef CONFIG_TRANSPARENT_HUGEPAGE

bool khugepaged_swapped_in(struct vm_area_struct *vma, unsigned long address);

static inline unsigned long *collapse_notes(pmd_t *pmd)
{
	return &pmd_page(pmdp_get_lockless(pmd))->flags;
}

/*
 * Tell khugepaged about a page that came back from swap. The first page tells;
 * the others find the note, until khugepaged looked at the range.
 */
static inline void collapse_note_swapin(struct vm_area_struct *vma, pmd_t *pmd,
					unsigned long address)
{
	unsigned long *notes;

	if (!test_bit(MMF_VM_HUGEPAGE, &vma->vm_mm->flags))
		return;
	notes = collapse_notes(pmd);
	if (!test_bit(COLLAPSE_NOTE_SWAPIN, notes) &&
	    khugepaged_swapped_in(vma, address))
		set_bit(COLLAPSE_NOTE_SWAPIN, notes);
}

/* The same where swapoff brought the page back, and not the program's use of it. */
static inline void collapse_note_swapoff(struct vm_area_struct *vma, pmd_t *pmd,
					 unsigned long address)
{
	unsigned long *notes = collapse_notes(pmd);

	if (!test_bit(COLLAPSE_NOTE_SWAPOFF, notes))
		set_bit(COLLAPSE_NOTE_SWAPOFF, notes);
	collapse_note_swapin(vma, pmd, address);
}

static inline bool collapse_was_returned(pmd_t *pmd)
{
	return test_bit(COLLAPSE_NOTE_SWAPOFF, collapse_notes(pmd));
}

/* Note that the program, not reclaim, made PTEs of this table none. */
static inline void collapse_note_holes(pmd_t *pmd)
{
	unsigned long *notes = collapse_notes(pmd);

	if (!test_bit(COLLAPSE_NOTE_HOLES, notes)) {
		set_bit(COLLAPSE_NOTE_HOLES, notes);
	} else if (test_bit(COLLAPSE_NOTE_OLD, notes)) {
		clear_bit(COLLAPSE_NOTE_OLD, notes);
		clear_bit(COLLAPSE_NOTE_OLDER, notes);
	}
}

static inline bool collapse_has_holes(pmd_t *pmd)
{
	return test_bit(COLLAPSE_NOTE_HOLES, collapse_notes(pmd));
}

/* khugepaged left the holes open; the third time is the last. */
static inline void collapse_age_holes(pmd_t *pmd)
{
	unsigned long *notes = collapse_notes(pmd);

	if (!test_bit(COLLAPSE_NOTE_OLD, notes)) {
		set_bit(COLLAPSE_NOTE_OLD, notes);
	} else if (!test_bit(COLLAPSE_NOTE_OLDER, notes)) {
		set_bit(COLLAPSE_NOTE_OLDER, notes);
	} else {
		clear_bit(COLLAPSE_NOTE_HOLES, notes);
		clear_bit(COLLAPSE_NOTE_OLD, notes);
		clear_bit(COLLAPSE_NOTE_OLDER, notes);
	}
}

/* khugepaged looks at the range: the next swap-in is news again. */
static inline void collapse_clear_swapin(pmd_t *pmd)
{
	unsigned long *notes = collapse_notes(pmd);

	if (test_bit(COLLAPSE_NOTE_SWAPIN, notes))
		clear_bit(COLLAPSE_NOTE_SWAPIN, notes);
}

/* The table is put aside, and comes back for another life. */
static inline void collapse_clear_notes(pmd_t *pmd)
{
	unsigned long *notes = collapse_notes(pmd);

	clear_bit(COLLAPSE_NOTE_SWAPIN, notes);
	clear_bit(COLLAPSE_NOTE_SWAPOFF, notes);
	clear_bit(COLLAPSE_NOTE_HOLES, notes);
	clear_bit(COLLAPSE_NOTE_OLD, notes);
	clear_bit(COLLAPSE_NOTE_OLDER, notes);
}

#else /* CONFIG_TRANSPARENT_HUGEPAGE */

static inline void collapse_note_swapin(struct vm_area_struct *vma, pmd_t *pmd,
					unsigned long address)
{
}

static inline void collapse_note_swapoff(struct vm_area_struct *vma, pmd_t *pmd,
					 unsigned long address)
{
}

static inline void collapse_note_holes(pmd_t *pmd)
{
}

#endif /* CONFIG_TRANSPARENT_HUGEPAGE */

#endif /* _MM_COLLAPSE_NOTE_H */
