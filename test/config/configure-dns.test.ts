import assert from 'node:assert/strict';
import { configureDns } from '../../config/configure-dns.ts';
import { ConfigurationError } from '../../config/errors.ts';

function problems(texts: Record<string, string>): string[] {
  try {
    configureDns(texts);
  } catch (error) {
    assert.ok(error instanceof ConfigurationError);
    return error.message.split('\n');
  }
  return [];
}

describe('configure-dns: configureDns', () => {
  it('returns the defaults without flags', () => {
    assert.deepEqual(configureDns({}), {
      bindAddress: ['0.0.0.0', '::'],
      port: 53,
      clusterDomain: 'cluster.local',
      ttl: 5,
      forward: undefined,
      cacheTtl: 30,
      lameduck: 5000,
      featureGates: { AllPorts: true, AllowServiceExternalIPs: true },
      kubeconfig: undefined,
      loggingFormat: undefined,
      master: undefined,
      manifests: undefined,
      metricsBindAddress: { host: '127.0.0.1', port: 9153 },
      v: 0,
    });
  });

  for (const [name, given, expected] of [
    ['bindAddress', '10.0.0.1,FD00::1,10.0.0.1', ['10.0.0.1', 'fd00::1']],
    ['port', '5353', 5353],
    ['clusterDomain', 'Cluster.Example.', 'cluster.example'],
    ['ttl', '0', 0],
    ['ttl', '3600', 3600],
    ['forward', '/etc/resolv.conf', [{ file: '/etc/resolv.conf' }]],
    [
      'forward',
      '10.0.0.2:5353,./own.conf,[FD00::1]:54,::1',
      [
        { resolver: { address: '10.0.0.2', port: 5353 } },
        { file: './own.conf' },
        { resolver: { address: 'fd00::1', port: 54 } },
        { resolver: { address: '::1', port: 53 } },
      ],
    ],
    ['cacheTtl', '0', 0],
    ['forward', 'none', undefined],
    ['lameduck', '1m', 60_000],
    ['lameduck', '0s', 0],
    ['metricsBindAddress', '', undefined],
    ['metricsBindAddress', '0.0.0.0', { host: '0.0.0.0', port: 9153 }],
    ['featureGates', 'AllPorts=false', { AllPorts: false, AllowServiceExternalIPs: true }],
  ] as const) {
    it(`accepts ${name}=${given}`, () => {
      assert.deepEqual(configureDns({ [name]: given })[name], expected);
    });
  }

  for (const [name, given, expected] of [
    ['bindAddress', '', /^--bind-address: must have at least one IP address/],
    ['bindAddress', 'localhost', /^--bind-address: must be an IP address/],
    ['port', '0', /^--port: must be a number from 1 to 65535/],
    ['clusterDomain', 'a_b', /^--cluster-domain: must be a domain name/],
    ['clusterDomain', '', /^--cluster-domain/],
    ['clusterDomain', '10.0.0.1', /^--cluster-domain/],
    ['ttl', '3601', /^--ttl: must be a number from 0 to 3600/],
    ['ttl', '5s', /^--ttl/],
    ['forward', '', /^--forward: must be resolver addresses/],
    ['lameduck', '5', /^--lameduck: must be a duration/],
    ['forward', '10.0.0.256:53', /^--forward: must be a path .*, not "10.0.0.256:53"/],
    ['forward', '/etc/resolv.conf,', /^--forward: must be a path .*, not ""/],
    ['cacheTtl', '3601', /^--cache-ttl: must be a number from 0 to 3600/],
    ['metricsBindAddress', 'here', /^--metrics-bind-address/],
    ['featureGates', 'Magic=true', /^--feature-gates: "Magic" is no feature gate/],
  ] as const) {
    it(`rejects ${name}=${given}`, () => {
      const [problem = '', ...others] = problems({ [name]: given });
      assert.match(problem, expected);
      assert.deepEqual(others, []);
    });
  }

  it('reports all problems at once', () => {
    const all = problems({
      port: 'x',
      ttl: 'y',
      manifests: '/m',
      kubeconfig: '/k',
      master: 'http://m',
    });
    assert.deepEqual(
      all.map((line) => line.split(':')[0]),
      ['--port', '--ttl', '--manifests', '--manifests'],
    );
  });
});
