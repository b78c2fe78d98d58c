/** Rules for imports between folders: docs/develop/architecture.md, "Layers". `make lint` checks them. */

/** Layers from top to bottom. A folder must not import a folder of a higher layer. */
const LAYERS = [
  ['cmd'],
  ['agent'],
  ['status', 'preflight', 'probe'],
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
      name: 'backends-do-not-import-each-other',
      comment: 'except ipvs, which programs iptables rules, too',
      severity: 'error',
      from: { path: '^(iptables|nftables)/' },
      to: { path: '^(iptables|ipvs|nftables)/', pathNot: '^$1/' },
    },
    {
      name: 'ipvs-does-not-import-nftables',
      severity: 'error',
      from: { path: '^ipvs/' },
      to: { path: '^nftables/' },
    },
    {
      name: 'status-does-not-import-proxy-modes',
      severity: 'error',
      from: { path: '^status/' },
      to: { path: '^(iptables|ipvs|nftables)/' },
    },
    {
      name: 'policy-does-not-import-proxy-modes',
      severity: 'error',
      from: { path: '^policy/' },
      to: { path: '^(iptables|ipvs|nftables|proxier|traffic|services|endpoints)/' },
    },
    {
      name: 'policy-model-imports-no-other-part-of-policy',
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
      name: 'policy-enforce-and-fqdn-do-not-import-each-other',
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
      comment: 'run-program.ts sets a time limit for each program.',
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
      name: 'no-circular-imports-of-values',
      severity: 'error',
      from: {},
      to: { circular: true, viaOnly: { dependencyTypesNot: ['type-only'] } },
    },
    {
      name: 'each-folder-has-a-layer',
      comment: 'Also: production code imports neither tests nor benchmarks nor scripts.',
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
    // Not `exclude`: it would hide imports of these paths by production code.
    doNotFollow: { path: ['node_modules', '^(test|bench|scripts)/'] },
    tsPreCompilationDeps: 'specify',
  },
};
