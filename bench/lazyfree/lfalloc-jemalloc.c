// SPDX-License-Identifier: GPL-2.0
/* LDLIBS: -static -ljemalloc -lm */
/*
 * lfalloc-jemalloc: lfalloc.h with jemalloc.
 */
#include "lfalloc.h"
#include <jemalloc/jemalloc.h>

/*
 * With a dirty_decay_ms of 0, jemalloc 5.3 gives each freed chunk back at
 * once; always with MADV_DONTNEED, whatever muzzy_decay_ms is. MADV_FREE is
 * the way that is left when the hook for MADV_DONTNEED is taken away.
 */
static void prepare(enum advice advice)
{
	static extent_hooks_t hooks;
	extent_hooks_t *old, *new = &hooks;
	unsigned int narenas, i;
	size_t len = sizeof(narenas);
	char name[64];

	if (advice != FREE)
		return;
	if (mallctl("opt.narenas", &narenas, &len, NULL, 0))
		die("jemalloc has no opt.narenas");
	len = sizeof(old);
	if (mallctl("arena.0.extent_hooks", &old, &len, NULL, 0))
		die("jemalloc has no arena.0.extent_hooks");
	hooks = *old;
	hooks.purge_forced = NULL;
	for (i = 0; i < narenas; i++) {
		snprintf(name, sizeof(name), "arena.%u.extent_hooks", i);
		if (mallctl(name, NULL, NULL, &new, sizeof(new)))
			die("cannot set %s of jemalloc", name);
	}
}

static const struct allocator jemalloc = {
	.name = "jemalloc",
	.env = {
		[DONTNEED] = { "MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0" },
		[FREE] = { "MALLOC_CONF=dirty_decay_ms:0,muzzy_decay_ms:0" },
	},
	.prepare = prepare,
};

int main(int argc, char **argv)
{
	const char *version;
	size_t len = sizeof(version);

	if (mallctl("version", &version, &len, NULL, 0))
		version = "of unknown version";
	return alloc_main(argc, argv, &jemalloc, version);
}
