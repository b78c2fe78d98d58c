import assert from 'node:assert/strict';
import { waitFor } from '../../lab/wait.ts';
import { type Namespace, type NetnsHelper, sharedNetns } from '../namespace.ts';

const flows = {
  src: '10.0.0.1',
  dst: '10.96.0.11',
  dstPort: 53,
  endpoint: '10.1.0.5',
  protocol: 17,
};
const DNAT = 'OUTPUT -d 10.96.0.10 -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353';

describe('events: subscriptions of the kernel that are read on demand', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;

  const netns = sharedNetns(async ({ namespace, helper: { call } }) => {
    await Promise.all([call('closeEvents'), call('closeGroup'), call('closeOwned')]);
    await namespace.run('conntrack', '-F');
    await namespace.run('nft', 'flush', 'ruleset');
  });
  beforeEach(async () => {
    ({ namespace, helper } = await netns());
  });
  const sendTo = (address: string, text = 'hello') =>
    namespace.run('bash', '-c', `echo ${text} >/dev/udp/${address}/53`);
  const translate = async () => {
    await namespace.run('sysctl', '-qw', 'net.netfilter.nf_conntrack_acct=1');
    await namespace.run('ip', 'route', 'replace', 'local', '10.96.0.10', 'dev', 'lo');
    await namespace.run('iptables', '-t', 'nat', '-A', ...DNAT.split(' '));
  };

  it('conntrack: reports translated entries with final counters, and omits the others', async () => {
    await translate();
    await helper.call('openEvents', { kinds: ['new', 'destroy'], translatedOnly: true });
    await helper.call('insertFlows', { ...flows, count: 5 });
    await sendTo('10.96.0.10');
    await sendTo('127.0.0.1');
    await namespace.run('conntrack', '-D', '-p', 'udp');
    const { read, dropped } = await helper.call('readEvents');
    assert.deepEqual(
      read.map(({ kind, entry }) => [kind, entry.origDst, entry.replySrcPort]),
      [
        ['new', '10.96.0.10', 5353],
        ['destroy', '10.96.0.10', 5353],
      ],
    );
    // IP and UDP header, text and line feed.
    const [, destroyed] = read;
    assert.deepEqual(destroyed?.entry.details.counters, { packets: 1, bytes: 20 + 8 + 6 });
    assert.equal(dropped, 0);
  });

  it('conntrack: counts the events that do not fit into the buffer', async () => {
    const options = { translatedOnly: false, receiveBuffer: 64 << 10 };
    await helper.call('openEvents', { kinds: ['new'], ...options });
    await helper.call('insertFlows', { ...flows, count: 2000 });
    const { read } = await helper.call('readEvents');
    const { dropped } = await helper.call('readEvents');
    assert.ok(read.length > 0);
    assert.equal(read.length + (dropped ?? 0), 2000);
  });

  it('conntrack: fills a buffer with events of at least 0.8 KiB each, twice the buffer in all', async () => {
    const options = { translatedOnly: false, receiveBuffer: 256 << 10 };
    await helper.call('openEvents', { kinds: ['new'], ...options });
    await helper.call('insertFlows', { ...flows, count: 2000 });
    const { read, dropped } = await helper.call('readEvents');
    assert.ok(read.length >= 256 && read.length <= 640, `${read.length} events`);
    assert.equal(read.length + (dropped ?? 0), 2000);
  });

  it('conntrack: counts also the events that are dropped after the first was reported', async () => {
    const options = { translatedOnly: false, receiveBuffer: 64 << 10 };
    await helper.call('openEvents', { kinds: ['new'], ...options });
    await helper.call('insertFlows', { ...flows, count: 1000 });
    const first = await helper.call('readEvents', 1);
    // The kernel drops all events until the socket is empty, and says so only once.
    await helper.call('insertFlows', { ...flows, src: '10.0.0.2', count: 1000 });
    const { read, dropped } = await helper.call('readEvents');
    assert.equal(first.read.length + read.length + (dropped ?? 0), 2000);
    await helper.call('closeEvents');
    assert.deepEqual(await helper.call('readEvents'), { read: [], dropped });
  });

  it('conntrack: keeps a random part of the events while asked to', async () => {
    await helper.call('openEvents', { kinds: ['new'], translatedOnly: false });
    await helper.call('sampleEvents', 4);
    await helper.call('insertFlows', { ...flows, count: 2000 });
    const { read, dropped } = await helper.call('readEvents');
    // Eight standard deviations from 500.
    assert.ok(read.length > 345 && read.length < 655, `${read.length} of 2,000`);
    assert.equal(dropped, 0);
    await helper.call('sampleEvents', 1);
    await helper.call('insertFlows', { ...flows, src: '10.0.0.2', count: 100 });
    assert.equal((await helper.call('readEvents')).read.length, 100);
  });

  it('conntrack: keeps the events of some destinations', async () => {
    await helper.call('openEvents', { kinds: ['new'], translatedOnly: false });
    const read = async () =>
      (await helper.call('readEvents')).read.map(
        ({ entry }) => `${entry.origDst} ${entry.origDstPort}`,
      );
    const open = async (src: string) => {
      await helper.call('insertFlows', { ...flows, src, count: 1 });
      await helper.call('insertFlows', {
        ...flows,
        src,
        dst: '10.96.0.12',
        endpoint: '10.1.0.6',
        count: 1,
      });
      await helper.call('insertFlows', {
        ...flows,
        src,
        dst: '10.96.0.13',
        dstPort: 54,
        endpoint: '10.1.0.7',
        count: 1,
      });
    };
    const all = ['10.96.0.11 53', '10.96.0.12 53', '10.96.0.13 54'];
    await open('10.0.0.1');
    assert.deepEqual(await read(), all);
    for (const [src, addresses, ports, expected] of [
      ['10.0.0.2', ['10.96.0.12', '2001:db8::1'], [], all.slice(1, 2)],
      ['10.0.0.3', ['10.96.0.12'], [54], all.slice(1)],
      ['10.0.0.4', [], [], []],
    ] as const) {
      const none = { addresses: [], ports: [] };
      await helper.call('selectEvents', {
        ...none,
        destinations: addresses,
        destinationPorts: ports,
      });
      await open(src);
      assert.deepEqual(await read(), expected);
    }
    await helper.call('selectEvents', undefined);
    await open('10.0.0.5');
    assert.deepEqual(await read(), all);
  });

  it('conntrack: keeps the events with one of some sources, destinations, endpoints or ports', async () => {
    await helper.call('openEvents', { kinds: ['new'], translatedOnly: false });
    const v6 = { src: 'fd00::1', dst: 'fd00:96::1', endpoint: 'fd00:1::5' };
    const open = async (src: string, srcIpv6: string) => {
      const web = { ...flows, src, dst: '10.96.0.12', endpoint: '10.1.0.6', endpointPort: 8080 };
      for (const each of [{ ...flows, src }, web, { ...flows, ...v6, src: srcIpv6 }])
        await helper.call('insertFlows', { ...each, count: 1 });
    };
    const all = ['10.96.0.11', '10.96.0.12', 'fd00:96::1'];
    let client = 1;
    for (const [addresses, ports, expected] of [
      [['10.0.0.2'], [], all.slice(0, 2)],
      [['10.96.0.12'], [], all.slice(1, 2)],
      [['10.1.0.5', 'fd00:1::5'], [], [all[0], all[2]]],
      [['fd00:96::1'], [], all.slice(2)],
      [['fd00::6'], [], all.slice(2)],
      [[], [8080], all.slice(1, 2)],
      [[], [53], all],
      [['192.0.2.1'], [1], []],
      // Too many for the program.
      [Array.from({ length: 100 }, (_, index) => `192.0.2.${index}`), [], all],
    ] as const) {
      client += 1;
      const selection = { destinations: [], destinationPorts: [], addresses, ports };
      await helper.call('selectEvents', selection);
      await open(`10.0.0.${client}`, `fd00::${client}`);
      const { read } = await helper.call('readEvents');
      const what = JSON.stringify({ addresses, ports });
      assert.deepEqual(
        read.map(({ entry }) => entry.origDst),
        expected,
        what,
      );
    }
  });

  it('conntrack: visits translated entries only, if asked', async () => {
    await translate();
    await helper.call('insertFlows', { ...flows, count: 5 });
    await sendTo('10.96.0.10');
    const all = await helper.call('visitDetailed', false);
    assert.equal(all.length, 6);
    const translated = await helper.call('visitDetailed', true);
    assert.deepEqual(
      translated.map(({ origDst, details }) => [origDst, details.counters?.packets]),
      [['10.96.0.10', 1]],
    );
  });

  it('nflog: receives packets of an owned table, up to its rate, until the socket is closed', async () => {
    const [group, rate] = [20_104, 2];
    await helper.call('bindGroup', group);
    await helper.call('createOwned', 'owned', '127.0.0.1', group, rate);
    await assert.rejects(namespace.run('nft', 'delete', 'table', 'ip', 'owned'));
    // One process, so that the burst ends within a few seconds also on a slow machine.
    const burst = 'for each in {1..1000}; do echo hello >/dev/udp/127.0.0.1/53; done 2>/dev/null';
    await namespace.run('bash', '-c', burst);
    const packets: { prefix: string; bytes: string }[] = [];
    await waitFor('the packets arrive', async () => {
      packets.push(...(await helper.call('readGroup')));
      return packets.length >= rate;
    });
    assert.ok(packets.length < 500, `${packets.length} packets`);
    assert.equal(packets[0]?.prefix, 'to a VIP');
    assert.match(packets[0]?.bytes ?? '', /^45.*7f000001.*68656c6c6f0a$/);
    await helper.call('closeOwned');
    assert.equal(await namespace.run('nft', 'list', 'tables'), '');
  });

  it('nflog: says that another program receives a group', async () => {
    await helper.call('bindGroup', 7);
    await assert.rejects(namespace.helper().call('bindGroup', 7), {
      message: 'bind NFLOG group 7: EPERM',
    });
  });
});
