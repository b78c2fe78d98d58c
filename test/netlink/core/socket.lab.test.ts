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

  it('says why the kernel refused, in its words', async () => {
    await assert.rejects(helper.call('refusal'), {
      name: 'NetlinkError',
      message: 'netlink message 16: EOPNOTSUPP (Unknown device type)',
      code: 'EOPNOTSUPP',
    });
  });

  it('tells which messages of a batch were refused, however many', async () => {
    const refused = await helper.call('refusals', 500);
    assert.deepEqual(refused, [...Array(500).keys()]);
    assert.deepEqual(await helper.call('refusals', 0), []);
  });

  it('cannot be opened for a protocol that the kernel lacks', async () => {
    await assert.rejects(helper.call('unknownProtocol'), { code: 'EPROTONOSUPPORT' });
  });

  it('cannot join a group that the kernel lacks', async () => {
    await assert.rejects(helper.call('unknownGroup'), {
      message: 'join netlink multicast group 100000: EINVAL',
    });
  });

  it('takes no requests beside a subscription', async () => {
    await assert.rejects(helper.call('requestOnSubscription'), { name: 'TypeError' });
  });

  it('gets one answer', async () => {
    assert.deepEqual(await helper.call('get'), {
      failure: 'MalformedMessage: netlink message 18: empty reply',
      refusal: 'ENODEV',
      name: 'lo',
    });
  });

  it('serves requests one after the other', async () => {
    assert.deepEqual(await helper.call('concurrentDumps', 5), [2, 2, 2, 2, 2]);
  });

  describe('dumping a table that changes', () => {
    beforeEach(async () => {
      await namespace.run('ip', 'link', 'add', 'pw0', 'type', 'veth', 'peer', 'name', 'pw1');
      let lines = '';
      for (let index = 0; index < 1500; index++) {
        lines += `address add 10.8.${index >> 8}.${index & 255}/32 dev pw0\n`;
      }
      await helper.call('hold', lines, 'ip', '-batch', '-');
    });
    afterEach(() => namespace.run('ip', 'link', 'del', 'pw0'));

    it('dumps it again', async () => {
      const { found, attempts } = await helper.call('changedDump', 2);
      assert.deepEqual({ found, attempts }, { found: 1504, attempts: 3 });
    });

    it('gives up in the end', async () => {
      await assert.rejects(helper.call('changedDump', 100), { code: 'EINTR' });
    });
  });

  it('keeps a deadline, and works again afterwards', async () => {
    await insertFlows();
    const { failure, found } = await helper.call('slowDump');
    assert.deepEqual({ failure, found }, { failure: 'ETIMEDOUT', found: 2000 });
  });

  it('waits for a big dump as long as some of it comes', async () => {
    await insertFlows();
    assert.deepEqual(await helper.call('steadyDump'), { found: 2000, ahead: 40_000 });
  });

  it('tells that answers were lost, and works again afterwards', async () => {
    const { failure, found } = await helper.call('overrun');
    assert.deepEqual({ failure, found }, { failure: 'ENOBUFS', found: 2 });
  });

  it('waits for lost answers in vain if it is told to ignore overruns', async () => {
    assert.equal(await helper.call('ignoredOverrun'), 'ETIMEDOUT');
  });

  it('fails what is under way when it is closed', async () => {
    await insertFlows();
    const outcomes = await helper.call('closeWhileDumping');
    assert.deepEqual(outcomes, ['ECANCELED', 'ECANCELED', 'ECANCELED', 'ECANCELED']);
  });

  it('fails what waits for an answer when it is closed', async () => {
    assert.equal(await helper.call('closeWhileWaiting'), 'ECANCELED');
  });
});
