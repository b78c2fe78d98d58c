import assert from 'node:assert/strict';
import { Command } from 'commander';
import { configure, isOn } from '../../config/configure.ts';
import { ConfigurationError, formatNotice } from '../../config/errors.ts';
import { addFlags, type FlagTexts } from '../../config/flags.ts';
import type { ConfigFile } from '../../config/notices.ts';
import { ALL_SETTINGS, DEFAULTS, type RunOptions } from '../../config/settings.ts';

/** Parses flags as the command line does. */
function flags(...args: string[]): FlagTexts {
  const command = addFlags(new Command(), ALL_SETTINGS);
  command.exitOverride().configureOutput({ writeErr: () => {} });
  return command.parse(args, { from: 'user' }).opts();
}

function file(text: string): ConfigFile {
  const head = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n';
  return { path: '/f', content: `${head}${text}\n` };
}

/** The options that differ from the defaults, and the warnings. */
function configured(args: readonly string[], config?: ConfigFile) {
  const { options, warnings } = configure(flags(...args), config);
  const changed = Object.fromEntries(
    Object.entries(options).filter(([name, value]) => value !== DEFAULTS[name as keyof RunOptions]),
  );
  return { changed, warnings: warnings.map(formatNotice) };
}

function problemsOf(args: readonly string[], config?: ConfigFile): string[] {
  try {
    configure(flags(...args), config);
  } catch (error) {
    if (!(error instanceof ConfigurationError)) throw error;
    return error.message.split('\n');
  }
  return [];
}

describe('configure: options from flags and file', () => {
  describe('reads flags:', () => {
    const cases: readonly (readonly [args: string, expected: Partial<RunOptions>])[] = [
      ['', {}],
      ['--proxy-mode=ipvs --ipvs-scheduler mh', { proxyMode: 'ipvs', ipvsScheduler: 'mh' }],
      ['--masquerade-all', { masqueradeAll: true }],
      ['--iptables-localhost-nodeports=false', { iptablesLocalhostNodeports: false }],
      // Go's spellings of booleans, which templates for kube-proxy use.
      ['--iptables-localhost-nodeports=False', { iptablesLocalhostNodeports: false }],
      ['--masquerade-all=1', { masqueradeAll: true }],
      ['--proxy-mode= --detect-local-mode=', {}],
      ['-v=3', { v: 3 }],
      ['-v 4', { v: 4 }],
      ['-v5', { v: 5 }],
      ['--v=10', { v: 10 }],
      // Repeated flags of lists and maps accumulate, as in Go; of others the last is used.
      [
        '--ipvs-exclude-cidrs=10.0.0.0/8 --ipvs-exclude-cidrs=11.0.0.0/8,12.0.0.0/8',
        { ipvsExcludeCidrs: ['10.0.0.0/8', '11.0.0.0/8', '12.0.0.0/8'] },
      ],
      [
        '--feature-gates=AllPorts=false --feature-gates=WinDSR=true',
        { featureGates: { ...DEFAULTS.featureGates, AllPorts: false, WinDSR: true } },
      ],
      ['--cluster-cidr=10.0.0.0/8 --cluster-cidr=11.0.0.0/8', { clusterCidr: ['11.0.0.0/8'] }],
      ['--oom-score-adj=-500', { oomScoreAdj: -500 }],
      ['--conntrack-tcp-timeout-close-wait=0', { conntrackTcpTimeoutCloseWait: 0 }],
      ['--iptables-min-sync-period=0', { iptablesMinSyncPeriod: 0 }],
      ['--bind-address=::1', { bindAddress: '::1' }],
      ['--metrics-bind-address=', { metricsBindAddress: undefined }],
      ['--hostname-override=', {}],
      ['--manifests=/m', { manifests: '/m' }],
      // Periods are compared only in the mode in use.
      ['--ipvs-min-sync-period=1h', { ipvsMinSyncPeriod: 3_600_000 }],
    ];
    for (const [args, expected] of cases) {
      it(args === '' ? 'none' : args, () => {
        const given = args.split(' ').filter((arg) => arg !== '');
        assert.deepEqual(configured(given), { changed: expected, warnings: [] });
      });
    }
  });

  describe('reads the deprecated port flags:', () => {
    const at = (host: string, port: number) => ({ host, port });
    for (const [args, healthz, metrics] of [
      // As in kube-proxy, no effect on the default address, which has a port.
      ['--healthz-port=1 --metrics-port=2', at('0.0.0.0', 10256), at('127.0.0.1', 10249)],
      ['--healthz-port=0 --metrics-port=0', undefined, undefined],
      [
        '--healthz-bind-address=::1 --healthz-port=1 --metrics-bind-address=192.0.2.1 --metrics-port=2',
        at('::1', 1),
        at('192.0.2.1', 2),
      ],
      [
        '--metrics-bind-address=192.0.2.1:9 --metrics-port=2',
        at('0.0.0.0', 10256),
        at('192.0.2.1', 9),
      ],
      ['--metrics-bind-address=192.0.2.1:9 --metrics-port=0', at('0.0.0.0', 10256), undefined],
      ['--write-config-to=/x --metrics-port=0', at('0.0.0.0', 10256), at('127.0.0.1', 10249)],
    ] as const) {
      it(args, () => {
        const { options, warnings } = configure(flags(...args.split(' ')));
        assert.deepEqual(
          [options.healthzBindAddress, options.metricsBindAddress],
          [healthz, metrics],
        );
        const ports = ['--healthz-port', '--metrics-port'].filter((flag) => args.includes(flag));
        assert.deepEqual(
          warnings.map(formatNotice),
          ports.map(
            (flag) => `${flag}: deprecated flag; use ${flag.replace('port', 'bind-address')}`,
          ),
        );
      });
    }

    it('rejects a number that is not a port', () => {
      assert.deepEqual(problemsOf(['--healthz-port=70000']), [
        '--healthz-port: must be a number from 0 to 65535, not "70000"',
      ]);
    });
  });

  describe('reads a file:', () => {
    it('ignores other flags, even invalid ones, with a warning', () => {
      const args = ['--config=/f', '--proxy-mode=magic', '--cluster-cidr=x', '--metrics-port=0'];
      assert.deepEqual(configured(args, file('mode: ipvs')), {
        changed: { proxyMode: 'ipvs' },
        warnings: [
          '--metrics-port: deprecated flag; use --metrics-bind-address',
          '--proxy-mode, --cluster-cidr, --metrics-port: flags ignored because --config is set',
        ],
      });
    });

    it('applies the node name, logging flags and flags without a field over the file', () => {
      const args = ['--hostname-override=Flag', '-v=3', '--logging-format=json'];
      const given = file(
        'hostnameOverride: file\nlogging: {verbosity: 1, format: text}\noomScoreAdj: 1',
      );
      assert.deepEqual(configured([...args, '--manifests=/m', '--init-only'], given), {
        changed: {
          hostnameOverride: 'flag',
          v: 3,
          loggingFormat: 'json',
          manifests: '/m',
          oomScoreAdj: 1,
        },
        warnings: [],
      });
    });

    it('applies --master over the file', () => {
      assert.deepEqual(configured(['--master=https://m'], file('')).changed, {
        master: 'https://m',
      });
    });

    it("keeps the file's node name when --hostname-override is empty", () => {
      assert.deepEqual(
        configured(['--hostname-override='], file('hostnameOverride: file')).changed,
        {
          hostnameOverride: 'file',
        },
      );
    });

    it('returns the warnings of the file', () => {
      assert.deepEqual(configured([], file('a: 1')).warnings, ['/f: a: unknown field; ignored']);
    });

    // Installers pass one list of feature gates to all components.
    it('accepts gates of other components', () => {
      const gates = { AllPorts: false, WinDSR: true, SidecarContainers: true };
      const changed = { featureGates: { ...DEFAULTS.featureGates, ...gates } };
      const list = 'AllPorts: false, WinDSR: true, SidecarContainers: true';
      assert.deepEqual(configured([], file(`featureGates: {${list}}`)), { changed, warnings: [] });
      const args = ['--feature-gates=AllPorts=false,WinDSR=true,SidecarContainers=true'];
      assert.deepEqual(configured(args), { changed, warnings: [] });
    });

    it('reports warnings separately from problems when the file is invalid', () => {
      const given = file('a: 1\nmode: magic\nb: 2');
      assert.throws(
        () => configure({}, given),
        (error) => {
          assert.ok(error instanceof ConfigurationError);
          assert.equal(
            error.message,
            '/f: mode: must be one of nftables, iptables, ipvs, not "magic"',
          );
          assert.deepEqual(error.warnings.map(formatNotice), [
            '/f: a: unknown field; ignored',
            '/f: b: unknown field; ignored',
          ]);
          return true;
        },
      );
    });

    it("accepts --manifests with the file's kubeconfig", () => {
      const given = file('clientConnection: {kubeconfig: /k}');
      assert.deepEqual(configured(['--manifests=/m'], given).changed, {
        kubeconfig: '/k',
        manifests: '/m',
      });
    });
  });

  describe('reports all problems by flag or field:', () => {
    const cases: readonly (readonly [
      args: string,
      config: string | undefined,
      ...expected: string[],
    ])[] = [
      [
        '--proxy-mode=magic --oom-score-adj=x --metrics-port=x',
        undefined,
        '--metrics-port: must be a number from 0 to 65535, not "x"',
        '--proxy-mode: must be one of nftables, iptables, ipvs, not "magic"',
        '--oom-score-adj: must be a number from -1000 to 1000, not "x"',
      ],
      [
        '--iptables-min-sync-period=1m',
        undefined,
        '--iptables-min-sync-period: must not be greater than --iptables-sync-period',
      ],
      [
        '--nftables-min-sync-period=1m --ipvs-min-sync-period=1m',
        undefined,
        '--nftables-min-sync-period: must not be greater than --nftables-sync-period',
      ],
      [
        '--proxy-mode=ipvs --ipvs-min-sync-period=1m --iptables-min-sync-period=1m',
        undefined,
        '--ipvs-min-sync-period: must not be greater than --ipvs-sync-period',
      ],
      [
        '--fqdn-ttl-floor=61s --fqdn-ttl-cap=1m',
        undefined,
        '--fqdn-ttl-floor: must not be greater than --fqdn-ttl-cap',
      ],
      [
        '--fqdn-ttl-floor=500ms --fqdn-ttl-cap=0',
        undefined,
        '--fqdn-ttl-floor: must be a whole number of seconds, like a DNS TTL',
        '--fqdn-ttl-cap: must be greater than 0',
      ],
      [
        '',
        'portwide: {networkPolicy: {fqdnTtlFloor: 2h}}',
        '/f: portwide.networkPolicy.fqdnTtlFloor: must not be greater than portwide.networkPolicy.fqdnTtlCap',
      ],
      [
        '--detect-local-mode=BridgeInterface',
        undefined,
        '--detect-local-mode: BridgeInterface requires --pod-bridge-interface',
      ],
      [
        '--detect-local-mode=InterfaceNamePrefix',
        undefined,
        '--detect-local-mode: InterfaceNamePrefix requires --pod-interface-name-prefix',
      ],
      [
        '--manifests=/m --kubeconfig=/k --master=m',
        undefined,
        '--manifests: cannot be combined with --kubeconfig',
        '--manifests: cannot be combined with --master',
      ],
      ['--manifests=/m --master=m', '', '--manifests: cannot be combined with --master'],
      [
        '--hostname-override=a_b',
        '',
        '--hostname-override: must be a node name: letters, digits, "-" and ".", not "a_b"',
      ],
      [
        '-v=high',
        'iptables: {minSyncPeriod: 31s}\noomScoreAdj: x\ndetectLocalMode: BridgeInterface\nfoo: 1',
        '-v: must be a number from 0 to 2147483647, not "high"',
        '/f: oomScoreAdj: must be a number from -1000 to 1000, not "x"',
        '/f: iptables.minSyncPeriod: must not be greater than iptables.syncPeriod',
        '/f: detectLocalMode: BridgeInterface requires detectLocal.bridgeInterface',
      ],
      [
        '--proxy-mode=ipvs --feature-gates=KubeProxyIPVS=false',
        undefined,
        '--proxy-mode: must be nftables or iptables: --feature-gates has KubeProxyIPVS=false',
      ],
      [
        '',
        'mode: ipvs\nfeatureGates: {KubeProxyIPVS: false}',
        '/f: mode: must be nftables or iptables: featureGates has KubeProxyIPVS=false',
      ],
      ['--feature-gates=KubeProxyIPVS=false', undefined],
      ['--proxy-mode=iptables --feature-gates=NFTablesProxyMode=false', undefined],
      [
        '--feature-gates=NFTablesProxyMode=false',
        undefined,
        '--proxy-mode: must be iptables or ipvs: --feature-gates has NFTablesProxyMode=false',
      ],
      [
        '--feature-gates=TopologyAwareHints=false,AllowServiceExternalIP=false',
        undefined,
        '--feature-gates: TopologyAwareHints=false is not supported: topology hints are used, always; remove the gate; "AllowServiceExternalIP" is no feature gate of Portwide or of Kubernetes 1.28 to 1.37; correct or remove it, because a gate may change traffic',
      ],
      [
        '',
        'featureGates: {LoadBalancerIPMode: false}',
        '/f: featureGates.LoadBalancerIPMode: LoadBalancerIPMode=false is not supported: load balancer IPs with ipMode Proxy are left to the load balancer, always; remove the gate',
      ],
      // No conflict is reported for an option whose own value is invalid.
      [
        '',
        'iptables: {syncPeriod: x, minSyncPeriod: 31s}',
        '/f: iptables.syncPeriod: must be a duration such as 30s, 1m30s or 500ms, not "x"',
      ],
    ];
    for (const [args, config, ...expected] of cases) {
      it(`${args} ${config ?? ''}`, () => {
        const given = args.split(' ').filter((arg) => arg !== '');
        const actual = problemsOf(given, config === undefined ? undefined : file(config));
        assert.deepEqual(actual, expected);
      });
    }
  });

  it('isOn reads a boolean action flag and rejects other values', () => {
    assert.equal(isOn(flags('--cleanup'), 'cleanup'), true);
    assert.equal(isOn(flags('--cleanup=false'), 'cleanup'), false);
    assert.equal(isOn(flags(), 'initOnly'), false);
    assert.throws(() => isOn(flags('--init-only=yes'), 'initOnly'), {
      message: '--init-only: must be true or false, not "yes"',
    });
  });
});
