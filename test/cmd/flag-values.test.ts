import assert from 'node:assert/strict';
import {
  bindAddress,
  boolean,
  cidrs,
  clusterCidrs,
  duration,
  featureGates,
  interfacePrefix,
  logLevel,
  markBit,
  markRange,
  nodePortAddresses,
  optionalBindAddress,
  scheduler,
} from '../../cmd/flag-values.ts';

describe('values of flags', () => {
  for (const [parse, text, expected] of [
    [duration, '30s', 30_000],
    [duration, '1m30s', 90_000],
    [duration, '1h0.5s', 3_600_500],
    [duration, '10ms', 10],
    [duration, '0', 0],
    [boolean, 'true', true],
    [boolean, 'false', false],
    [markBit, '0', 0],
    [markBit, '31', 31],
    [clusterCidrs, '', []],
    [clusterCidrs, '10.244.0.1/16,fd00::/48', ['10.244.0.0/16', 'fd00::/48']],
    [nodePortAddresses, '', 'all'],
    [nodePortAddresses, 'primary', 'primary'],
    [nodePortAddresses, '10.0.0.0/8', ['10.0.0.0/8']],
    [interfacePrefix, 'cali', 'cali'],
    [bindAddress, '127.0.0.1:10249', { host: '127.0.0.1', port: 10249 }],
    [bindAddress, '[::1]:80', { host: '::1', port: 80 }],
    [bindAddress, ':0', { host: '', port: 0 }],
    [optionalBindAddress, '', 'none'],
    [optionalBindAddress, '[::]:10256', { host: '::', port: 10256 }],
    [logLevel, '3', 3],
    [logLevel, '=3', 3],
    [featureGates, 'AllPorts=false', { AllPorts: false }],
    [featureGates, '', { AllPorts: true }],
    [cidrs, '', []],
    [cidrs, '10.0.0.1/8, 10.1.0.0/16,fd00::/8', ['10.0.0.0/8', '10.1.0.0/16', 'fd00::/8']],
    [scheduler, '', 'rr'],
    [scheduler, 'mh', 'mh'],
    [scheduler, 'weighted_lc_123', 'weighted_lc_123'],
    [markRange, '0x1000-0x3fff', { first: 0x1000, last: 0x3fff }],
    [markRange, '0X10-0XfF', { first: 16, last: 255 }],
    [markRange, '1-3', { first: 1, last: 3 }],
    [markRange, '4096-0xffffffff', { first: 4096, last: 0xffffffff }],
  ] as const) {
    it(`${parse.name} reads ${JSON.stringify(text)}`, () => {
      assert.deepEqual((parse as (value: string) => unknown)(text), expected);
    });
  }

  for (const [parse, text] of [
    [duration, '30'],
    [duration, '-1s'],
    [duration, 's'],
    [boolean, '1'],
    [markBit, '-1'],
    [markBit, '32'],
    [markBit, '1.5'],
    [clusterCidrs, '10.0.0.0'],
    [clusterCidrs, '10.0.0.0/8 -j ACCEPT'],
    [nodePortAddresses, 'primary,10.0.0.0/8'],
    [interfacePrefix, 'a very long prefix'],
    [interfacePrefix, 'a"b'],
    [bindAddress, '::1:80'],
    [bindAddress, 'host:70000'],
    [logLevel, 'debug'],
    [featureGates, 'AllPorts'],
    [featureGates, 'AllPorts=true=false'],
    [cidrs, '10.0.0.1'],
    [cidrs, '10.0.0.0/8,'],
    [scheduler, 'RR'],
    [scheduler, 'rr; reboot'],
    [scheduler, 'sixteen_letters_'],
    [markRange, ''],
    [markRange, '0x1000'],
    [markRange, '0-10'],
    [markRange, '1-2'],
    [markRange, '10-1'],
    [markRange, '1-0x100000000'],
    [markRange, '-5-10'],
    [markRange, '1e3-2e3'],
  ] as const) {
    it(`${parse.name} refuses ${JSON.stringify(text)}`, () => {
      assert.throws(() => (parse as (value: string) => unknown)(text));
    });
  }
});
