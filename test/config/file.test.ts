import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { parse, stringify } from 'yaml';
import { ConfigurationError, formatNotice } from '../../config/errors.ts';
import { readConfigFile } from '../../config/file.ts';
import { DEFAULTS, OPTION_NAMES, RUN_SETTINGS, type RunOptions } from '../../config/settings.ts';
import { configurationText } from '../../config/write.ts';

const HEAD = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n';

/** The options of a file that differ from the defaults, and its problems and warnings. */
function read(text: string) {
  const { options, problems, warnings } = readConfigFile(text, 'f');
  const changed = Object.fromEntries(
    Object.entries(options).filter(([name, value]) => value !== DEFAULTS[name as keyof RunOptions]),
  );
  return { changed, problems: problems.map(formatNotice), warnings: warnings.map(formatNotice) };
}

/** Sets a value at a path, replacing parents that are not objects. */
function set(root: Record<string, unknown>, path: readonly string[], value: unknown): void {
  let section = root;
  for (const segment of path.slice(0, -1)) {
    const below = section[segment];
    const isSection = typeof below === 'object' && below !== null && !Array.isArray(below);
    section[segment] = isSection ? below : {};
    section = section[segment] as Record<string, unknown>;
  }
  section[path.at(-1) ?? ''] = value;
}

const body = (text: string) => read(`${HEAD}${text}\n`);

describe('file: readConfigFile', () => {
  // mocha raises the stack trace limit, and the recursive parser's errors are ten thousand calls deep.
  const { stackTraceLimit } = Error;
  before(() => {
    Error.stackTraceLimit = 10;
  });
  after(() => {
    Error.stackTraceLimit = stackTraceLimit;
  });

  describe('accepts', () => {
    const cases: readonly (readonly [text: string, expected: Partial<RunOptions>])[] = [
      ['', {}],
      ['mode: ipvs', { proxyMode: 'ipvs' }],
      ['hostnameOverride: " Node-A "', { hostnameOverride: 'node-a' }],
      [
        'clientConnection: {kubeconfig: /k, qps: 7.5, burst: 9}',
        {
          kubeconfig: '/k',
          kubeApiQps: 7.5,
          kubeApiBurst: 9,
        },
      ],
      [
        'iptables: {masqueradeBit: 0, localhostNodePorts: false, masqueradeAll: true}',
        {
          iptablesMasqueradeBit: 0,
          iptablesLocalhostNodeports: false,
          masqueradeAll: true,
        },
      ],
      [
        'iptables: {syncPeriod: 1m30s, minSyncPeriod: 10ms}',
        {
          iptablesSyncPeriod: 90_000,
          iptablesMinSyncPeriod: 10,
        },
      ],
      [
        'ipvs: {scheduler: mh, strictARP: true, excludeCIDRs: [10.9.0.0/16], tcpFinTimeout: 5s}',
        {
          ipvsScheduler: 'mh',
          ipvsStrictArp: true,
          ipvsExcludeCidrs: ['10.9.0.0/16'],
          ipvsTcpfinTimeout: 5000,
        },
      ],
      [
        'detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}',
        {
          detectLocalMode: 'BridgeInterface',
          podBridgeInterface: 'cbr0',
        },
      ],
      ['clusterCIDR: 10.244.0.0/16,fd00::/48', { clusterCidr: ['10.244.0.0/16', 'fd00::/48'] }],
      ['nodePortAddresses: [primary]', { nodeportAddresses: ['primary'] }],
      [
        'nodePortAddresses: [primary, localhost, 192.0.2.7/24]',
        { nodeportAddresses: ['primary', 'localhost', '192.0.2.0/24'] },
      ],
      ['nodePortAddresses: [all]', { nodeportAddresses: ['all'] }],
      ['nodePortAddresses: [192.0.2.7/24]', { nodeportAddresses: ['192.0.2.0/24'] }],
      ['oomScoreAdj: 0', { oomScoreAdj: 0 }],
      [
        'conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpBeLiberal: true}',
        {
          conntrackMaxPerCore: 0,
          conntrackTcpTimeoutEstablished: 0,
          conntrackTcpBeLiberal: true,
        },
      ],
      [
        'featureGates: {AllPorts: false, NFTablesProxyMode: true}',
        {
          featureGates: {
            AllPorts: false,
            AllowServiceExternalIPs: true,
            NFTablesProxyMode: true,
          },
        },
      ],
      [
        'logging: {verbosity: 4, format: json, flushFrequency: 1000000}',
        {
          v: 4,
          loggingFormat: 'json',
          logFlushFrequency: 1,
        },
      ],
      ['metricsBindAddress: 0.0.0.0', { metricsBindAddress: { host: '0.0.0.0', port: 10249 } }],
      ['healthzBindAddress: "[::1]:99"', { healthzBindAddress: { host: '::1', port: 99 } }],
      ['bindAddress: 192.0.2.1', { bindAddress: '192.0.2.1' }],
      [
        'portwide: {iptables: {variant: legacy}, ipvs: {fwmarkRange: 1-9, allPorts: iptables}}',
        {
          iptablesVariant: 'legacy',
          ipvsFwmarkRange: { first: 1, last: 9 },
          ipvsAllPorts: 'iptables',
        },
      ],
      [
        'portRange: 300-2000\nwindowsRunAsService: true\nwinkernel: {networkName: n}',
        {
          portRange: '300-2000',
          windowsRunAsService: true,
          winkernelNetworkName: 'n',
        },
      ],
    ];
    for (const [text, expected] of cases) {
      it(text, () => {
        assert.deepEqual(body(text), { changed: expected, problems: [], warnings: [] });
      });
    }

    it('JSON with tabs', () => {
      const text = `{\n\t"kind": "KubeProxyConfiguration",\n\t"mode": "ipvs",\n\t"apiVersion": "kubeproxy.config.k8s.io/v1alpha1"\n}`;
      assert.deepEqual(read(text), { changed: { proxyMode: 'ipvs' }, problems: [], warnings: [] });
    });

    it('anchors and merge keys', () => {
      const text =
        'iptables: &p {syncPeriod: 5s, minSyncPeriod: 2s}\nipvs: {<<: *p, scheduler: sh}';
      assert.deepEqual(body(text), {
        changed: {
          iptablesSyncPeriod: 5000,
          iptablesMinSyncPeriod: 2000,
          ipvsSyncPeriod: 5000,
          ipvsMinSyncPeriod: 2000,
          ipvsScheduler: 'sh',
        },
        problems: [],
        warnings: [],
      });
    });

    it('an IPv6 bindAddress, which makes the default server addresses IPv6', () => {
      assert.deepEqual(body('bindAddress: "FD00::1"').changed, {
        bindAddress: 'fd00::1',
        healthzBindAddress: { host: '::', port: 10256 },
        metricsBindAddress: { host: '::1', port: 10249 },
      });
      const { metricsBindAddress } = body(
        'bindAddress: "::"\nmetricsBindAddress: 127.0.0.1:1',
      ).changed;
      assert.deepEqual(metricsBindAddress, { host: '127.0.0.1', port: 1 });
    });

    it("kubeadm's ConfigMap, whose null, empty and zero fields mean the default", () => {
      const file = new URL('kube-proxy-configmap.yaml', import.meta.url);
      const { data } = parse(readFileSync(file, 'utf8')) as { data: Record<string, string> };
      assert.deepEqual(read(data['config.conf'] ?? ''), {
        changed: {
          kubeconfig: '/var/lib/kube-proxy/kubeconfig.conf',
          clusterCidr: ['10.244.0.0/16', 'fd00:10:244::/56'],
        },
        problems: [],
        warnings: [],
      });
    });
  });

  describe('reports as a problem', () => {
    const cases: readonly (readonly [text: string, ...expected: string[]])[] = [
      ['mode: userspace', 'f: mode: must be one of nftables, iptables, ipvs, not "userspace"'],
      ['mode: [ipvs]', 'f: mode: must be a string (quoted if necessary), not a list'],
      ['hostnameOverride: 7', 'f: hostnameOverride: must be a string (quoted if necessary), not 7'],
      [
        'hostnameOverride: "a b"',
        'f: hostnameOverride: must be a node name: letters, digits, "-" and ".", not "a b"',
      ],
      ['iptables: 7', 'f: iptables: must be an object, not 7'],
      ['iptables: []', 'f: iptables: must be an object, not a list'],
      [
        'iptables: {masqueradeBit: 32}',
        'f: iptables.masqueradeBit: must be a number from 0 to 31, not 32',
      ],
      [
        'iptables: {masqueradeBit: "14"}',
        'f: iptables.masqueradeBit: must be a number from 0 to 31, not "14"',
      ],
      [
        'iptables: {masqueradeAll: yes}',
        'f: iptables.masqueradeAll: must be true or false, not "yes"',
      ],
      [
        'iptables: {syncPeriod: 30}',
        'f: iptables.syncPeriod: must be a string (quoted if necessary), not 30',
      ],
      [
        'iptables: {syncPeriod: soon}',
        'f: iptables.syncPeriod: must be a duration such as 30s, 1m30s or 500ms, not "soon"',
      ],
      ['iptables: {syncPeriod: -1s}', 'f: iptables.syncPeriod: must be at least 0, not "-1s"'],
      [
        'ipvs: {scheduler: "rr;"}',
        'f: ipvs.scheduler: must be the name of an IPVS scheduler, such as rr or mh, not "rr;"',
      ],
      [
        'ipvs: {excludeCIDRs: [10.0.0.0/8, x, 10.0.0.0/40]}',
        'f: ipvs.excludeCIDRs[1]: must be a CIDR such as 10.0.0.0/8, not "x"',
        'f: ipvs.excludeCIDRs[2]: must be a CIDR such as 10.0.0.0/8, not "10.0.0.0/40"',
      ],
      [
        'clusterCIDR: 10.0.0.0',
        'f: clusterCIDR: must be a CIDR such as 10.0.0.0/8, not "10.0.0.0"',
      ],
      [
        'clusterCIDR: 10.0.0.0/8,11.0.0.0/8',
        'f: clusterCIDR: must have at most one CIDR per IP family',
      ],
      [
        'nodePortAddresses: [primary, 10.0.0.0]',
        'f: nodePortAddresses[1]: must be a CIDR, "primary", "localhost" or "all", not "10.0.0.0"',
      ],
      ['nodePortAddresses: primary', 'f: nodePortAddresses: must be a list, not "primary"'],
      ['oomScoreAdj: -1001', 'f: oomScoreAdj: must be a number from -1000 to 1000, not -1001'],
      ['oomScoreAdj: 1e400', 'f: oomScoreAdj: must be a number from -1000 to 1000, not Infinity'],
      [
        'conntrack: {maxPerCore: -1, min: 99999999999}',
        'f: conntrack.maxPerCore: must be a number from 0 to 2147483647, not -1',
        'f: conntrack.min: must be a number from 0 to 2147483647, not 99999999999',
      ],
      ['conntrack: {udpTimeout: -5s}', 'f: conntrack.udpTimeout: must be at least 0, not "-5s"'],
      [
        'detectLocalMode: Magic',
        'f: detectLocalMode: must be one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix, not "Magic"',
      ],
      ['bindAddress: here', 'f: bindAddress: must be an IP address, not "here"'],
      [
        'metricsBindAddress: "localhost:10249"',
        'f: metricsBindAddress: must be ADDRESS:PORT, such as 127.0.0.1:10249 or [::1]:10249, not "localhost:10249"',
      ],
      [
        'healthzBindAddress: "0.0.0.0:0"',
        'f: healthzBindAddress: must be ADDRESS:PORT, such as 127.0.0.1:10256 or [::1]:10256, not "0.0.0.0:0"',
      ],
      [
        'featureGates: {No-pe: true}',
        'f: featureGates.No-pe: "No-pe" is no feature gate of Portwide or of Kubernetes 1.28 to 1.37; correct or remove it, because a gate may change traffic',
      ],
      ['featureGates: {Nope: 1}', 'f: featureGates.Nope: Nope must be true or false, not 1'],
      [
        'logging: {verbosity: -1}',
        'f: logging.verbosity: must be a number from 0 to 2147483647, not -1',
      ],
      [
        'logging: {vmodule: [{filePattern: "a=b"}]}',
        'f: logging.vmodule[0]: must be a pattern of file names without "=" and ",", not "a=b"',
      ],
      ['portRange: all', 'f: portRange: must be a range of ports such as 300-2000, not "all"'],
      [
        'portwide: {ipvs: {fwmarkRange: 7, allPorts: none}}',
        'f: portwide.ipvs.fwmarkRange: must be a string (quoted if necessary), not 7',
        'f: portwide.ipvs.allPorts: must be one of fwmark, iptables, not "none"',
      ],
      [
        'mode: x\noomScoreAdj: y\nlogging: {format: z}',
        'f: mode: must be one of nftables, iptables, ipvs, not "x"',
        'f: oomScoreAdj: must be a number from -1000 to 1000, not "y"',
        'f: logging.format: must be one of text, json, not "z"',
      ],
    ];
    for (const [text, ...expected] of cases) {
      it(text, () => assert.deepEqual(body(text).problems, expected));
    }

    it('and keeps the default of an invalid field', () => {
      const { options, invalid } = readConfigFile(`${HEAD}oomScoreAdj: x\n`, 'f');
      assert.equal(options.oomScoreAdj, -999);
      assert.deepEqual([...invalid], ['oomScoreAdj']);
    });
  });

  describe('warns about', () => {
    const cases: readonly (readonly [text: string, ...expected: string[]])[] = [
      ['modes: ipvs', 'f: modes: unknown field; ignored'],
      ['Mode: ipvs', 'f: Mode: unknown field; ignored'],
      [
        'ipvs: {syncPeriods: 5s, "a b": 1}',
        'f: ipvs.syncPeriods: unknown field; ignored',
        'f: ipvs["a b"]: unknown field; ignored',
      ],
      ['mode: {ipvs: 1}\n__proto__: {mode: ipvs}', 'f: __proto__: unknown field; ignored'],
      ['constructor: 1', 'f: constructor: unknown field; ignored'],
      [
        'logging: {vmodule: [{filePattern: a, level: 3}]}',
        'f: logging.vmodule[0].level: unknown field; ignored',
      ],
      ['oomScoreAdj: 1\noomScoreAdj: 2', 'f: oomScoreAdj: duplicate field; the last value is used'],
      [
        'iptables: {masqueradeBit: 1, masqueradeBit: 2, masqueradeBit: 3}\nkind: KubeProxyConfiguration',
        'f: kind: duplicate field; the last value is used',
        'f: iptables.masqueradeBit: duplicate field; the last value is used',
        'f: iptables.masqueradeBit: duplicate field; the last value is used',
      ],
      [
        'featureGates: {WinDSR: true, WinDSR: false}',
        'f: featureGates.WinDSR: duplicate field; the last value is used',
      ],
      ['mode: ""\n---\nmode: ipvs', 'f: several YAML documents; only the first is used'],
    ];
    for (const [text, ...expected] of cases) {
      it(text, () => assert.deepEqual(new Set(body(text).warnings), new Set(expected)));
    }

    it('nothing when the second document is empty', () => {
      assert.deepEqual(body('mode: ipvs\n---\n# nothing').warnings, []);
    });

    it('duplicate fields, and uses the last', () => {
      assert.deepEqual(body('oomScoreAdj: 1\noomScoreAdj: 2').changed, { oomScoreAdj: 2 });
    });
  });

  describe('rejects', () => {
    const cases: readonly (readonly [name: string, text: string, ...expected: string[]])[] = [
      ['an empty file', '', 'f: must be a KubeProxyConfiguration, not an empty file'],
      [
        'white space and comments',
        ' \n# hm\n',
        'f: must be a KubeProxyConfiguration, not an empty file',
      ],
      ['a word', 'hello', 'f: must be a KubeProxyConfiguration, not "hello"'],
      [
        'control characters',
        '\u0000\u0001\u007f',
        'f: must be a KubeProxyConfiguration, not "\\u0000\\u0001\\u007f"',
      ],
      ['a list', '- 1', 'f: must be a KubeProxyConfiguration, not a list'],
      [
        'another version',
        HEAD.replace('v1alpha1', 'v1'),
        'f: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1, not "kubeproxy.config.k8s.io/v1"',
      ],
      [
        'another kind, without checking its fields',
        'apiVersion: v1\nkind: ConfigMap\nmode: 7\n',
        'f: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1, not "v1"',
        'f: kind: must be KubeProxyConfiguration, not "ConfigMap"',
      ],
      [
        'an object of nothing',
        '{}',
        'f: apiVersion: must be kubeproxy.config.k8s.io/v1alpha1',
        'f: kind: must be KubeProxyConfiguration',
      ],
      [
        'a document after an empty one',
        `---\n---\n${HEAD}`,
        'f: must be a KubeProxyConfiguration, not an empty file',
      ],
      [
        'broken YAML',
        `${HEAD}iptables:\n  - {\n`,
        'f: line 5: Flow map in block collection must be sufficiently indented and end with a }',
      ],
      ['depth without end', '['.repeat(3000), 'f: is nested too deeply'],
    ];
    for (const [name, text, ...expected] of cases) {
      it(name, () => {
        assert.throws(
          () => readConfigFile(text, 'f'),
          (error: unknown) => {
            assert.ok(error instanceof ConfigurationError);
            assert.deepEqual(error.problems.map(formatNotice), expected);
            return true;
          },
        );
      });
    }

    it('no value with an error other than a problem of its field', () => {
      const fields = OPTION_NAMES.flatMap((name) => RUN_SETTINGS[name].field ?? []);
      const document = fc.array(
        fc.tuple(fc.constantFrom(...fields), fc.oneof(fc.jsonValue(), fc.integer(), fc.string())),
      );
      fc.assert(
        fc.property(document, (values) => {
          const whole: Record<string, unknown> = {
            apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
            kind: 'KubeProxyConfiguration',
          };
          for (const [field, value] of values) set(whole, field.split('.'), value);
          for (const text of [JSON.stringify(whole), stringify(whole)]) {
            const { options, problems, warnings } = readConfigFile(text, 'f');
            for (const notice of [...problems, ...warnings]) {
              assert.match(formatNotice(notice), /^f: [\x20-\x7e]+: [\x20-\x7e]+$/);
            }
            // Whatever the file has, the result is a valid configuration.
            assert.deepEqual(readConfigFile(configurationText(options), 'f').problems, []);
          }
        }),
        { seed: 3, numRuns: 80 },
      );
    });

    it('no text with an error other than ConfigurationError', () => {
      const texts = fc.oneof(
        fc.string({ unit: 'binary', maxLength: 60 }),
        fc.string({ unit: fc.constantFrom(...' \n\t:-{}[]&*#|>!%@"\'?,amode1\\'), maxLength: 60 }),
      );
      fc.assert(
        fc.property(texts, fc.boolean(), (text, hasHead) => {
          try {
            readConfigFile(hasHead ? `${HEAD}${text}` : text, 'f');
          } catch (error) {
            if (!(error instanceof ConfigurationError)) throw error;
            assert.match(error.message, /^[\x20-\x7e\n]+$/);
          }
        }),
        { seed: 4, numRuns: 250 },
      );
    });

    it('anchors that expand exponentially (billion laughs)', () => {
      const levels = Array.from({ length: 9 }, (_, level) => {
        const below = level === 0 ? 'x' : `*a${level - 1}`;
        return `a${level}: &a${level} [${Array(9).fill(below).join(', ')}]`;
      });
      assert.throws(() => body(levels.join('\n')), ConfigurationError);
    });
  });
});
