import assert from 'node:assert/strict';
import { type Namespace, type NetnsHelper, sharedNetns } from '../namespace.ts';

describe('socket: a netlink socket', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(({ helper: { call } }) => call('hold', '', 'conntrack', '-F'));
  beforeEach(async () => {
    ({ namespace, helper } = await netns());
  });

  const insertFlows = () =>
    helper.call('insertFlows', {
      count: 2000,
      src: '10.0.0.1',
      dst: '10.96.0.10',
      dstPort: 53,
      endpoint: '10.1.0.5',
      protocol: 17,
    });

  it('throws an error with the extended ack text of the kernel', async () => {
    await assert.rejects(helper.call('refusal'), {
      name: 'NetlinkError',
      message: 'netlink message 16: EOPNOTSUPP (Unknown device type)',
      code: 'EOPNOTSUPP',
    });
  });

  it('returns the index of each refused message of a batch', async () => {
    const refused = await helper.call('refusals', 500);
    assert.deepEqual(refused, [...Array(500).keys()]);
    assert.deepEqual(await helper.call('refusals', 0), []);
  });

  it('throws EPROTONOSUPPORT for a protocol that the kernel lacks', async () => {
    await assert.rejects(helper.call('unknownProtocol'), { code: 'EPROTONOSUPPORT' });
  });

  it('throws when it joins an unknown multicast group', async () => {
    await assert.rejects(helper.call('unknownGroup'), {
      message: 'join netlink multicast group 100000: EINVAL',
    });
  });

  it('throws for a request on a socket with a subscription', async () => {
    await assert.rejects(helper.call('requestOnSubscription'), { name: 'TypeError' });
  });

  it('returns the reply to a request for one object', async () => {
    assert.deepEqual(await helper.call('get'), {
      failure: 'MalformedMessage: netlink message 18: empty reply',
      refusal: 'ENODEV',
      name: 'lo',
    });
  });

  it('serves concurrent requests one at a time', async () => {
    assert.deepEqual(await helper.call('concurrentDumps', 5), [2, 2, 2, 2, 2]);
  });

  describe('when the table changes during a dump', () => {
    beforeEach(async () => {
      await namespace.run('ip', 'link', 'add', 'pw0', 'type', 'veth', 'peer', 'name', 'pw1');
      let lines = '';
      for (let index = 0; index < 1500; index++) {
        lines += `address add 10.8.${index >> 8}.${index & 255}/32 dev pw0\n`;
      }
      await helper.call('hold', lines, 'ip', '-batch', '-');
    });
    afterEach(() => namespace.run('ip', 'link', 'del', 'pw0'));

    it('repeats the dump', async () => {
      const { found, attempts } = await helper.call('changedDump', 2);
      assert.deepEqual({ found, attempts }, { found: 1504, attempts: 3 });
    });

    it('throws EINTR after several attempts', async () => {
      await assert.rejects(helper.call('changedDump', 100), { code: 'EINTR' });
    });
  });

  it('throws ETIMEDOUT after the timeout, and can dump again', async () => {
    await insertFlows();
    const { failure, found } = await helper.call('slowDump');
    assert.deepEqual({ failure, found }, { failure: 'ETIMEDOUT', found: 2000 });
  });

  it('does not time out while parts of a large dump arrive', async () => {
    await insertFlows();
    assert.deepEqual(await helper.call('steadyDump'), { found: 2000, ahead: 40_000 });
  });

  it('throws ENOBUFS after an overrun, and can dump again', async () => {
    const { failure, found } = await helper.call('overrun');
    assert.deepEqual({ failure, found }, { failure: 'ENOBUFS', found: 2 });
  });

  it('times out after an overrun when overruns are ignored', async () => {
    assert.equal(await helper.call('ignoredOverrun'), 'ETIMEDOUT');
  });

  it('fails running and queued dumps with ECANCELED when closed', async () => {
    await insertFlows();
    const outcomes = await helper.call('closeWhileDumping');
    assert.deepEqual(outcomes, ['ECANCELED', 'ECANCELED', 'ECANCELED', 'ECANCELED']);
  });

  it('fails a request that waits for a reply with ECANCELED when closed', async () => {
    assert.equal(await helper.call('closeWhileWaiting'), 'ECANCELED');
  });
});
