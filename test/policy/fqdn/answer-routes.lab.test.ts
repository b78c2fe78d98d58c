import assert from 'node:assert/strict';
import type { Child } from '../../child.ts';
import { type Host, waitFor } from '../../lab/lab.ts';
import type { AgentFunctions } from './agent.ts';
import { addressOf } from './dns-server.ts';
import { createFqdnLab, type FqdnLab, PORT, VIP } from './fqdn-lab.ts';

const REMOTE_PODS = '10.244.2.0/24';
const PODS = '10.244.1.0/24';
const MARK = '0x100';

/** An answer counts if the route back to the resolver, for a packet with its mark, leaves by its interface. */
describe('dns-snooper: answers of resolvers behind', () => {
  let fqdnLab: FqdnLab;
  let node: Host;
  let pod: Host;
  let agent: Child<AgentFunctions>;
  let next = 0;
  const undo: (() => Promise<unknown>)[] = [];

  before(async () => {
    fqdnLab = await createFqdnLab();
    ({ node } = fqdnLab.lab);
    [pod] = fqdnLab.pods;
    agent = await fqdnLab.agent();
  });
  afterEach(async () => {
    for (const each of undo.splice(0).toReversed()) await each();
  });
  after(() => fqdnLab?.[Symbol.asyncDispose]());

  const iptables = async (table: string, rule: string) => {
    await node.exec('iptables-nft', ['-t', table, '-A', ...rule.split(' ')]);
    undo.push(() => node.exec('iptables-nft', ['-t', table, '-D', ...rule.split(' ')]));
  };
  const ip = (text: string) => node.exec('ip', text.split(' '));
  /** Looks up another name. @returns its address. */
  const look = async () => {
    next += 1;
    const name = `a${next}.example.com`;
    const { stdout } = await pod.exec('dig', ['+short', `@${VIP[4]}`, name]);
    assert.equal(stdout, addressOf(next, 'A'));
    return stdout;
  };
  const reaches = async (address: string) =>
    (await pod.tcp(address, PORT, { timeoutMs: 500 })).outcome === 'answered';

  /** Routes to remote pods leave by another interface, except for packets with the mark. */
  const routeByMark = async () => {
    const [, neighbour] = fqdnLab.pods;
    const route = (await ip(`-4 route show ${REMOTE_PODS}`)).stdout.trim();
    const { stdout } = await ip(`-4 route get ${neighbour.ipv4}`);
    const device = / dev (\S+)/.exec(stdout)?.[1] ?? '';
    await ip(`route add ${route} table 77`);
    undo.push(() => ip('route flush table 77'));
    await ip(`rule add fwmark ${MARK}/${MARK} table 77`);
    undo.push(() => ip(`rule del fwmark ${MARK}/${MARK} table 77`));
    await ip(`route replace ${REMOTE_PODS} dev ${device}`);
    undo.push(() => ip(`route replace ${route}`));
    await iptables('mangle', `PREROUTING -s ${pod.ipv4} -j MARK --set-mark ${MARK}`);
  };

  /** Adds a second link to the node of the resolvers and equal IPv4 routes over both. Answers arrive by one of them. */
  const routeTwice = async (link: 'first' | 'second') => {
    const { node2 } = fqdnLab.lab;
    const there = (text: string) => node2.exec('ip', text.split(' '));
    await ip(`link add second type veth peer name second netns ${node2.namespace}`);
    undo.push(() => ip('link del second'));
    for (const [host, address] of [
      [ip, '192.168.78.10'],
      [there, '192.168.78.11'],
    ] as const) {
      await host(`address add ${address}/24 dev second`);
      await host('link set second up');
    }
    const route = (await ip(`-4 route show ${REMOTE_PODS}`)).stdout.trim();
    const nextHops = `nexthop via ${node2.ipv4} nexthop via 192.168.78.11`;
    await ip(`route replace ${REMOTE_PODS} ${nextHops}`);
    undo.push(() => ip(`route replace ${route}`));
    const back = (await there(`-4 route show ${PODS}`)).stdout.trim();
    await there(`route replace ${PODS} via ${link === 'first' ? node.ipv4 : '192.168.78.10'}`);
    undo.push(() => there(`route replace ${back}`));
  };

  for (const link of ['first', 'second'] as const) {
    it(`the ${link} of two equal IPv4 routes`, async () => {
      await routeTwice(link);
      const counted = await agent.call('forgedAnswers');
      // Queries leave by either link.
      for (let lookup = 0; lookup < 8; lookup++)
        assert.ok(await reaches(await look()), `lookup ${lookup}`);
      assert.equal(await agent.call('forgedAnswers'), counted);
    });
  }

  it('masquerade', async () => {
    await iptables('nat', `POSTROUTING -s ${pod.ipv4} -d ${REMOTE_PODS} -j MASQUERADE`);
    assert.ok(await reaches(await look()));
  });

  it('a route by mark, if answers have the mark, too', async () => {
    await routeByMark();
    await iptables('mangle', `PREROUTING -s ${REMOTE_PODS} -j MARK --set-mark ${MARK}`);
    const address = await look();
    // Routes to the addresses of domain names have no mark.
    assert.ok(await reaches(address));
  });

  it('another route than their answers take: DNS works, and nothing is learned', async () => {
    await routeByMark();
    const counted = await agent.call('forgedAnswers');
    const address = await look();
    await waitFor('it is counted', async () => (await agent.call('forgedAnswers')) > counted);
    assert.equal(await reaches(address), false);
  });
});
