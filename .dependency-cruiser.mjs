/** Which folder may import which: docs/develop/architecture.md, "Layers". `make lint` holds it. */

/** From top to bottom: a folder may import those of lines below its own. */
const LAYERS = [
  ['cmd'],
  ['agent'],
  ['status'],
  ['takeover'],
  ['policy'],
  ['iptables', 'ipvs', 'nftables'],
  ['proxier'],
  ['traffic', 'health', 'localhost'],
  ['services'],
  ['endpoints'],
  ['nft'],
  ['dns', 'envvars', 'events', 'metrics', 'sources', 'config'],
  ['process'],
  ['netlink'],
  ['sync'],
  ['api'],
];

const folders = (names) => `^(${names.join('|')})/`;
const production = folders(LAYERS.flat());

const layers = LAYERS.slice(1).map((names, index) => ({
  name: `${names.join('-')}-imports-nothing-above`,
  severity: 'error',
  from: { path: folders(names) },
  to: { path: folders(LAYERS.slice(0, index + 1).flat()) },
}));

/** @type {import('dependency-cruiser').IConfiguration} */
export default {
  forbidden: [
    ...layers,
    {
      name: 'backends-know-nothing-of-each-other',
      comment: 'but ipvs, whose rules are those of iptables',
      severity: 'error',
      from: { path: '^(iptables|nftables)/' },
      to: { path: '^(iptables|ipvs|nftables)/', pathNot: '^$1/' },
    },
    {
      name: 'ipvs-knows-no-nftables',
      severity: 'error',
      from: { path: '^ipvs/' },
      to: { path: '^nftables/' },
    },
    {
      name: 'status-knows-no-proxy-mode',
      severity: 'error',
      from: { path: '^status/' },
      to: { path: '^(iptables|ipvs|nftables)/' },
    },
    {
      name: 'policy-knows-no-proxy-mode',
      comment: 'but iptables, by whose rules DNS answers are queued',
      severity: 'error',
      from: { path: '^policy/' },
      to: { path: '^(ipvs|nftables|proxier|traffic|services|endpoints)/' },
    },
    {
      name: 'policy-model-stands-alone',
      severity: 'error',
      from: { path: '^policy/model/' },
      to: { path: '^policy/(compile|enforce|fqdn)/' },
    },
    {
      name: 'policy-compiles-without-the-kernel',
      severity: 'error',
      from: { path: '^policy/compile/' },
      to: { path: '^policy/(enforce|fqdn)/' },
    },
    {
      name: 'policy-enforce-and-fqdn-know-nothing-of-each-other',
      severity: 'error',
      from: { path: '^policy/(enforce|fqdn)/' },
      to: { path: '^policy/(enforce|fqdn)/', pathNot: '^policy/$1/' },
    },
    {
      name: 'only-netlink-opens-netlink-sockets',
      severity: 'error',
      from: { path: production, pathNot: '^netlink/' },
      to: { path: ['node_modules/koffi', '^netlink/core/(socket|descriptor|libc)\\.ts$'] },
    },
    {
      name: 'only-run-program-starts-programs',
      comment: 'It sets a time limit.',
      severity: 'error',
      from: { path: production, pathNot: '^process/run-program\\.ts$' },
      to: { path: ['node_modules/execa', '^(node:)?child_process$'] },
    },
    {
      name: 'decisions-are-pure',
      comment: 'Objects to Routes to TrafficPlans: data in, data out.',
      severity: 'error',
      from: { path: '^(api|endpoints|services|traffic)/' },
      to: { path: '^(netlink|process|sync)/', dependencyTypesNot: ['type-only'] },
    },
    {
      name: 'no-circle-of-values',
      severity: 'error',
      from: {},
      to: { circular: true, viaOnly: { dependencyTypesNot: ['type-only'] } },
    },
    {
      name: 'each-folder-has-a-layer',
      comment: 'and production code knows neither tests nor benchmarks',
      severity: 'error',
      from: { path: production },
      to: { pathNot: [production, 'node_modules'], dependencyTypesNot: ['core'] },
    },
    {
      name: 'production-uses-no-development-package',
      severity: 'error',
      from: { path: production },
      to: {
        dependencyTypes: ['npm-dev', 'npm-no-pkg', 'npm-unknown', 'unknown'],
        dependencyTypesNot: ['type-only'],
      },
    },
  ],
  options: {
    // Not `exclude`, which would hide that production code imports such a package.
    doNotFollow: { path: ['node_modules', '^(test|bench|scripts)/'] },
    tsPreCompilationDeps: 'specify',
  },
};
