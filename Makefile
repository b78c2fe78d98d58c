# Portwide. Run as root, all targets install their requirements on a fresh Debian machine.
export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

.PHONY: demo demo-ui demo-media dist image image-lock chart test test-dist test-kernels stock-kernels unit \
  coverage lint audit release release-notes bench soak modules setup test-cluster

## Shows an all-ports Service in a small network of network namespaces.
demo: setup
	@node test/lab/demo.ts

## Leaves the network of the demo running with traffic, and prints the address of its status page.
demo-ui: setup
	@node test/lab/demo-ui.ts

## Makes 200 calls through three TURN relays behind one VIP, in a rollout and without agents. CALLS=30
## makes fewer: 10 to 300.
demo-media: setup
	@node test/lab/demo-media.ts $(CALLS)

## Type check, lint and all tests. Most tests wait for events, so more run in parallel than a small
## machine has cores. The tests in user-mode-linux take longest and start first. Mocha, lab threads
## and child processes share a compile cache of code with stripped types, which saves half of a
## start. The cache is deleted before each run: bundles have new paths in each run, so it would grow.
test: export NODE_COMPILE_CACHE := $(CURDIR)/node_modules/.cache/tests
test: setup lint
	@rm -rf $(NODE_COMPILE_CACHE)
	@mocha --parallel --jobs 5 'test/uml/*.test.ts' 'test/*.test.ts' 'test/!(uml)/**/*.test.ts'

## Packets in stock Debian kernels, in QEMU. KERNELS=6.12 runs one kernel; -j2 -O runs both at once. CORE=1 runs
## the specs that CI runs for each push, NFT=1.1.3 another nft than that of Debian 12.
KERNELS = 6.1 6.12
test-kernels: $(KERNELS:%=test-kernel-%)
test-kernel-%: stock-kernels
	@PORTWIDE_CORE=$(CORE) PORTWIDE_NFT=$(NFT) PORTWIDE_KERNEL=$* mocha test/uml/uml.test.ts
stock-kernels: setup
	@scripts/kernels.sh

## Kubernetes' e2e tests of networking, in a cluster of network namespaces, with kube-proxy and with Portwide:
## make test-cluster KUBE_BIN=/path/to/programs IMAGES=/path/to/archives. NODES, MODES, FOCUS, SKIP, PAUSE_IMAGE and
## COREDNS_IMAGE change defaults (test/cluster/options.ts). DRY_RUN=1 prints all commands and files.
test-cluster: modules
	@node test/cluster/main.ts $(if $(DRY_RUN),--dry-run)

## Types, style, format, layers (.dependency-cruiser.mjs), unused code (knip.json) and prose
## (scripts/lint-prose.ts).
lint: modules
	@npm run -s lint

## What a release has, in dist/: see scripts/dist/dist.ts. Needs Debian with git and npm, and neither root nor a container
## engine. ARCH=amd64 makes it for one architecture. PORTWIDE_DEBIAN_MIRROR, PORTWIDE_SOURCE (the URL of the sources) and
## PORTWIDE_BUILDER (the builder in the provenance) change defaults.
dist: modules
	@node scripts/dist/dist.ts $(ARCH)

## Makes what a release has, installs it in a new Debian root, and serves a Service from the container image.
test-dist: setup
	@mocha 'test/dist/*.dist.ts'

## The tests that need only npm, without root and network namespaces: they run on any Linux or
## macOS.
unit: modules
	@npm test -s

## The unit tests, then a table of executed lines; fails below the floors in scripts/coverage.ts.
## Reports of V8 slow tests down, so they have more time.
coverage: modules
	@rm -rf coverage
	@NODE_V8_COVERAGE=coverage npm test -s -- --reporter dot --timeout 300000
	@node --disable-warning=ExperimentalWarning scripts/coverage.ts coverage

## Known vulnerabilities and licences of production packages. Asks the npm registry.
audit: modules
	@node scripts/licences.ts
	@npm audit --omit=dev

## Sets the version, checks, commits and tags: make release VERSION=1.2.3
release: modules
	@node scripts/release.ts $(VERSION)

## Writes the changelog section of a version to a file: make release-notes VERSION=1.2.3 NOTES=FILE
release-notes: modules
	@node scripts/release.ts --notes $(NOTES) $(VERSION)

## Of that only the container image, as OCI archives with SBOM and provenance.
image: modules
	@node scripts/image/main.ts build $(ARCH)
## Locks the newest versions of the Debian packages in the image (scripts/image/lock.json).
image-lock: modules
	@node scripts/image/main.ts lock

modules:
	@scripts/setup.sh --modules $(MAKECMDGOALS)

## Times starts and single changes: nftables with 100 and 10,000 Services, iptables with 1,000 and
## 10,000, IPVS with 1,000. Then measures an agent with an API server and its memory, the DNS server, network
## policy with 1,000 policies, the status API, and how soon clients reach a new Service.
## KUBE_PROXY=/path/to/kube-proxy compares whole programs with kube-proxy.
bench: setup
	@node bench/nftables.ts
	@node bench/iptables.ts
	@node bench/ipvs.ts
	@node bench/api.ts
	@node bench/memory.ts
	@node bench/dns.ts
	@node bench/dns-memory.ts --quick
	@node bench/policy.ts
	@node bench/status.ts --quick
	@node bench/page.ts --quick
	@node bench/latency.ts
	@node bench/compare.ts
	@node bench/scale.ts --runs 1

## Two agents under changes, faults and traffic. Fails if a connection is lost, something stale remains, or memory grows.
MINUTES = 30
soak: setup
	@node bench/steady.ts --minutes $(MINUTES)

## Packages the Helm chart as dist/portwide-VERSION.tgz.
chart: modules
	@node scripts/dist/chart.ts

setup:
	@scripts/setup.sh $(MAKECMDGOALS)
