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

describe('conntrack: conntrack entries of the kernel', () => {
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
    describe(kernelFilter ? 'filtered by the kernel' : 'filtered in this process', () => {
      it('dumps entries by family, protocol and destination', async () => {
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

      it('dumps only entries that are neither translated nor answered', async () => {
        await helper.call('insertFlows', { ...toVip, count: 2 });
        const insert = (port: string, ...args: readonly string[]) => {
          const flow = ['-s', '10.0.0.1', '-d', '10.96.0.10', '--sport', port, '--dport', '80'];
          const state = ['--state', 'SYN_SENT', '-t', '120'];
          return namespace.run('conntrack', '-I', '-p', 'tcp', ...flow, ...state, ...args);
        };
        await insert('20001');
        await insert('20002', '-u', 'SEEN_REPLY');
        const entries = await dump({ kernelFilter, unansweredOnly: true });
        assert.deepEqual(
          entries.map(({ origSrcPort }) => origSrcPort),
          [20_001],
        );
      });

      it('reads all fields of an entry', async () => {
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

      it('returns only the entries that `keep` selects', async () => {
        await helper.call('insertFlows', { ...toVip, count: 1000 });
        const kept = await dump({ kernelFilter, protocol: 'UDP' }, 1500);
        assert.deepEqual(
          kept.map(({ origSrcPort }) => origSrcPort),
          [1500],
        );
      });
    });
  }

  it('reads entries of DNATed connections, with the endpoint as reply source', async () => {
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

  it('deletes exactly the given entries', async () => {
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

  it('ignores entries that no longer exist', async () => {
    await helper.call('insertFlows', { ...toVip, count: 2000 });
    const entries = await dump({ protocol: 'UDP' });
    assert.equal(await helper.call('deleteConntrack', entries.slice(0, 1500)), 1500);
    assert.equal(await helper.call('deleteConntrack', entries), 500);
  });

  it('does not delete a newer entry with the same tuple', async () => {
    await helper.call('insertFlows', { ...toVip, count: 1 });
    const [entry] = await dump({ protocol: 'UDP' });
    assert(entry !== undefined);
    const stale = { ...entry, id: (entry.id ^ 1) >>> 0 };
    assert.equal(await helper.call('deleteConntrack', [stale]), 0);
    assert.equal((await dump({ protocol: 'UDP' })).length, 1);
  });

  it('deletes an entry only in its zone', async () => {
    await helper.call('insertFlows', { ...toVip, count: 1 });
    await helper.call('insertFlows', { ...toVip, count: 1, zone: 7 });
    const inZone = (await dump({})).filter(({ zone }) => zone === 7);
    assert.equal(await helper.call('deleteConntrack', inZone), 1);
    assert.deepEqual(
      (await dump({})).map(({ zone }) => zone),
      [0],
    );
  });

  it('deletes ICMP entries', async () => {
    await helper.call('insertFlows', { ...toVip, count: 2, protocol: 1, dstPort: 0x0800 });
    const pings = await dump({ origDst: '10.96.0.10' });
    assert.equal(pings[0]?.origDstPort, 0x0800);
    assert.equal(await helper.call('deleteConntrack', pings), 2);
  });

  it('throws one error for all failed deletes, after trying every entry', async () => {
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

  it('rethrows an error of `keep`, and can dump again', async () => {
    await helper.call('insertFlows', { ...toVip, count: 2000 });
    await assert.rejects(helper.call('dumpThrowing', { family: 'IPv4' }), { code: 'KEEP' });
    assert.equal((await dump({})).length, 2000);
  });

  it('throws for a destination of the other family', async () => {
    await assert.rejects(dump({ origDst: 'fd00::1' }), { name: 'RangeError' });
  });

  it('yields to the event loop during a large dump', async () => {
    await helper.call('insertFlows', { ...toVip, count: 20_000 });
    const { entries, turns } = await dumpCall({ protocol: 'UDP', kernelFilter: false });
    assert.equal(entries.length, 20_000);
    // At most 32 KiB, about 200 entries, between two turns.
    assert(turns >= 100, `${turns} turns`);
  });
});
