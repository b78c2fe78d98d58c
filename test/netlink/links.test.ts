import assert from 'node:assert/strict';
import { createNamespace, type Inhabitant, type Namespace } from './namespace.ts';

/** On a veth, as not every kernel has dummy links; those are tested in test/uml/. */
describe('addresses of a link', () => {
  let namespace: Namespace;
  let inhabitant: Inhabitant;
  let index: number;

  beforeEach(async () => {
    namespace = await createNamespace();
    inhabitant = namespace.inhabitant();
    await namespace.run('ip', 'link', 'add', 'pw0', 'type', 'veth', 'peer', 'name', 'pw1');
    index = (await inhabitant.call('findLink', 'pw0')) ?? 0;
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  const change = (adds: string[], removes: string[], link = index) =>
    inhabitant.call('changeAddresses', link, adds, removes);
  const onLink = async () => {
    const all = await inhabitant.call('listAddresses');
    return all
      .filter(({ interfaceName }) => interfaceName === 'pw0')
      .map(({ address, prefixLength }) => `${address}/${prefixLength}`);
  };

  it('are added and removed, twice over', async () => {
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

  it('tell which were refused, and the others are done', async () => {
    assert.deepEqual(await change(['10.0.0.1', '::', '224.0.0.1', 'ff02::1', 'fd00::1'], []), [
      'add ::: EADDRNOTAVAIL',
      'add ff02::1: EADDRNOTAVAIL',
    ]);
    assert.deepEqual(await onLink(), ['10.0.0.1/32', '224.0.0.1/32', 'fd00::1/128']);
  });

  it('cannot be on a link that is not there', async () => {
    assert.deepEqual(await change(['10.0.0.1'], ['fd00::1'], 4711), [
      'add 10.0.0.1: ENODEV',
      'remove fd00::1: ENODEV',
    ]);
  });

  it('can be removed from a link that has no IPv6', async () => {
    await namespace.run('sysctl', '-qw', 'net.ipv6.conf.pw0.disable_ipv6=1');
    assert.deepEqual(await change([], ['fd00::1']), []);
    assert.deepEqual(await change(['fd00::1'], []), ['add fd00::1: EACCES']);
  });

  it('go with it', async () => {
    assert.deepEqual(await change(['10.0.0.1'], []), []);
    assert.equal(await inhabitant.call('deleteLink', 'pw0'), true);
    assert.equal(await inhabitant.call('findLink', 'pw0'), undefined);
    assert.equal(await inhabitant.call('findLink', 'pw1'), undefined);
    assert.equal(await inhabitant.call('deleteLink', 'pw0'), false);
    assert.deepEqual(await onLink(), []);
  });

  it('need the index of the link, which its name gives', async () => {
    const [link] = JSON.parse(await namespace.run('ip', '-j', 'link', 'show', 'pw0'));
    assert.equal(index, link.ifindex);
    assert.equal(await inhabitant.call('findLink', 'nope'), undefined);
    await assert.rejects(inhabitant.call('findLink', 'x'.repeat(200)), { code: 'ERANGE' });
  });
});
