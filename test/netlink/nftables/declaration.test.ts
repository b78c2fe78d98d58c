import assert from 'node:assert/strict';
import { AF_INET } from '../../../netlink/core/address.ts';
import { declarationRequest } from '../../../netlink/nftables/declaration.ts';
import { setFields } from '../../../nft/declaration.ts';
import { flowtableDeclarations } from '../../../nftables/flowtable.ts';

const TABLE = { family: AF_INET, name: 't' };
/** Family of the table, version, resource; NFTA_TABLE_NAME. */
const START = '02000000' + '0600010074000000';

/**
 * Messages of nft 1.0.6 on a little-endian machine, recorded with `strace -x -e sendmsg nft -f`:
 * `table ip t { flowtable services { hook ingress priority filter; counter; } set d … }`
 */
const FLOWTABLE =
  '0d000200' +
  '736572766963657300000000' +
  '14000380' +
  '0800010000000000' +
  '0800020000000000' +
  '0800070000000002';
const NAMES =
  '0600020064000000' +
  '0800030000000000' +
  '0800040000000029' +
  '0800050000000010' +
  '08000a0000000001' +
  '1a000d00' +
  '000401000000' +
  '030e' +
  '000409000000' +
  '0106' +
  '000406000000' +
  '0000';
const PAIRS =
  '0600020068000000' +
  '0800030000000000' +
  '0800040000000a69' +
  '0800050000000020' +
  '08000a0000000001' +
  '34000d00' +
  '000400000000' +
  '0328' +
  '00040d000000' +
  '0120' +
  '000e' +
  '000409000000' +
  '0106' +
  '000406000000' +
  '010e' +
  '000409000000' +
  '0106' +
  '000407000000';

describe('declaration: requests that create objects', () => {
  const bytes = (declared: Parameters<typeof declarationRequest>[1]) =>
    declarationRequest(TABLE, declared).payload.toString('hex');

  it('has the bytes of nft for a flowtable and its sets', () => {
    const [flowtable, names, pairs] = flowtableDeclarations('IPv4');
    assert.ok(flowtable !== undefined && names !== undefined && pairs !== undefined);
    assert.equal(bytes(flowtable), START + FLOWTABLE);
    assert.equal(bytes({ ...names, name: 'd' }), START + NAMES);
    assert.equal(bytes({ ...pairs, name: 'h' }), START + PAIRS);
  });

  it('refuses names that the kernel would truncate', () => {
    const key = [setFields('IPv4').port];
    for (const name of ['', 'a'.repeat(256), 'a\0b'])
      assert.throws(() => declarationRequest(TABLE, { kind: 'set', name, key }), RangeError);
  });
});
