// SPDX-License-Identifier: GPL-2.0
/* LDLIBS: -lmimalloc */
/*
 * lfalloc-mimalloc: lfalloc.h with mimalloc.
 */
#include "lfalloc.h"
#include <mimalloc.h>

/*
 * "Reset" is MADV_FREE, "decommit" is MADV_DONTNEED; delays are in ms. From
 * 2.1 on both are a "purge". Names that the library lacks are ignored.
 */
static const struct allocator mimalloc = {
	.name = "mimalloc",
	.env = {
		[DONTNEED] = {
			"MIMALLOC_PAGE_RESET=0",
			"MIMALLOC_ALLOW_DECOMMIT=1",
			"MIMALLOC_DECOMMIT_DELAY=0",
			"MIMALLOC_PURGE_DELAY=0",
			"MIMALLOC_PURGE_DECOMMITS=1",
		},
		[FREE] = {
			"MIMALLOC_PAGE_RESET=1",
			"MIMALLOC_ALLOW_DECOMMIT=0",
			"MIMALLOC_RESET_DELAY=0",
			"MIMALLOC_PURGE_DELAY=0",
			"MIMALLOC_PURGE_DECOMMITS=0",
		},
	},
};

int main(int argc, char **argv)
{
	char version[32];

	snprintf(version, sizeof(version), "%d", mi_version());
	return alloc_main(argc, argv, &mimalloc, version);
}
