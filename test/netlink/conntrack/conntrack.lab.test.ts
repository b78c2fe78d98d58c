import assert from 'node:assert/strict';
import type { ConntrackEntry } from '../../../netlink/conntrack/conntrack.ts';
import { type Namespace, type NetnsHelper, sharedNetns } from '../namespace.ts';

const UDP = 17;
const toVip = {
  src: '10.0.0.1',
  dst: '10.96.0.10',
  dstPort: 53,
  endpoint: '10.1.0.5',
  protocol: UDP,
};
const toOther = { ...toVip, dst: '10.96.0.11', firstSrcPort: 30_000 };
const toVip6 = {
  ...toVip,
  src: 'fd00::1',
  dst: 'fd00:96::10',
  endpoint: 'fd00:1::5',
};

describe('conntrack', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(({ helper: { call } }) => call('hold', '', 'conntrack', '-F'));
  beforeEach(async () => {
    ({ namespace, helper } = await netns());
  });

  const dump = async (...args: Parameters<typeof dumpCall>) => (await dumpCall(...args)).entries;
  const dumpCall = (query: object, keepSourcePort?: number) =>
    helper.call('dump', { family: 'IPv4', ...query }, keepSourcePort);

  for (const kernelFilter of [true, false]) {
    describe(kernelFilter ? 'filtered by the kernel' : 'filtered here', () => {
      it('dumps flows by family, protocol and destination', async () => {
        await helper.call('insertFlows', { ...toVip, count: 3 });
        await helper.call('insertFlows', { ...toOther, count: 2 });
        await helper.call('insertFlows', { ...toVip, count: 1, protocol: 132 });
        await helper.call('insertFlows', { ...toVip6, count: 2 });
        const count = async (query: object) => (await dump({ kernelFilter, ...query })).length;
        assert.equal(await count({}), 6);
        assert.equal(await count({ protocol: 'UDP' }), 5);
        assert.equal(await count({ protocol: 'UDP', origDst: '10.96.0.10' }), 3);
        assert.equal(await count({ origDst: '10.96.0.10' }), 4);
        assert.equal(await count({ protocol: 'TCP' }), 0);
        assert.equal(await count({ protocol: 'UDP', origDst: '10.96.0.12' }), 0);
        assert.equal(await count({ family: 'IPv6', protocol: 'UDP', origDst: 'fd00:96::10' }), 2);
        assert.equal(await count({ family: 'IPv6', origDst: 'fd00:96::11' }), 0);
      });

      it('reads what a flow is', async () => {
        await helper.call('insertFlows', { ...toVip6, count: 1, zone: 7 });
        const [entry] = await dump({ kernelFilter, family: 'IPv6', protocol: 'UDP' });
        assert(entry !== undefined);
        const { id, status, ...rest } = entry;
        assert.deepEqual(rest, {
          family: 'IPv6',
          protocol: UDP,
          origSrc: 'fd00::1',
          origDst: 'fd00:96::10',
          origSrcPort: 1024,
          origDstPort: 53,
          replySrc: 'fd00:1::5',
          replyDst: 'fd00::1',
          replySrcPort: 53,
          replyDstPort: 1024,
          zone: 7,
        } satisfies Omit<ConntrackEntry, 'id' | 'status'>);
        assert.notEqual(id, 0);
        assert.equal(status & 0x0e, 0x0e);
      });

      it('asks the caller which flows to keep', async () => {
        await helper.call('insertFlows', { ...toVip, count: 1000 });
        const kept = await dump({ kernelFilter, protocol: 'UDP' }, 1500);
        assert.deepEqual(
          kept.map(({ origSrcPort }) => origSrcPort),
          [1500],
        );
      });
    });
  }

  it('sees real flows through NAT, with the endpoint as the source of replies', async () => {
    const dnat = 'OUTPUT -d 10.96.0.10 -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353';
    await namespace.run('ip', 'route', 'add', 'local', '10.96.0.10', 'dev', 'lo');
    await namespace.run('iptables', '-t', 'nat', '-A', ...dnat.split(' '));
    await namespace.run('bash', '-c', 'echo hello >/dev/udp/10.96.0.10/53');
    const [entry] = await dump({ protocol: 'UDP', origDst: '10.96.0.10' });
    assert(entry !== undefined);
    assert.equal(`${entry.replySrc}:${entry.replySrcPort}`, '127.0.0.1:5353');
    assert.equal(await helper.call('deleteConntrack', [entry]), 1);
    assert.deepEqual(await dump({ protocol: 'UDP' }), []);
  });

  it('deletes exactly the chosen flows', async () => {
    await helper.call('insertFlows', { ...toVip, count: 1200 });
    await helper.call('insertFlows', { ...toVip6, count: 10 });
    const all = await dump({ protocol: 'UDP' });
    const chosen = all.filter(({ origSrcPort }) => origSrcPort % 2 === 0);
    assert.equal(await helper.call('deleteConntrack', chosen), 600);
    const left = await dump({ protocol: 'UDP' });
    assert.equal(left.length, 600);
    assert(left.every(({ origSrcPort }) => origSrcPort % 2 === 1));
    const six = await dump({ family: 'IPv6' });
    assert.equal(await helper.call('deleteConntrack', six.slice(0, 4)), 4);
    assert.equal((await dump({ family: 'IPv6' })).length, 6);
  });

  it('tolerates flows that are gone', async () => {
    await helper.call('insertFlows', { ...toVip, count: 2000 });
    const entries = await dump({ protocol: 'UDP' });
    assert.equal(await helper.call('deleteConntrack', entries.slice(0, 1500)), 1500);
    assert.equal(await helper.call('deleteConntrack', entries), 500);
  });

  it('does not delete another flow with the same tuple', async () => {
    await helper.call('insertFlows', { ...toVip, count: 1 });
    const [entry] = await dump({ protocol: 'UDP' });
    assert(entry !== undefined);
    const stale = { ...entry, id: (entry.id ^ 1) >>> 0 };
    assert.equal(await helper.call('deleteConntrack', [stale]), 0);
    assert.equal((await dump({ protocol: 'UDP' })).length, 1);
  });

  it('deletes in the zone of the entry only', async () => {
    await helper.call('insertFlows', { ...toVip, count: 1 });
    await helper.call('insertFlows', { ...toVip, count: 1, zone: 7 });
    const inZone = (await dump({})).filter(({ zone }) => zone === 7);
    assert.equal(await helper.call('deleteConntrack', inZone), 1);
    assert.deepEqual(
      (await dump({})).map(({ zone }) => zone),
      [0],
    );
  });

  it('deletes flows of ICMP', async () => {
    await helper.call('insertFlows', { ...toVip, count: 2, protocol: 1, dstPort: 0x0800 });
    const pings = await dump({ origDst: '10.96.0.10' });
    assert.equal(pings[0]?.origDstPort, 0x0800);
    assert.equal(await helper.call('deleteConntrack', pings), 2);
  });

  it('tells once of what it could not delete, after trying all', async () => {
    await helper.call('insertFlows', { ...toVip, count: 2 });
    const [first, second] = await dump({});
    assert(first !== undefined && second !== undefined);
    const odd = { ...first, family: 'IPv6' } as const;
    const failing = helper.call('deleteConntrack', [odd, odd, second]);
    await assert.rejects(failing, {
      name: 'ConntrackDeleteError',
      message: /^cannot delete 2 conntrack entries; first error: netlink message 258: EINVAL/,
    });
    assert.deepEqual(await dump({}), [first]);
  });

  it('passes on what the caller throws, and can dump again', async () => {
    await helper.call('insertFlows', { ...toVip, count: 2000 });
    await assert.rejects(helper.call('dumpThrowing', { family: 'IPv4' }), { code: 'KEEP' });
    assert.equal((await dump({})).length, 2000);
  });

  it('refuses a destination of the other family', async () => {
    await assert.rejects(dump({ origDst: 'fd00::1' }), { name: 'RangeError' });
  });

  it('leaves the event loop to others while it reads many flows', async () => {
    await helper.call('insertFlows', { ...toVip, count: 20_000 });
    const { entries, turns } = await dumpCall({ protocol: 'UDP', kernelFilter: false });
    assert.equal(entries.length, 20_000);
    // At most 32 KiB, some 200 flows, between two turns.
    assert(turns >= 100, `${turns} turns`);
  });
});
