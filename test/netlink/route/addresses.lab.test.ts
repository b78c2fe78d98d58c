import assert from 'node:assert/strict';
import { canonicalAddress } from '../../../api/addresses.ts';
import type { NodeAddress } from '../../../netlink/route/rtnetlink.ts';
import type { NetnsEvent } from '../inhabitant.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../namespace.ts';

describe('addresses of a node', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
    await namespace.run('ip', 'link', 'add', 'pw0', 'type', 'veth', 'peer', 'name', 'pw1');
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  const add = (address: string, ...more: string[]) =>
    namespace.run('ip', 'address', 'add', address, 'dev', 'pw0', ...more);

  async function untilAddresses(what: string, wanted: (texts: string[]) => boolean) {
    const notice = await helper.waitForEvent(
      what,
      (heard) => heard.notice === 'addresses' && wanted(texts(heard.addresses)),
    );
    assert(notice.notice === 'addresses');
    return notice;
  }

  it('are listed with interface, family and prefix, as canonical text', async () => {
    await add('192.0.2.7/24');
    await add('2001:DB8:0:0:1:0:0:1/64', 'nodad');
    await add('10.9.0.1', 'peer', '10.9.0.2/32');
    await add('2001:db8:1::1', 'peer', '2001:db8:1::2/128', 'nodad');
    const listed = await helper.call('listAddresses');
    assert.deepEqual(texts(listed), [
      'lo 127.0.0.1/8',
      'lo ::1/128',
      'pw0 10.9.0.1/32',
      'pw0 192.0.2.7/24',
      'pw0 2001:db8:1::1/128',
      'pw0 2001:db8::1:0:0:1/64',
    ]);
    for (const { address, family } of listed) {
      assert.equal(canonicalAddress(address), address);
      assert.equal(family, address.includes(':') ? 'IPv6' : 'IPv4');
    }
    assert.deepEqual(
      listed.map(({ interfaceIndex }) => interfaceIndex),
      listed.map(({ interfaceIndex }) => interfaceIndex).sort((a, b) => a - b),
    );
  });

  it('leave out an IPv4-mapped one, which has no canonical text', async () => {
    await add('::ffff:192.0.2.9/128', 'nodad');
    await add('2001:db8::5/128', 'nodad');
    assert.deepEqual(texts(await helper.call('listAddresses')).slice(2), ['pw0 2001:db8::5/128']);
  });

  it('are told first, then after each change of an address', async () => {
    await helper.call('watch');
    await untilAddresses('the first list', (list) => list.includes('lo 127.0.0.1/8'));
    await add('192.0.2.7/24');
    await untilAddresses('a new address', (list) => list.includes('pw0 192.0.2.7/24'));
    await add('2001:db8::7/64', 'nodad');
    await untilAddresses('a new IPv6 address', (list) => list.includes('pw0 2001:db8::7/64'));
    await namespace.run('ip', 'address', 'del', '192.0.2.7/24', 'dev', 'pw0');
    await untilAddresses('its end', (list) => !list.includes('pw0 192.0.2.7/24'));
  });

  it('are told after a rename and after the end of a link', async () => {
    await add('192.0.2.7/24');
    await helper.call('watch');
    await untilAddresses('the first list', (list) => list.includes('pw0 192.0.2.7/24'));
    await namespace.run('ip', 'link', 'set', 'pw0', 'name', 'pw9');
    await untilAddresses('the new name', (list) => list.includes('pw9 192.0.2.7/24'));
    await namespace.run('ip', 'link', 'del', 'pw9');
    await untilAddresses('the end of the link', (list) => list.length === 2);
  });

  it('are told again when a link without addresses comes', async () => {
    await helper.call('watch');
    await untilAddresses('the first list', () => true);
    await namespace.run('ip', 'link', 'add', 'pw2', 'type', 'veth', 'peer', 'name', 'pw3');
    await untilAddresses('a call', (list) => list.length === 2);
  });

  it('are told without those of an ignored link', async () => {
    await add('192.0.2.7/24');
    await helper.call('watch', 0, 'pw0');
    await untilAddresses('the first list', (list) => list.length === 2);
    await add('192.0.2.8/24');
    await add('192.0.2.9/24', 'noprefixroute');
    await namespace.run('ip', 'address', 'add', '192.0.2.10/32', 'dev', 'lo');
    await untilAddresses('another', (list) => list.length === 3);
    assert.equal(helper.events.length, 2);
  });

  it('are told in few calls when many change at once', async () => {
    await helper.call('watch');
    await untilAddresses('the first list', () => true);
    await helper.call('hold', batchOf(500), 'ip', '-batch', '-');
    await untilAddresses('all', (list) => list.length === 502);
    assert(helper.events.length <= 4, `${helper.events.length} calls`);
  });

  it('are right after notifications were lost', async () => {
    await helper.call('watch');
    await untilAddresses('the first list', () => true);
    await helper.call('hold', batchOf(5000), 'ip', '-batch', '-');
    await untilAddresses('all', (list) => list.length === 5002);
    await add('192.0.2.7/24');
    await untilAddresses('one more', (list) => list.includes('pw0 192.0.2.7/24'));
  });

  it('are right in the end when they change while they are looked at', async () => {
    await helper.call('watch');
    const commands = `echo '${batchOf(3000)}' | while read -r line; do echo "$line"; done`;
    await namespace.run('bash', '-c', `${commands} | ip -batch -`);
    await untilAddresses('all', (list) => list.length === 3002);
  });

  it('tell of an overrun, and go on', async () => {
    await helper.call('subscribe');
    await helper.call('hold', batchOf(500), 'ip', '-batch', '-');
    const overrun = await helper.waitForEvent('overrun', ({ notice }) => notice === 'overrun');
    assert.deepEqual(overrun, { notice: 'overrun', code: 'ENOBUFS' } satisfies NetnsEvent);
    await add('192.0.2.7/24');
    await helper.waitForEvent('messages', ({ notice }) => notice === 'messages');
    await helper.call('unsubscribe');
  });

  it('are looked at again after a failure, which is told', async () => {
    const poor = namespace.helper('sh', '-c', 'ulimit -n 128; exec "$0" "$@"');
    await poor.call('watch');
    assert((await poor.call('hoardDescriptors')) > 0);
    await add('192.0.2.7/24');
    const failure = await poor.waitForEvent('failure', ({ notice }) => notice === 'watch error');
    assert.deepEqual(failure, { notice: 'watch error', code: 'EMFILE' } satisfies NetnsEvent);
    await poor.call('freeDescriptors');
    await poor.waitForEvent(
      'recovery',
      (heard) =>
        heard.notice === 'addresses' && texts(heard.addresses).includes('pw0 192.0.2.7/24'),
    );
  });

  it('go on being told when the listener throws', async () => {
    await helper.call('watch', 1);
    const failure = await helper.waitForEvent(
      'its error',
      ({ notice }) => notice === 'watch error',
    );
    assert.deepEqual(failure, { notice: 'watch error', code: 'LISTENER' } satisfies NetnsEvent);
    await add('192.0.2.7/24');
    await untilAddresses('an address', (list) => list.includes('pw0 192.0.2.7/24'));
  });

  it('are told no more after close', async () => {
    await helper.call('watch');
    await untilAddresses('the first list', () => true);
    // The change is heard, but close comes before the burst is over.
    await helper.call('hold', batchOf(1), 'ip', '-batch', '-');
    await helper.call('closeWatch');
    const told = helper.events.length;
    await add('192.0.2.7/24');
    await helper.call('listAddresses');
    assert.equal(helper.events.length, told);
  });
});

function texts(addresses: readonly NodeAddress[]): string[] {
  return addresses.map((a) => `${a.interfaceName} ${a.address}/${a.prefixLength}`);
}

/** Commands of ip -batch that add so many addresses. */
function batchOf(count: number): string {
  let lines = '';
  for (let index = 0; index < count; index++) {
    lines += `address add 10.8.${index >> 8}.${index & 255}/32 dev pw0\n`;
  }
  return lines;
}
