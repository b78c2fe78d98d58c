import assert from 'node:assert/strict';
import fc from 'fast-check';
import { canonicalAddress } from '../../api/addresses.ts';
import {
  addressLabel,
  domainProblem,
  labelledAddress,
  lengthProblem,
  reverseName,
} from '../../dns/names.ts';

const label = (length: number) => 'x'.repeat(length);

describe('names: names of addresses', () => {
  it('reverses the bytes of IPv4 and the nibbles of IPv6', () => {
    assert.equal(reverseName('10.3.0.1'), '1.0.3.10.in-addr.arpa');
    // The example of RFC 3596, section 2.5.
    assert.equal(
      reverseName('4321:0:1:2:3:4:567:89ab'),
      'b.a.9.8.7.6.5.0.4.0.0.0.3.0.0.0.2.0.0.0.1.0.0.0.0.0.0.0.1.2.3.4.ip6.arpa',
    );
  });

  it('converts addresses to labels and back', () => {
    assert.equal(addressLabel('10.3.0.1'), '10-3-0-1');
    assert.equal(addressLabel('2001:db8::1'), '2001-db8--1');
    assert.equal(addressLabel('fd00:0:0:1::'), 'fd00-0-0-1--0');
    assert.equal(labelledAddress('fd00-0-0-1--0'), 'fd00:0:0:1::');
    const addresses = fc.oneof(
      fc.ipV4(),
      fc
        .ipV6()
        .map((text) => canonicalAddress(text))
        .filter((address) => address !== undefined),
    );
    fc.assert(
      fc.property(addresses, (address) => {
        assert.equal(labelledAddress(addressLabel(address)), address);
      }),
      { seed: 6, numRuns: 500 },
    );
    for (const other of ['', 'web', '10-3-0', '10-3-0-256', '010-3-0-1', '10-3-0-1-2', 'g--1']) {
      assert.equal(labelledAddress(other), undefined, other);
    }
  });
});

describe('names: name limits', () => {
  it('accepts labels of 63 characters and names of 253', () => {
    assert.equal(lengthProblem(label(63)), undefined);
    assert.match(lengthProblem(label(64)) ?? '', /label/);
    assert.equal(
      lengthProblem(`a.${label(64)}.b`),
      `results in a label of more than 63 characters: ${label(64)}`,
    );
    const long = [label(63), label(63), label(63), label(61)].join('.');
    assert.equal(long.length, 253);
    assert.equal(lengthProblem(long), undefined);
    assert.match(
      lengthProblem(`${long}x`) ?? '',
      /^results in a name of more than 253 characters: x/,
    );
  });

  it('accepts domain names of letters, digits and inner hyphens', () => {
    for (const name of [
      'www.example.com',
      'localhost',
      'a-1.b',
      '1.2.3',
      'xn--bcher-kva.example',
    ]) {
      assert.equal(domainProblem(name), undefined, name);
    }
    for (const name of [
      '',
      '.',
      'a..b',
      '-a.b',
      'a-.b',
      'a b',
      'a_b.c',
      '10.3.0.1',
      '2001:db8::1',
    ]) {
      assert.equal(domainProblem(name), `must be a domain name, not ${JSON.stringify(name)}`);
    }
    assert.match(domainProblem(`${label(64)}.example`) ?? '', /63 characters/);
  });
});
