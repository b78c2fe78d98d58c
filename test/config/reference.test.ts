import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { COMMAND_SETTINGS } from '../../config/command-settings.ts';
import { referencePage } from '../../config/reference.ts';
import { flagOf } from '../../config/setting.ts';
import { ALL_SETTINGS, OPTION_NAMES, RUN_SETTINGS } from '../../config/settings.ts';

/** kube-proxy 1.34 to 1.36. */
const FLAGS = `config write-config-to cleanup init-only feature-gates kubeconfig master
kube-api-content-type kube-api-burst kube-api-qps hostname-override bind-address healthz-bind-address
metrics-bind-address bind-address-hard-fail profiling show-hidden-metrics-for-version proxy-mode
iptables-masquerade-bit masquerade-all iptables-localhost-nodeports iptables-sync-period
iptables-min-sync-period ipvs-sync-period ipvs-min-sync-period ipvs-scheduler ipvs-exclude-cidrs
ipvs-strict-arp ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout detect-local-mode
pod-bridge-interface pod-interface-name-prefix cluster-cidr nodeport-addresses oom-score-adj
conntrack-max-per-core conntrack-min conntrack-tcp-timeout-established
conntrack-tcp-timeout-close-wait conntrack-tcp-be-liberal conntrack-udp-timeout
conntrack-udp-timeout-stream config-sync-period healthz-port metrics-port vmodule logging-format
log-flush-frequency log-json-split-stream log-json-info-buffer-size log-text-split-stream
log-text-info-buffer-size machine-id-file boot-id-file`
  .split(/\s+/)
  .map((name) => `--${name}`);
const OWN_FLAGS = ['--manifests', '--iptables-variant', '--ipvs-fwmark-range', '--ipvs-all-ports']
  .concat('--network-policy', '--fqdn-resolvers', '--policy-log-group')
  .concat('--fqdn-ttl-floor', '--fqdn-ttl-cap')
  .concat('--status-bind-address', '--status-socket')
  .concat(
    '--config-restart-jitter',
    '--reset-deleted-endpoint-connections',
    '--nftables-flowtable',
  );
/**
 * kube-proxy has the --nftables-* settings only in its file. It reads service CIDRs from the API server
 * (ServiceCIDR objects).
 */
const NFTABLES_FLAGS = ['masquerade-all', 'masquerade-bit', 'sync-period', 'min-sync-period']
  .map((name) => `--nftables-${name}`)
  .concat('--service-cidrs');

const FIELDS: readonly (string | readonly [section: string, ...fields: string[]])[] = [
  ...['featureGates', 'hostnameOverride', 'bindAddress', 'healthzBindAddress'],
  ...['metricsBindAddress', 'bindAddressHardFail', 'enableProfiling'],
  ...['showHiddenMetricsForVersion', 'mode', 'detectLocalMode', 'clusterCIDR'],
  ...['nodePortAddresses', 'oomScoreAdj', 'configSyncPeriod', 'portRange', 'windowsRunAsService'],
  ['clientConnection', 'kubeconfig', 'acceptContentTypes', 'contentType', 'qps', 'burst'],
  ['logging', 'format', 'flushFrequency', 'verbosity', 'vmodule'],
  ['logging.options.json', 'splitStream', 'infoBufferSize'],
  ['logging.options.text', 'splitStream', 'infoBufferSize'],
  [
    'iptables',
    'masqueradeBit',
    'masqueradeAll',
    'localhostNodePorts',
    'syncPeriod',
    'minSyncPeriod',
  ],
  ['ipvs', 'syncPeriod', 'minSyncPeriod', 'scheduler', 'excludeCIDRs', 'strictARP'],
  ['ipvs', 'tcpTimeout', 'tcpFinTimeout', 'udpTimeout'],
  ['nftables', 'masqueradeBit', 'masqueradeAll', 'syncPeriod', 'minSyncPeriod'],
  ['winkernel', 'networkName', 'sourceVip', 'enableDSR', 'rootHnsEndpointName'],
  ['winkernel', 'forwardHealthCheckVip'],
  ['detectLocal', 'bridgeInterface', 'interfaceNamePrefix'],
  ['conntrack', 'maxPerCore', 'min', 'tcpEstablishedTimeout', 'tcpCloseWaitTimeout'],
  ['conntrack', 'tcpBeLiberal', 'udpTimeout', 'udpStreamTimeout'],
  'portwide.configRestartJitter',
  ['portwide.iptables', 'variant'],
  ['portwide', 'resetDeletedEndpointConnections'],
  ['portwide.status', 'bindAddress', 'socket'],
  ['portwide.ipvs', 'fwmarkRange', 'allPorts'],
  ['portwide.nftables', 'flowtable', 'serviceCIDRs'],
  ['portwide.networkPolicy', 'enforce', 'fqdnResolvers', 'fqdnTtlFloor', 'fqdnTtlCap', 'logGroup'],
];

describe('reference: tables of settings and docs/operate/configuration.md', () => {
  it("has kube-proxy's flags and Portwide's, and no others", () => {
    const flags = Object.entries(ALL_SETTINGS)
      .filter(([, { fileOnly }]) => !fileOnly)
      .map(([name]) => flagOf(name));
    assert.deepEqual(flags.sort(), [...FLAGS, '-v', ...OWN_FLAGS, ...NFTABLES_FLAGS].sort());
  });

  it("has kube-proxy's fields and Portwide's, and no others", () => {
    const fields = OPTION_NAMES.flatMap((name) => RUN_SETTINGS[name].field ?? []);
    const expected = FIELDS.flatMap((entry) => {
      if (typeof entry === 'string') return [entry];
      const [section, ...names] = entry;
      return names.map((name) => `${section}.${name}`);
    });
    assert.deepEqual(fields.sort(), expected.sort());
  });

  it('has defaults that are valid values', () => {
    for (const name of OPTION_NAMES) {
      const { type, default: value, keepsZero } = RUN_SETTINGS[name];
      const encoded = type.toFile(value);
      if (encoded === null || (type.isZero(encoded) && !keepsZero)) continue;
      assert.deepEqual(type.fromFile(encoded, assert.fail), value, name);
    }
    for (const { type, default: value } of Object.values(COMMAND_SETTINGS)) {
      assert.deepEqual(type.fromFlag(String(value ?? '')), value);
    }
  });

  it('docs/operate/configuration.md is up to date (`npm run docs` writes it)', () => {
    const file = new URL('../../docs/operate/configuration.md', import.meta.url);
    assert.equal(readFileSync(file, 'utf8'), referencePage());
  });
});
