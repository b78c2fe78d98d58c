import assert from 'node:assert/strict';
import {
  type NodePortSelection,
  namesLoopback,
  selectedAddresses,
  selectsLoopback,
} from '../../services/node-port-addresses.ts';

const OWN = { addresses: ['10.1.0.1', '127.0.0.1', '192.0.2.1'], primary: ['192.0.2.1'] };
const OWN_6 = { addresses: ['2001:db8::1', '::1'], primary: ['2001:db8::1'] };

describe('node-port-addresses: --nodeport-addresses', () => {
  const cases: [
    NodePortSelection,
    ipv4: readonly string[] | 'all',
    ipv6: readonly string[] | 'all',
  ][] = [
    [[], 'all', 'all'],
    [['all'], 'all', 'all'],
    [['all', 'primary', '10.0.0.0/8'], 'all', 'all'],
    [['primary'], ['192.0.2.1'], ['2001:db8::1']],
    [['localhost'], ['127.0.0.1'], ['::1']],
    [
      ['primary', 'localhost'],
      ['127.0.0.1', '192.0.2.1'],
      ['2001:db8::1', '::1'],
    ],
    [['primary', '10.0.0.0/8'], ['10.1.0.1', '192.0.2.1'], ['2001:db8::1']],
    [['10.0.0.0/8'], ['10.1.0.1'], 'all'],
    [['::1/128'], 'all', ['::1']],
    [['0.0.0.0/0', '127.0.0.1/32'], 'all', 'all'],
  ];
  for (const [selection, ipv4, ipv6] of cases) {
    it(`${selection.join() || 'unset'} selects addresses in each family`, () => {
      assert.deepEqual(selectedAddresses(selection, 'IPv4', OWN), ipv4);
      assert.deepEqual(selectedAddresses(selection, 'IPv6', OWN_6), ipv6);
    });
  }

  it('selects a primary address that is not on the node', () => {
    const own = { addresses: ['10.1.0.1'], primary: ['203.0.113.9'] };
    assert.deepEqual(selectedAddresses(['primary'], 'IPv4', own), ['203.0.113.9']);
  });

  const loopback: [NodePortSelection, selected: string, named: string][] = [
    [[], 'IPv4,IPv6', ''],
    [['all'], 'IPv4,IPv6', ''],
    [['primary'], '', ''],
    [['primary', 'localhost'], 'IPv4,IPv6', 'IPv4,IPv6'],
    [['0.0.0.0/0', '127.0.0.1/32'], 'IPv4,IPv6', 'IPv4'],
    [['127.0.0.0/8'], 'IPv4,IPv6', 'IPv4'],
    [['::1/128', 'primary'], 'IPv6', 'IPv6'],
    [['10.0.0.0/8', 'fd00::/8'], '', ''],
  ];
  for (const [selection, selected, named] of loopback) {
    it(`${selection.join() || 'unset'} selects loopback in [${selected}], explicitly in [${named}]`, () => {
      const inFamilies = (holds: typeof namesLoopback) =>
        (['IPv4', 'IPv6'] as const).filter((family) => holds(selection, family)).join();
      assert.equal(inFamilies(selectsLoopback), selected);
      assert.equal(inFamilies(namesLoopback), named);
    });
  }
});
