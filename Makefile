# Portwide. `make demo` and `make test` set everything up on a fresh Debian machine by themselves.
export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

.PHONY: demo test unit lint bench modules setup

## Shows an all-ports Service at work in a small network made of namespaces.
demo: setup
	@node test/lab/demo.ts

## Type check, lint and all tests. Most of these wait for something, so there are more at a time than a
## small machine has cores; those in user-mode-linux take longest and begin first. Mocha, the threads of labs and
## the processes that tests start share a cache of code whose types are stripped, which is half of what a start costs.
## It is new for each run: bundles have other paths each time, and it would grow.
test: export NODE_COMPILE_CACHE := $(CURDIR)/node_modules/.cache/tests
test: setup lint
	@rm -rf $(NODE_COMPILE_CACHE)
	@mocha --parallel --jobs 4 'test/uml/*.test.ts' 'test/*.test.ts' 'test/!(uml)/**/*.test.ts'

## Types, style and format, layers (.dependency-cruiser.mjs) and dead code (knip.json).
lint: modules
	@npm run -s lint

## The tests that need no root, no network namespaces and nothing but npm: those on any Linux or macOS.
unit: modules
	@npm test -s

modules:
	@node_modules/.bin/node --version >/dev/null 2>&1 || npm ci --no-audit --no-fund --loglevel=error

## Times starts and single changes: nftables at 100 and 10,000 Services, iptables at 1,000 and 10,000,
## IPVS at 1,000; then what an agent takes that an API server feeds, what the DNS server answers, and network
## policy with 1,000 policies. KUBE_PROXY=/path/to/kube-proxy measures that beside nftables and iptables.
bench: setup
	@node bench/nftables.ts
	@node bench/iptables.ts
	@node bench/ipvs.ts
	@node bench/api.ts
	@node bench/dns.ts
	@node bench/dns-memory.ts --quick
	@node bench/policy.ts

setup:
	@scripts/setup.sh $(MAKECMDGOALS)
