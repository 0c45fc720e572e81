/* SPDX-License-Identifier: GPL-2.0 */
/*
 * May a range of anonymous memory become a huge page, and if not, why?
 *
 * khugepaged walks the page table of the range twice, once to look and once to
 * take the pages, and counts what it meets. The decision is made here, from
 * the counts alone, so that both walks decide alike and all of it can be
 * tested without a page table.
 */
#ifndef _MM_COLLAPSE_H
#define _MM_COLLAPSE_H

#include <linux/minmax.h>
#include <linux/types.h>

enum collapse_verdict {
	COLLAPSE_MAY,
	COLLAPSE_TOO_MANY_NONE,
	COLLAPSE_TOO_MANY_SWAP,
	COLLAPSE_TOO_MANY_SHARED,
	COLLAPSE_UFFD,
	COLLAPSE_KSM,
	COLLAPSE_LAZYFREE,
	COLLAPSE_NO_PAGES,
	COLLAPSE_UNWRITTEN,
	COLLAPSE_NOT_YOUNG,
};

/**
 * struct collapse_facts - what the page table of a range holds
 * @none: PTEs that map nothing.
 * @zero: PTEs of the shared zero page, those that KSM made too.
 * @swap: PTEs whose page is in swap, or otherwise unmapped for the moment.
 * @writable: PTEs of a page, with permission to write.
 * @readonly: PTEs of a page, without.
 * @shared: Those of the two above whose page other processes map as well.
 * @ksm: PTEs of a page that KSM merged, or of the zero page in its place.
 * @lazyfree: PTEs of a page that may be dropped, see madvise(MADV_FREE).
 * @uffd_wp: PTEs that userfaultfd protects against writing.
 * @young: PTEs of a page that was used lately.
 */
struct collapse_facts {
	unsigned int none;
	unsigned int zero;
	unsigned int swap;
	unsigned int writable;
	unsigned int readonly;
	unsigned int shared;
	unsigned int ksm;
	unsigned int lazyfree;
	unsigned int uffd_wp;
	unsigned int young;
};

/**
 * struct collapse_limits - how much of what a range may have
 * @asked: The program asks for it, with madvise(MADV_COLLAPSE).
 * @returned: swapoff brought pages back, which nobody need have used since.
 * @size: Number of PTEs of a range.
 * @none: How many may map nothing, or the shared zero page.
 * @swap: How many pages may have to be read from swap.
 * @shared: How many pages may be mapped by other processes as well.
 */
struct collapse_limits {
	bool asked;
	bool returned;
	unsigned int size;
	unsigned int none;
	unsigned int swap;
	unsigned int shared;
};

/**
 * collapse_keep_holes() - Fill few holes only.
 * @limits: What is allowed, and will be less.
 *
 * For a range of which the program gave part back: it fits the program's needs,
 * not just those of the moment at which its pages were touched. What is left
 * to fill may be an eighth, no more than may have to be read from swap.
 *
 * Context: Any.
 */
static inline void collapse_keep_holes(struct collapse_limits *limits)
{
	limits->none = min(limits->none, limits->size / 8);
}

/**
 * collapse_refuses() - Can this range not be collapsed, whatever follows?
 * @facts: What was counted so far.
 * @limits: What is allowed.
 *
 * For use in the middle of a walk: as the counts grow, a verdict other than
 * COLLAPSE_MAY stays one.
 *
 * Context: Any.
 * Return: COLLAPSE_MAY if nothing speaks against it yet, or the reason.
 */
static inline enum collapse_verdict
collapse_refuses(const struct collapse_facts *facts,
		 const struct collapse_limits *limits)
{
	/* The protection of single pages would be lost, whoever asks. */
	if (facts->uffd_wp)
		return COLLAPSE_UFFD;
	if (facts->none + facts->zero > limits->none)
		return COLLAPSE_TOO_MANY_NONE;
	if (facts->swap > limits->swap)
		return COLLAPSE_TOO_MANY_SWAP;
	if (facts->shared > limits->shared)
		return COLLAPSE_TOO_MANY_SHARED;
	if (limits->asked)
		return COLLAPSE_MAY;
	/* KSM would merge them again, and split the huge page for it. */
	if (facts->ksm)
		return COLLAPSE_KSM;
	/* In a huge page they would come back to life. */
	if (facts->lazyfree)
		return COLLAPSE_LAZYFREE;
	return COLLAPSE_MAY;
}

/**
 * collapse_decide() - May this range be collapsed?
 * @facts: What the whole range holds.
 * @limits: What is allowed.
 *
 * Context: Any.
 * Return: COLLAPSE_MAY, or the reason why not.
 */
static inline enum collapse_verdict
collapse_decide(const struct collapse_facts *facts,
		const struct collapse_limits *limits)
{
	unsigned int unwritten = facts->none + facts->zero;
	unsigned int pages = facts->swap + facts->writable + facts->readonly;
	enum collapse_verdict verdict = collapse_refuses(facts, limits);

	if (verdict != COLLAPSE_MAY)
		return verdict;
	if (!pages)
		return COLLAPSE_NO_PAGES;
	if (limits->asked)
		return COLLAPSE_MAY;
	/*
	 * Read-only PTEs are no reason to refuse: swap-in, swapoff and fork
	 * leave them behind in memory that is in full use. But where nothing
	 * can be written, nothing was lately, and what the program never wrote
	 * it will not want memory for: do not make up the greater part.
	 */
	if (!facts->writable && unwritten > pages)
		return facts->zero ? COLLAPSE_UNWRITTEN : COLLAPSE_TOO_MANY_NONE;
	/*
	 * What swapoff brought back was not in use, or it would not have been
	 * out. But it was split for that; made whole again it takes no more
	 * memory than it does now, if all of it is there.
	 */
	if (limits->returned && !unwritten && !facts->swap)
		return COLLAPSE_MAY;
	/* It is worth reading from swap only for what is in good use. */
	if (facts->young < (facts->swap ? limits->size / 2 : 1))
		return COLLAPSE_NOT_YOUNG;
	return COLLAPSE_MAY;
}

#endif /* _MM_COLLAPSE_H */
