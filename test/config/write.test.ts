import assert from 'node:assert/strict';
import fc, { type Arbitrary } from 'fast-check';
import { parse } from 'yaml';
import { configure } from '../../config/configure.ts';
import { formatNotice } from '../../config/errors.ts';
import { readConfigFile } from '../../config/file.ts';
import { DETECT_LOCAL_MODES, PROXY_MODES } from '../../config/node-settings.ts';
import { DEFAULTS, OPTION_NAMES, RUN_SETTINGS, type RunOptions } from '../../config/settings.ts';
import { configurationText, toConfiguration, unwritableOptions } from '../../config/write.ts';

const { constant, constantFrom, integer } = fc;
const bool = fc.boolean();
const record = <T>(of: { readonly [Name in keyof T]: Arbitrary<T[Name]> }): Arbitrary<T> =>
  fc.record(of, { noNullPrototype: true });
const count = integer({ min: 0, max: 2 ** 31 - 1 });
/** Milliseconds, from one to ten years, and some with a fraction. */
const period = fc.oneof(
  integer({ min: 1, max: 315_360_000_000 }),
  integer({ min: 1, max: 999_999 }).map((ns) => ns / 1e6),
);
const timeout = fc.oneof(constant(0), period);
/** Strings. YAML reads some as another type unless they are quoted. */
const word = constantFrom(
  'a',
  'yes',
  'on',
  'null',
  '~',
  '0',
  '010',
  '1e3',
  '1:30',
  '#',
  ' x ',
  'a: b',
  '"',
  '\u00e9',
  '=',
);
const perhaps = <T>(of: Arbitrary<T>) => fc.option(of, { nil: undefined });
const cidr4 = constantFrom('10.0.0.0/8', '192.0.2.0/24', '0.0.0.0/0', '192.0.2.7/32');
const cidr6 = constantFrom('fd00::/48', '::/0', '2001:db8::1/128');
const cidrs = fc.array(fc.oneof(cidr4, cidr6), { maxLength: 4 });
const server = record({
  host: constantFrom('0.0.0.0', '127.0.0.1', '::', 'fd00::1'),
  port: integer({ min: 1, max: 65535 }),
});
const size = constantFrom('0', '512', '64Ki', '1.5M');

/** All options that a file can express. Only the two periods of a mode depend on each other. */
const OPTIONS: { readonly [Name in keyof RunOptions]: Arbitrary<RunOptions[Name]> } = {
  hostnameOverride: perhaps(constantFrom('node', 'a.b-c', '0', 'on', 'null')),
  bindAddress: constantFrom('0.0.0.0', '::', '192.0.2.1', 'fd00::1'),
  proxyMode: perhaps(constantFrom(...PROXY_MODES)),
  masqueradeAll: bool,
  iptablesMasqueradeBit: integer({ min: 0, max: 31 }),
  resetDeletedEndpointConnections: fc.boolean(),
  nodeportAddresses: fc.oneof(
    constantFrom([], ['all'], ['primary', 'localhost', '10.0.0.0/8']),
    cidrs.filter(({ length }) => length > 0),
  ),
  featureGates: record({ AllPorts: bool, AllowServiceExternalIPs: bool, WinDSR: bool }),
  detectLocalMode: constantFrom(...DETECT_LOCAL_MODES),
  clusterCidr: fc.oneof(constant([]), fc.tuple(cidr4), fc.tuple(cidr6), fc.tuple(cidr4, cidr6)),
  podBridgeInterface: constantFrom('cbr0', 'on', '0'),
  podInterfaceNamePrefix: constantFrom('cali', '1', 'y'),
  iptablesLocalhostNodeports: bool,
  ipvsScheduler: constantFrom('rr', 'mh', '0', 'no'),
  ipvsExcludeCidrs: cidrs,
  ipvsFwmarkRange: fc
    .tuple(integer({ min: 1, max: 0xfffffffd }), integer({ min: 2, max: 0xffff }))
    .map(([first, more]) => ({ first, last: Math.min(first + more, 0xffffffff) })),
  ipvsAllPorts: constantFrom('fwmark', 'iptables'),
  kubeconfig: perhaps(word),
  master: constant(undefined),
  manifests: constant(undefined),
  iptablesSyncPeriod: period,
  iptablesMinSyncPeriod: period,
  iptablesVariant: perhaps(constantFrom('nft', 'legacy')),
  ipvsSyncPeriod: period,
  ipvsMinSyncPeriod: timeout,
  ipvsStrictArp: bool,
  ipvsTcpTimeout: timeout,
  ipvsTcpfinTimeout: timeout,
  ipvsUdpTimeout: timeout,
  conntrackMaxPerCore: count,
  conntrackMin: count,
  conntrackTcpTimeoutEstablished: timeout,
  conntrackTcpTimeoutCloseWait: timeout,
  conntrackTcpBeLiberal: bool,
  conntrackUdpTimeout: timeout,
  conntrackUdpTimeoutStream: timeout,
  healthzBindAddress: server,
  metricsBindAddress: server,
  statusBindAddress: server,
  statusSocket: perhaps(word),
  bindAddressHardFail: bool,
  configRestartJitter: timeout,
  machineIdFile: constant('/etc/machine-id,/var/lib/dbus/machine-id'),
  bootIdFile: constant('/proc/sys/kernel/random/boot_id'),
  oomScoreAdj: integer({ min: -1000, max: 1000 }),
  v: count,
  acceptContentTypes: perhaps(word),
  kubeApiContentType: word,
  kubeApiQps: constantFrom(0.5, 5, 100, 1e-9, 1e30),
  kubeApiBurst: integer({ min: 1, max: 2 ** 31 - 1 }),
  configSyncPeriod: period,
  profiling: bool,
  showHiddenMetricsForVersion: perhaps(constantFrom('1.35', '1.10')),
  loggingFormat: perhaps(constantFrom('text', 'json')),
  logFlushFrequency: period,
  vmodule: fc.array(record({ filePattern: word.filter((text) => text !== '='), verbosity: count })),
  logJsonSplitStream: bool,
  logJsonInfoBufferSize: size,
  logTextSplitStream: bool,
  logTextInfoBufferSize: size,
  serviceCidrs: cidrs,
  nftablesFlowtable: bool,
  nftablesMasqueradeAll: bool,
  nftablesMasqueradeBit: integer({ min: 0, max: 31 }),
  nftablesSyncPeriod: period,
  nftablesMinSyncPeriod: period,
  networkPolicy: bool,
  fqdnResolvers: fc.array(constantFrom('10.96.0.10', 'fd00::a'), { maxLength: 2 }),
  fqdnTtlFloor: constantFrom(0, 1000, 30_000, 3_600_000),
  fqdnTtlCap: constantFrom(3_600_000, 86_400_000),
  policyLogGroup: perhaps(integer({ min: 0, max: 65535 })),
  portRange: perhaps(constantFrom('0-0', '300-2000', '80', '80+2')),
  winkernelNetworkName: perhaps(word),
  winkernelSourceVip: perhaps(word),
  winkernelEnableDsr: bool,
  winkernelRootHnsEndpointName: perhaps(word),
  winkernelForwardHealthCheckVip: bool,
  windowsRunAsService: bool,
};

const options: Arbitrary<RunOptions> = record(OPTIONS).map((any) => ({
  ...any,
  iptablesMinSyncPeriod: Math.min(any.iptablesMinSyncPeriod, any.iptablesSyncPeriod),
  ipvsMinSyncPeriod: Math.min(any.ipvsMinSyncPeriod, any.ipvsSyncPeriod),
  nftablesMinSyncPeriod: Math.min(any.nftablesMinSyncPeriod, any.nftablesSyncPeriod),
}));

describe('write: configurationText', () => {
  it('round-trips all options through YAML', () => {
    fc.assert(
      fc.property(options, (written) => {
        const content = configurationText(written);
        const read = configure({ config: 'f' }, { path: 'f', content });
        assert.deepEqual(read, { options: written, warnings: [] });
        assert.deepEqual(unwritableOptions(written), []);
      }),
      { seed: 5, numRuns: 200 },
    );
  });

  it('round-trips all options through JSON', () => {
    fc.assert(
      fc.property(options, (written) => {
        const read = readConfigFile(JSON.stringify(toConfiguration(written)), 'f');
        assert.deepEqual(read.options, written);
      }),
      { seed: 6, numRuns: 50 },
    );
  });

  it('quotes strings so that YAML 1.1, which kube-proxy reads, keeps them', () => {
    fc.assert(
      fc.property(options, (written) => {
        const old = parse(configurationText(written), { version: '1.1' });
        assert.deepEqual(old, parse(configurationText(written)));
      }),
      { seed: 7, numRuns: 50 },
    );
  });

  it('writes all fields in alphabetical order', () => {
    const written = parse(configurationText(DEFAULTS)) as Record<string, unknown>;
    const sorted = (value: unknown): void => {
      if (typeof value !== 'object' || value === null || Array.isArray(value)) return;
      assert.deepEqual(Object.keys(value), Object.keys(value).sort());
      for (const below of Object.values(value)) sorted(below);
    };
    sorted(written);
    for (const name of OPTION_NAMES) {
      const path = RUN_SETTINGS[name].field?.split('.') ?? [];
      let at: unknown = written;
      for (const segment of path) {
        assert.ok(typeof at === 'object' && at !== null && segment in at, path.join('.'));
        at = (at as Record<string, unknown>)[segment];
      }
    }
  });

  it('writes feature gate AllPorts only when it is false, because kube-proxy does not know it', () => {
    const gates = (AllPorts: boolean) =>
      toConfiguration({
        ...DEFAULTS,
        featureGates: { ...DEFAULTS.featureGates, AllPorts, WinDSR: true },
      }).featureGates;
    assert.deepEqual(gates(true), { WinDSR: true });
    assert.deepEqual(gates(false), { AllPorts: false, WinDSR: true });
  });

  it('warns about options that a file cannot express', () => {
    const { options } = configure({ iptablesMinSyncPeriod: '0', metricsBindAddress: '' });
    assert.deepEqual(unwritableOptions(options).map(formatNotice), [
      'iptables.minSyncPeriod: in a file, "0s" means the default, 1s',
      'metricsBindAddress: in a file, "" means the default, 127.0.0.1:10249',
    ]);
  });
});
