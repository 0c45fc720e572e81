# SPDX-License-Identifier: GPL-2.0
# The verbs of the project; `make help` is the manual.

K ?= series
TREE = python3 harness/tree.py
# make passes its variables on; the harness reads them from the environment.
export K
REPORT_ARGS = $(if $(filter quick,$(REPORT)),--quick) $(if $(RUNS),--runs '$(RUNS)')
OUT ?= results/$(shell date +%F)$(if $(filter quick,$(REPORT)),-quick)

.PHONY: help deps tree refresh record kernel kernels image boot shell report render check unit static each kunit \
	kselftest check-upstream dist clean distclean
.DEFAULT_GOAL := help

help:
	@echo  'For everyone:'
	@echo  '  report          - build the three kernels, run every workload, print and keep the tables'
	@echo  '                    (REPORT=quick: 5 minutes; OUT=dir; T="cow swapoff/zram": only these topics or scenarios;'
	@echo  '                    RUNS=10: so many boots a side)'
	@echo  '  check           - all tests; the last line counts them (CHECK=quick: fewer builds, no KUnit; check-upstream is apart)'
	@echo  '  deps            - install the missing Debian packages, or print the apt line if not root'
	@echo  'The series:'
	@echo  '  tree            - build/src: a git tree of the kernel, one commit for each patch'
	@echo  '  refresh         - the commits of build/src back into patches/ and the new files'
	@echo  '  record          - note the installed source package as the base of the patches'
	@echo  '  dist            - build/dist: one patch against stock for each topic, for your own kernel'
	@echo  'The kernels (K=off|stock|series|debug, default series):'
	@echo  '  kernel          - build kernel K into build/out/K'
	@echo  '  kernels         - build off, stock and series'
	@echo  '  boot            - run CMD in kernel K; its exit status and output are the command'\''s'
	@echo  '                    (MEM=1G CPUS=2 NODES=1 DISKS=1G,64M QUEUE=256 IOPS=n BPS=n ICOUNT=1 TIMEOUT=300 ACCEL=auto)'
	@echo  '  shell           - a prompt in kernel K'
	@echo  'Single groups of tests:'
	@echo  '  unit            - the harness itself'
	@echo  '  static          - shellcheck, pyflakes, checkpatch, sparse, W=1, kernel-doc, codespell'
	@echo  '  each            - every commit of the series builds'
	@echo  '  kunit           - KUnit on the debug kernel'
	@echo  '  kselftest       - the selftests of the series on all four kernels'
	@echo  '  check-upstream  - the kernel'\''s own mm selftests: series against stock (T="cow thp": categories)'
	@echo  'Cleaning:'
	@echo  '  clean           - remove build/out and logs, keep build/src'
	@echo  '  distclean       - remove build/ (the cache outside the checkout stays: ~/.cache/swapback)'

deps:
	@harness/deps
tree: deps
	@$(TREE) tree
refresh:
	@$(TREE) refresh
record: deps
	@$(TREE) record
dist: tree
	@$(TREE) dist build/dist
kernel: deps
	@harness/kernel '$(K)'
kernels: deps
	@for k in stock series off; do harness/kernel $$k || exit; done
image: deps
	@harness/image
boot: kernel image
	@harness/boot "$$CMD"
shell: kernel image
	@harness/boot --shell
export CMD
report: kernels image
	@python3 harness/report.py run --out '$(OUT)' $(REPORT_ARGS) $(T)
render:
	@python3 harness/report.py render '$(OUT)'
check: deps
	@harness/check $(if $(filter quick,$(CHECK)),--quick)
unit static each kunit kselftest: deps
	@harness/check $@
check-upstream: deps
	@harness/check upstream
clean:
	rm -rf build/out build/log build/guest build/run.* build/initramfs.* build/.image.key
distclean:
	rm -rf build
