import assert from 'node:assert/strict';
import { canonicalAddress } from '../../../api/addresses.ts';
import type { NodeAddress } from '../../../netlink/route/rtnetlink.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../namespace.ts';
import type { NetnsEvent } from '../netns-helper.ts';

describe('address-watch: addresses of the node', () => {
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

  async function waitForAddresses(what: string, expected: (texts: string[]) => boolean) {
    const event = await helper.waitForEvent(
      what,
      (event) => event.type === 'addresses' && expected(texts(event.addresses)),
    );
    assert(event.type === 'addresses');
    return event;
  }

  it('lists addresses as canonical text, with interface, family and prefix length', async () => {
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

  it('omits an IPv4-mapped address, which has no canonical text', async () => {
    await add('::ffff:192.0.2.9/128', 'nodad');
    await add('2001:db8::5/128', 'nodad');
    assert.deepEqual(texts(await helper.call('listAddresses')).slice(2), ['pw0 2001:db8::5/128']);
  });

  it('reports current addresses first, then every change', async () => {
    await helper.call('watch');
    await waitForAddresses('the first list', (list) => list.includes('lo 127.0.0.1/8'));
    await add('192.0.2.7/24');
    await waitForAddresses('a new address', (list) => list.includes('pw0 192.0.2.7/24'));
    await add('2001:db8::7/64', 'nodad');
    await waitForAddresses('a new IPv6 address', (list) => list.includes('pw0 2001:db8::7/64'));
    await namespace.run('ip', 'address', 'del', '192.0.2.7/24', 'dev', 'pw0');
    await waitForAddresses('its end', (list) => !list.includes('pw0 192.0.2.7/24'));
  });

  it('reports addresses after an interface is renamed or deleted', async () => {
    await add('192.0.2.7/24');
    await helper.call('watch');
    await waitForAddresses('the first list', (list) => list.includes('pw0 192.0.2.7/24'));
    await namespace.run('ip', 'link', 'set', 'pw0', 'name', 'pw9');
    await waitForAddresses('the new name', (list) => list.includes('pw9 192.0.2.7/24'));
    await namespace.run('ip', 'link', 'del', 'pw9');
    await waitForAddresses('the end of the link', (list) => list.length === 2);
  });

  it('reports addresses when an interface without addresses is added', async () => {
    await helper.call('watch');
    await waitForAddresses('the first list', () => true);
    await namespace.run('ip', 'link', 'add', 'pw2', 'type', 'veth', 'peer', 'name', 'pw3');
    await waitForAddresses('a call', (list) => list.length === 2);
  });

  it('ignores addresses of the ignored interface', async () => {
    await add('192.0.2.7/24');
    await helper.call('watch', 0, 'pw0');
    await waitForAddresses('the first list', (list) => list.length === 2);
    await add('192.0.2.8/24');
    await add('192.0.2.9/24', 'noprefixroute');
    await namespace.run('ip', 'address', 'add', '192.0.2.10/32', 'dev', 'lo');
    await waitForAddresses('another', (list) => list.length === 3);
    assert.equal(helper.events.length, 2);
  });

  it('coalesces a burst of changes into few reports', async () => {
    await helper.call('watch');
    await waitForAddresses('the first list', () => true);
    await helper.call('hold', batchOf(500), 'ip', '-batch', '-');
    await waitForAddresses('all', (list) => list.length === 502);
    assert(helper.events.length <= 4, `${helper.events.length} calls`);
  });

  it('reports correct addresses after notifications were lost', async () => {
    await helper.call('watch');
    await waitForAddresses('the first list', () => true);
    await helper.call('hold', batchOf(5000), 'ip', '-batch', '-');
    await waitForAddresses('all', (list) => list.length === 5002);
    await add('192.0.2.7/24');
    await waitForAddresses('one more', (list) => list.includes('pw0 192.0.2.7/24'));
  });

  it('reports current addresses when addresses change during a dump', async () => {
    await helper.call('watch');
    const commands = `echo '${batchOf(3000)}' | while read -r line; do echo "$line"; done`;
    await namespace.run('bash', '-c', `${commands} | ip -batch -`);
    await waitForAddresses('all', (list) => list.length === 3002);
  });

  it('reports an overrun, then further notifications', async () => {
    await helper.call('subscribe');
    await helper.call('hold', batchOf(500), 'ip', '-batch', '-');
    const overrun = await helper.waitForEvent('overrun', ({ type }) => type === 'overrun');
    assert.deepEqual(overrun, { type: 'overrun', code: 'ENOBUFS' } satisfies NetnsEvent);
    await add('192.0.2.7/24');
    await helper.waitForEvent('messages', ({ type }) => type === 'messages');
    await helper.call('unsubscribe');
  });

  it('reports a failed dump and retries it', async () => {
    const limited = namespace.helper('sh', '-c', 'ulimit -n 128; exec "$0" "$@"');
    await limited.call('watch');
    assert((await limited.call('exhaustDescriptors')) > 0);
    await add('192.0.2.7/24');
    const failure = await limited.waitForEvent('failure', ({ type }) => type === 'watch error');
    assert.deepEqual(failure, { type: 'watch error', code: 'EMFILE' } satisfies NetnsEvent);
    await limited.call('freeDescriptors');
    await limited.waitForEvent(
      'recovery',
      (event) => event.type === 'addresses' && texts(event.addresses).includes('pw0 192.0.2.7/24'),
    );
  });

  it('continues after the callback throws', async () => {
    await helper.call('watch', 1);
    const failure = await helper.waitForEvent('its error', ({ type }) => type === 'watch error');
    assert.deepEqual(failure, { type: 'watch error', code: 'CALLBACK' } satisfies NetnsEvent);
    await add('192.0.2.7/24');
    await waitForAddresses('an address', (list) => list.includes('pw0 192.0.2.7/24'));
  });

  it('reports nothing after close', async () => {
    await helper.call('watch');
    await waitForAddresses('the first list', () => true);
    // The notification arrives, but close comes before the coalescing delay is over.
    await helper.call('hold', batchOf(1), 'ip', '-batch', '-');
    await helper.call('closeWatch');
    const before = helper.events.length;
    await add('192.0.2.7/24');
    await helper.call('listAddresses');
    assert.equal(helper.events.length, before);
  });
});

function texts(addresses: readonly NodeAddress[]): string[] {
  return addresses.map((a) => `${a.interfaceName} ${a.address}/${a.prefixLength}`);
}

/** Commands for `ip -batch` that add `count` addresses. */
function batchOf(count: number): string {
  let lines = '';
  for (let index = 0; index < count; index++) {
    lines += `address add 10.8.${index >> 8}.${index & 255}/32 dev pw0\n`;
  }
  return lines;
}
