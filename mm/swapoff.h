/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _MM_SWAPOFF_H
#define _MM_SWAPOFF_H

#include <linux/types.h>

struct inode;
struct mempolicy;
struct swap_info_struct;
struct swapoff_batch;

void swapoff_prepare(void);
bool swapoff_fits(struct swap_info_struct *si);
int swapoff_drain(struct swap_info_struct *si);

/* A shmem inode that a swapoff knows of; NULL once the inode is evicted. */
struct shmem_swapoff_pin {
	struct hlist_node hash;
	struct inode *inode;
};

#ifdef CONFIG_SHMEM
int shmem_swapoff_pin(struct shmem_swapoff_pin **pins, unsigned int *nr);
void shmem_swapoff_unpin(struct shmem_swapoff_pin *pins, unsigned int nr);
int shmem_swapoff_gather(struct shmem_swapoff_pin *pin, unsigned int type,
			 u32 owner, u64 *next, struct swapoff_batch *batch);
struct mempolicy *shmem_swapoff_policy(struct shmem_swapoff_pin *pin,
				       pgoff_t index, pgoff_t *ilx);
int shmem_swapoff_page(struct shmem_swapoff_pin *pin, unsigned int type,
		       pgoff_t index, gfp_t careful);
#else
static inline int shmem_swapoff_pin(struct shmem_swapoff_pin **pins,
				    unsigned int *nr)
{
	*pins = NULL;
	*nr = 0;
	return 0;
}

static inline void shmem_swapoff_unpin(struct shmem_swapoff_pin *pins,
				       unsigned int nr)
{
}

static inline int shmem_swapoff_gather(struct shmem_swapoff_pin *pin,
				       unsigned int type, u32 owner, u64 *next,
				       struct swapoff_batch *batch)
{
	return 0;
}

static inline struct mempolicy *
shmem_swapoff_policy(struct shmem_swapoff_pin *pin, pgoff_t index, pgoff_t *ilx)
{
	return NULL;
}

static inline int shmem_swapoff_page(struct shmem_swapoff_pin *pin,
				     unsigned int type, pgoff_t index,
				     gfp_t careful)
{
	return 0;
}
#endif /* CONFIG_SHMEM */

#endif /* _MM_SWAPOFF_H */
