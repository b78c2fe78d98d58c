import assert from 'node:assert/strict';
import { execa } from 'execa';
import { waitFor } from '../../lab/wait.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../namespace.ts';

interface IpAddress {
  readonly local: string;
  readonly prefixlen: number;
  readonly scope: string;
  readonly deprecated?: boolean;
}

/** Records IPv4 routes that are deleted from now on. */
async function routeMonitor(namespace: Namespace) {
  const monitor = execa('ip', ['-n', namespace.name, '-4', '-o', 'monitor', 'route'], {
    reject: false,
  });
  let output = '';
  monitor.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  // The kernel sends notifications in order, so a marker route shows that earlier notifications
  // have arrived.
  const sendMarker = async (address: string) => {
    for (const op of ['replace', 'delete']) {
      await namespace.run('ip', 'route', op, 'local', address, 'dev', 'lo', 'table', 'local');
    }
    return output.includes(`Deleted local ${address} `);
  };
  await waitFor('the monitor reports routes', () => sendMarker('192.0.2.1'));
  return {
    async deleted() {
      await waitFor('the monitor reported all routes', () => sendMarker('192.0.2.2'));
      const deleted = output.match(/^Deleted .*$/gm) ?? [];
      return deleted.filter((line) => !line.includes(' 192.0.2.'));
    },
    async [Symbol.asyncDispose]() {
      monitor.kill();
      await monitor;
    },
  };
}

/** Uses a veth, because not every kernel has dummy interfaces. test/uml/ tests dummy interfaces. */
describe('links: addresses of an interface', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  let index: number;

  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
    await namespace.run('ip', 'link', 'add', 'pw0', 'type', 'veth', 'peer', 'name', 'pw1');
    index = (await helper.call('findLink', 'pw0')) ?? 0;
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  const change = (adds: string[], removes: string[], link = index) =>
    helper.call('changeAddresses', link, adds, removes);
  const onLink = async () => {
    const all = await helper.call('listAddresses');
    return all
      .filter(({ interfaceName }) => interfaceName === 'pw0')
      .map(({ address, prefixLength }) => `${address}/${prefixLength}`);
  };

  it('adds and removes addresses idempotently', async () => {
    for (let time = 0; time < 2; time++) {
      assert.deepEqual(await change(['10.0.0.1', '10.0.0.2', 'fd00::1'], ['10.9.9.9']), []);
      assert.deepEqual(await onLink(), ['10.0.0.1/32', '10.0.0.2/32', 'fd00::1/128']);
    }
    for (let time = 0; time < 2; time++) {
      assert.deepEqual(await change(['10.0.0.3'], ['10.0.0.1', 'fd00::1', 'fd00::2']), []);
      assert.deepEqual(await onLink(), ['10.0.0.2/32', '10.0.0.3/32']);
    }
    assert.deepEqual(await change([], []), []);
  });

  describe('when another program added an address with global scope', () => {
    const SHARED = ['10.0.0.10', '10.0.0.11'] as const;
    const addressesOnLink = async () => {
      const [link] = JSON.parse(await namespace.run('ip', '-j', 'address', 'show', 'dev', 'pw0'));
      return (link.addr_info as readonly IpAddress[])
        .map(({ local, prefixlen, scope, deprecated = false }) =>
          [`${local}/${prefixlen}`, scope, ...(deprecated ? ['deprecated'] : [])].join(' '),
        )
        .sort();
    };
    const CORRECTED = ['10.0.0.10/32 host', '10.0.0.11/32 host', 'fd00::1/128 global deprecated'];

    it('corrects scope and lifetime without removing the local route', async () => {
      for (const address of [...SHARED.map((each) => `${each}/32`), 'fd00::1/128']) {
        await namespace.run('ip', 'address', 'add', address, 'dev', 'pw0');
      }
      await using monitor = await routeMonitor(namespace);
      assert.deepEqual(await change([...SHARED, 'fd00::1'], []), []);
      assert.deepEqual(await addressesOnLink(), CORRECTED);
      assert.deepEqual(await monitor.deleted(), []);
    });

    it('removes the placeholders of an agent killed during the correction', async () => {
      const [first, second] = SHARED;
      await change(['fd00::1'], []);
      const bind = (address: string) =>
        namespace.run('ip', 'address', 'add', address, 'dev', 'pw0', 'scope', 'host');
      await bind(`${first}/31`);
      await bind(`${second}/31`);
      await bind(`${second}/32`);
      assert.deepEqual(
        (await helper.call('listBoundAddresses', index)).filter(({ isUpToDate }) => isUpToDate),
        [{ address: 'fd00::1', family: 'IPv6', isUpToDate: true }],
      );
      for (let time = 0; time < 2; time++) assert.deepEqual(await change([...SHARED], []), []);
      assert.deepEqual(await addressesOnLink(), CORRECTED);
      await bind(`${first}/31`);
      for (let time = 0; time < 2; time++) assert.deepEqual(await change([], [first]), []);
      assert.deepEqual(await addressesOnLink(), CORRECTED.slice(1));
    });
  });

  it('returns the refused addresses and applies the others', async () => {
    assert.deepEqual(await change(['10.0.0.1', '::', '224.0.0.1', 'ff02::1', 'fd00::1'], []), [
      'add ::: EADDRNOTAVAIL',
      'add ff02::1: EADDRNOTAVAIL',
    ]);
    assert.deepEqual(await onLink(), ['10.0.0.1/32', '224.0.0.1/32', 'fd00::1/128']);
  });

  it('returns ENODEV for a missing interface', async () => {
    assert.deepEqual(await change(['10.0.0.1'], ['fd00::1'], 4711), [
      'add 10.0.0.1: ENODEV',
      'remove fd00::1: ENODEV',
    ]);
  });

  it('ignores removals on an interface with IPv6 disabled', async () => {
    await namespace.run('sysctl', '-qw', 'net.ipv6.conf.pw0.disable_ipv6=1');
    assert.deepEqual(await change([], ['fd00::1']), []);
    assert.deepEqual(await change(['fd00::1'], []), ['add fd00::1: EACCES']);
  });

  it('deletes an interface with its addresses', async () => {
    assert.deepEqual(await change(['10.0.0.1'], []), []);
    assert.equal(await helper.call('deleteLink', 'pw0'), true);
    assert.equal(await helper.call('findLink', 'pw0'), undefined);
    assert.equal(await helper.call('findLink', 'pw1'), undefined);
    assert.equal(await helper.call('deleteLink', 'pw0'), false);
    assert.deepEqual(await onLink(), []);
  });

  it('finds the index of an interface by name', async () => {
    const [link] = JSON.parse(await namespace.run('ip', '-j', 'link', 'show', 'pw0'));
    assert.equal(index, link.ifindex);
    assert.equal(await helper.call('findLink', 'nope'), undefined);
    await assert.rejects(helper.call('findLink', 'x'.repeat(200)), { code: 'ERANGE' });
  });
});
