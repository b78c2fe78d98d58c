import assert from 'node:assert/strict';
import {
  type ConntrackKernel,
  configureConntrack,
  conntrackMax,
  conntrackSysctls,
} from '../../agent/conntrack-settings.ts';
import { DEFAULTS, type RunOptions } from '../../config/settings.ts';

const UNCHANGED: RunOptions = {
  ...DEFAULTS,
  conntrackMaxPerCore: 0,
  conntrackTcpTimeoutEstablished: 0,
  conntrackTcpTimeoutCloseWait: 0,
};

/** Kernel settings in memory. An Error as value is thrown on writing. */
function fakeKernel(sysctls: Record<string, string | Error>, hashsize: string | Error) {
  const written: string[] = [];
  const kernel: ConntrackKernel = {
    async readSysctl(name) {
      const value = sysctls[name];
      return value instanceof Error ? 'unknown' : value;
    },
    async writeSysctl(name, value) {
      const before = sysctls[name];
      if (before instanceof Error) throw before;
      written.push(`${name}=${value}`);
    },
    async readHashsize() {
      return hashsize instanceof Error ? '1\n' : hashsize;
    },
    async writeHashsize(value) {
      if (hashsize instanceof Error) throw hashsize;
      written.push(`hashsize=${value}`);
    },
  };
  const warnings: string[] = [];
  const log = {
    info: () => {},
    error: assert.fail,
    warn: (details: object, message: string) => {
      const { sysctl = 'hashsize' } = details as { sysctl?: string };
      warnings.push(`${sysctl}: ${message}`);
    },
  };
  const setUp = (options: RunOptions, cpuCount = 8) =>
    configureConntrack(options, log, kernel, cpuCount);
  return { setUp, written, warnings };
}

const KERNEL = {
  'net.netfilter.nf_conntrack_max': '262144',
  'net.netfilter.nf_conntrack_tcp_timeout_established': '432000',
  'net.netfilter.nf_conntrack_tcp_timeout_close_wait': '60',
  'net.netfilter.nf_conntrack_tcp_be_liberal': '0',
  'net.netfilter.nf_conntrack_udp_timeout': '30',
  'net.netfilter.nf_conntrack_udp_timeout_stream': '120',
};

describe('conntrack-settings: configureConntrack', () => {
  for (const [perCore, min, cpus, expected] of [
    [32_768, 131_072, 2, 131_072],
    [32_768, 131_072, 4, 131_072],
    [32_768, 131_072, 8, 262_144],
    [32_768, 0, 0, 32_768],
    [0, 131_072, 8, undefined],
    [2 ** 31 - 1, 0, 64, 2 ** 31 - 1],
  ] as const) {
    it(`sets nf_conntrack_max to ${expected} for ${cpus} CPUs, ${perCore} per CPU and a minimum of ${min}`, () => {
      const options = { ...DEFAULTS, conntrackMaxPerCore: perCore, conntrackMin: min };
      assert.equal(conntrackMax(options, cpus), expected);
    });
  }

  it('sets all sysctls, with timeouts in whole seconds', () => {
    const options = {
      ...DEFAULTS,
      conntrackTcpBeLiberal: true,
      conntrackUdpTimeout: 30_000,
      conntrackUdpTimeoutStream: 1500,
    };
    assert.deepEqual(Object.fromEntries(conntrackSysctls(options, 8)), {
      'net.netfilter.nf_conntrack_max': '262144',
      'net.netfilter.nf_conntrack_tcp_timeout_established': '86400',
      'net.netfilter.nf_conntrack_tcp_timeout_close_wait': '3600',
      'net.netfilter.nf_conntrack_tcp_be_liberal': '1',
      'net.netfilter.nf_conntrack_udp_timeout': '30',
      'net.netfilter.nf_conntrack_udp_timeout_stream': '1',
    });
  });

  it('rounds a timeout below one second up to 1, because 0 would expire entries immediately', () => {
    const options = { ...UNCHANGED, conntrackUdpTimeout: 10 };
    assert.deepEqual(conntrackSysctls(options, 8), [
      ['net.netfilter.nf_conntrack_udp_timeout', '1'],
    ]);
  });

  it('changes nothing for options that are 0', async () => {
    const { setUp, written, warnings } = fakeKernel({}, '1\n');
    await setUp(UNCHANGED);
    assert.deepEqual([written, warnings], [[], []]);
  });

  it('writes only values that differ, and only enlarges the hash table', async () => {
    const { setUp, written, warnings } = fakeKernel(KERNEL, '65536\n');
    await setUp(DEFAULTS);
    assert.deepEqual(written, [
      'net.netfilter.nf_conntrack_tcp_timeout_established=86400',
      'net.netfilter.nf_conntrack_tcp_timeout_close_wait=3600',
    ]);
    assert.deepEqual(warnings, []);

    const small = fakeKernel(KERNEL, '65535\n');
    await small.setUp({ ...DEFAULTS, conntrackTcpTimeoutEstablished: 0 }, 8);
    assert.deepEqual(small.written, [
      'net.netfilter.nf_conntrack_tcp_timeout_close_wait=3600',
      'hashsize=65536',
    ]);
  });

  it('warns about missing and read-only settings, and sets the others', async () => {
    const readOnly = new Error('EROFS');
    const { 'net.netfilter.nf_conntrack_tcp_timeout_established': _, ...rest } = KERNEL;
    const sysctls = { ...rest, 'net.netfilter.nf_conntrack_max': readOnly };
    const { setUp, written, warnings } = fakeKernel(sysctls, readOnly);
    await setUp(DEFAULTS);
    assert.deepEqual(written, ['net.netfilter.nf_conntrack_tcp_timeout_close_wait=3600']);
    assert.deepEqual(warnings, [
      'net.netfilter.nf_conntrack_max: cannot set sysctl',
      'net.netfilter.nf_conntrack_tcp_timeout_established: cannot set sysctl',
      'hashsize: cannot resize the conntrack hash table',
    ]);
  });
});
