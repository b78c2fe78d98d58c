import assert from 'node:assert/strict';
import { InvalidValueError } from '../../config/errors.ts';
import { featureGates } from '../../config/feature-gates.ts';
import { moduleLevels, quantity } from '../../config/map-types.ts';
import {
  bindAddress,
  cidrs,
  clusterCidrs,
  interfaceName,
  interfacePrefix,
  ipAddress,
  markRange,
  nodeName,
  nodePortSelection,
  scheduler,
} from '../../config/network-types.ts';
import {
  boolean,
  decimalNumber,
  duration,
  durationOrNanoseconds,
  oneOf,
  optional,
  type ValueType,
  wholeNumber,
} from '../../config/value-types.ts';

const positive = duration({ zero: false });
const nonNegative = duration({ zero: true });
const bit = wholeNumber(0, 31);
const metrics = bindAddress(10249);
const GATES = { AllPorts: true, AllowServiceExternalIPs: true };
const color = oneOf('<color>', ['red', 'blue']);

type Case = readonly [name: string, type: ValueType<unknown>, given: unknown, expected?: unknown];

const FLAGS: readonly Case[] = [
  ['a duration', positive, '1m30s', 90_000],
  ['a duration', nonNegative, '0', 0],
  ['a boolean', boolean, 'true', true],
  ['a boolean', boolean, 'false', false],
  ['a boolean', boolean, 'TRUE', true],
  ['a boolean', boolean, 'T', true],
  ['a boolean', boolean, '0', false],
  ['a boolean', boolean, 'False', false],
  ['a number', bit, '0', 0],
  ['a number', bit, '-0', 0],
  ['a number', bit, '31', 31],
  ['a number', wholeNumber(-1000, 1000), '-999', -999],
  ['a decimal', decimalNumber, '2.5', 2.5],
  ['a choice', color, 'blue', 'blue'],
  ['an optional choice', optional(color), '', undefined],
  ['cluster CIDRs', clusterCidrs, '', []],
  ['cluster CIDRs', clusterCidrs, '10.244.0.1/16, fd00::/48', ['10.244.0.0/16', 'fd00::/48']],
  ['node port addresses', nodePortSelection, '', []],
  ['node port addresses', nodePortSelection, 'primary', ['primary']],
  ['node port addresses', nodePortSelection, 'all', ['all']],
  [
    'node port addresses',
    nodePortSelection,
    'primary,10.0.0.7/8, localhost,fd00::/8,all',
    ['primary', '10.0.0.0/8', 'localhost', 'fd00::/8', 'all'],
  ],
  ['node port addresses', nodePortSelection, '10.0.0.0/8', ['10.0.0.0/8']],
  ['CIDRs', cidrs, '', []],
  ['CIDRs', cidrs, '10.0.0.1/8, 10.1.0.0/16,fd00::/8', ['10.0.0.0/8', '10.1.0.0/16', 'fd00::/8']],
  ['an address', ipAddress, 'FD00::0:1', 'fd00::1'],
  ['a bind address', metrics, '127.0.0.1:80', { host: '127.0.0.1', port: 80 }],
  ['a bind address', metrics, '[::1]:65535', { host: '::1', port: 65535 }],
  ['a bind address', metrics, '0.0.0.0', { host: '0.0.0.0', port: 10249 }],
  ['a bind address', metrics, '::', { host: '::', port: 10249 }],
  ['a bind address', metrics, '::1:80', { host: '::1:80', port: 10249 }],
  ['a bind address', metrics, '', undefined],
  ['a node name', nodeName, ' Node-1.Example ', 'node-1.example'],
  ['an interface', interfaceName, 'cbr0.12@x:y-z_a', 'cbr0.12@x:y-z_a'],
  ['an interface prefix', interfacePrefix, 'cali', 'cali'],
  ['a scheduler', scheduler, '', 'rr'],
  ['a scheduler', scheduler, 'weighted_lc_123', 'weighted_lc_123'],
  ['a mark range', markRange, '0x1000-0x3fff', { first: 0x1000, last: 0x3fff }],
  ['a mark range', markRange, '0X10-0XfF', { first: 16, last: 255 }],
  ['a mark range', markRange, '1-3', { first: 1, last: 3 }],
  ['a mark range', markRange, '4096-0xffffffff', { first: 4096, last: 0xffffffff }],
  ['feature gates', featureGates, '', GATES],
  ['feature gates', featureGates, ' AllPorts = false ,', { ...GATES, AllPorts: false }],
  ['feature gates', featureGates, 'WinDSR=true', { ...GATES, WinDSR: true }],
  ['feature gates', featureGates, 'WinDSR=1', { ...GATES, WinDSR: true }],
  ['feature gates', featureGates, 'SidecarContainers=T', { ...GATES, SidecarContainers: true }],
  [
    'feature gates',
    featureGates,
    'TopologyAwareHints=true',
    { ...GATES, TopologyAwareHints: true },
  ],
  ['feature gates', featureGates, 'AllBeta=false', { ...GATES, AllBeta: false }],
  [
    'module levels',
    moduleLevels,
    'a*=3,b=0',
    [
      { filePattern: 'a*', verbosity: 3 },
      { filePattern: 'b', verbosity: 0 },
    ],
  ],
  ['a quantity', quantity, '64Ki', '64Ki'],
];

const WRONG_FLAGS: readonly Case[] = [
  ['a duration', positive, '30'],
  ['a duration', positive, '0s'],
  ['a duration', nonNegative, '-1s'],
  ['a boolean', boolean, 'yes'],
  ['a boolean', boolean, 'tRUE'],
  ['a boolean', boolean, ''],
  ['a number', bit, ''],
  ['a number', bit, '-1'],
  ['a number', bit, '32'],
  ['a number', bit, '1.5'],
  ['a number', bit, '0x1'],
  ['a number', bit, '1e1'],
  ['a decimal', decimalNumber, 'NaN'],
  ['a decimal', decimalNumber, 'Infinity'],
  ['a decimal', decimalNumber, ''],
  ['a choice', color, 'Red'],
  ['cluster CIDRs', clusterCidrs, '10.0.0.0'],
  ['cluster CIDRs', clusterCidrs, '10.0.0.0/8,10.1.0.0/16'],
  ['cluster CIDRs', clusterCidrs, '10.0.0.0/8 -j ACCEPT'],
  ['node port addresses', nodePortSelection, 'Primary'],
  ['node port addresses', nodePortSelection, 'localhost,127.0.0.1'],
  ['node port addresses', nodePortSelection, 'any'],
  ['CIDRs', cidrs, '10.0.0.1'],
  ['CIDRs', cidrs, '10.0.0.0/8,'],
  ['an address', ipAddress, ''],
  ['an address', ipAddress, 'localhost'],
  ['an address', ipAddress, '010.0.0.1'],
  ['an address', ipAddress, '::ffff:10.0.0.1'],
  ['a bind address', metrics, '[127.0.0.1:80'],
  ['a bind address', metrics, '127.0.0.1:0'],
  ['a bind address', metrics, '127.0.0.1:65536'],
  ['a bind address', metrics, ':10249'],
  ['a bind address', metrics, 'localhost:10249'],
  ['a node name', nodeName, '   '],
  ['a node name', nodeName, 'a b'],
  ['an interface', interfaceName, 'sixteen_letters_'],
  ['an interface prefix', interfacePrefix, 'fifteen_letters'],
  ['an interface prefix', interfacePrefix, 'a"b'],
  ['a scheduler', scheduler, 'RR'],
  ['a scheduler', scheduler, 'rr; reboot'],
  ['a scheduler', scheduler, 'sixteen_letters_'],
  ['a mark range', markRange, ''],
  ['a mark range', markRange, '0x1000'],
  ['a mark range', markRange, '0-10'],
  ['a mark range', markRange, '1-2'],
  ['a mark range', markRange, '10-1'],
  ['a mark range', markRange, '1-0x100000000'],
  ['a mark range', markRange, '-5-10'],
  ['a mark range', markRange, '1e3-2e3'],
  ['feature gates', featureGates, 'AllPorts'],
  ['feature gates', featureGates, 'AllPorts=true=false'],
  ['feature gates', featureGates, 'All-Ports=true'],
  ['feature gates', featureGates, '=true'],
  ['feature gates', featureGates, '__proto__=true'],
  ['feature gates', featureGates, 'WinDSR=yes'],
  ['feature gates', featureGates, 'SomeNewGate=true'],
  ['feature gates', featureGates, 'constructor=true'],
  ['module levels', moduleLevels, 'a'],
  ['module levels', moduleLevels, '=3'],
  ['module levels', moduleLevels, 'a=-1'],
  ['a quantity', quantity, '1 K'],
  ['a quantity', quantity, ''],
];

const FILES: readonly Case[] = [
  ['a duration', positive, '500ms', 500],
  ['a duration or nanoseconds', durationOrNanoseconds, 5_000_000_000, 5000],
  ['a duration or nanoseconds', durationOrNanoseconds, '5s', 5000],
  ['a boolean', boolean, false, false],
  ['a number', bit, 31, 31],
  ['a number', bit, -0, 0],
  ['a decimal', decimalNumber, 0.5, 0.5],
  ['CIDRs', cidrs, ['10.0.0.1/8'], ['10.0.0.0/8']],
  ['node port addresses', nodePortSelection, ['primary', 'localhost'], ['primary', 'localhost']],
  ['feature gates', featureGates, { AllPorts: false }, { ...GATES, AllPorts: false }],
  [
    'module levels',
    moduleLevels,
    [{ filePattern: 'a', verbosity: 2 }, { filePattern: 'b' }],
    [
      { filePattern: 'a', verbosity: 2 },
      { filePattern: 'b', verbosity: 0 },
    ],
  ],
  ['a quantity', quantity, 0, '0'],
];

const WRONG_FILES: readonly Case[] = [
  ['a duration', positive, 30],
  ['a duration', positive, true],
  ['a duration or nanoseconds', durationOrNanoseconds, -1],
  ['a boolean', boolean, 'true'],
  ['a boolean', boolean, 0],
  ['a number', bit, '14'],
  ['a number', bit, 1.5],
  ['a number', bit, Infinity],
  ['a number', bit, 1e30],
  ['a decimal', decimalNumber, Number.NaN],
  ['a choice', color, 7],
  ['cluster CIDRs', clusterCidrs, ['10.0.0.0/8']],
  ['CIDRs', cidrs, '10.0.0.0/8'],
  ['CIDRs', cidrs, [null]],
  ['feature gates', featureGates, ['AllPorts']],
  ['feature gates', featureGates, { AllPorts: 'true' }],
  ['feature gates', featureGates, { ['__proto__']: true }],
  ['module levels', moduleLevels, { a: 3 }],
  ['module levels', moduleLevels, [3]],
  ['module levels', moduleLevels, [{ verbosity: 3 }]],
  ['module levels', moduleLevels, [{ filePattern: 'a', verbosity: '3' }]],
  ['a quantity', quantity, true],
];

const ignore = () => {};

describe('value-types: value types of settings', () => {
  for (const [name, type, given, expected] of FLAGS) {
    it(`${name}: fromFlag accepts ${JSON.stringify(given)}`, () => {
      assert.deepEqual(type.fromFlag(String(given)), expected);
    });
  }
  for (const [name, type, given] of WRONG_FLAGS) {
    it(`${name}: fromFlag rejects ${JSON.stringify(given)}`, () => {
      assert.throws(() => type.fromFlag(String(given)), InvalidValueError);
    });
  }
  for (const [name, type, given, expected] of FILES) {
    it(`${name}: fromFile accepts ${JSON.stringify(given)}`, () => {
      assert.deepEqual(type.fromFile(given, ignore), expected);
    });
  }
  for (const [name, type, given] of WRONG_FILES) {
    it(`${name}: fromFile rejects ${JSON.stringify(given)}`, () => {
      assert.throws(() => type.fromFile(given, ignore), InvalidValueError);
    });
  }

  it('reports every invalid item of a list with its index', () => {
    assert.throws(() => cidrs.fromFile(['10.0.0.0/8', 'a', 7], ignore), {
      problems: [
        { at: '[1]', reason: 'must be a CIDR such as 10.0.0.0/8, not "a"' },
        { at: '[2]', reason: 'must be a string (quoted if necessary), not 7' },
      ],
    });
  });

  it('reports every invalid feature gate by name', () => {
    const unknown =
      'is no feature gate of Portwide or of Kubernetes 1.28 to 1.37; correct or remove it, because a gate may change traffic';
    const given = { AllPorts: 1, 'No pe': true, nope: true, SomeGate: 'yes', WinDSR: true };
    assert.throws(() => featureGates.fromFile(given, ignore), {
      problems: [
        { at: 'AllPorts', reason: 'AllPorts must be true or false, not 1' },
        { at: '["No pe"]', reason: `"No pe" ${unknown}` },
        { at: 'nope', reason: `"nope" ${unknown}` },
        { at: 'SomeGate', reason: 'SomeGate must be true or false, not "yes"' },
      ],
    });
  });
});
