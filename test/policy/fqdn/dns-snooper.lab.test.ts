import assert from 'node:assert/strict';
import packet from 'dns-packet';
import { DNS_QUEUE } from '../../../policy/compile/dns-chains.ts';
import { QUEUE_LENGTH_LIMITS } from '../../../policy/fqdn/queue-length.ts';
import type { Child } from '../../child.ts';
import { type Host, waitFor } from '../../lab/lab.ts';
import type { QueueProcessFunctions } from '../../netlink/queue-process.ts';
import type { AgentFunctions } from './agent.ts';
import type { ClientFunctions } from './client.ts';
import { type Asked, addressOf, type ServerFunctions } from './dns-server.ts';
import { createFqdnLab, type FqdnLab, PORT, queuedResolvers, translate, VIP } from './fqdn-lab.ts';
import type { Flow } from './packets.ts';
import type { SpooferFunctions } from './spoofer.ts';

type Type = 'A' | 'AAAA';

function isIpv4(address: string): boolean {
  return !address.includes(':');
}

/** The pod may connect to the resolvers, and to addresses of `*.example.com`, only. */
describe('dns-snooper: addresses of domain names', () => {
  let fqdnLab: FqdnLab;
  let pod: Host;
  let agent: Child<AgentFunctions>;
  let client: Child<ClientFunctions>;
  let next = 0;

  before(async () => {
    fqdnLab = await createFqdnLab();
    [pod] = fqdnLab.pods;
    client = await fqdnLab.client(pod);
    agent = await fqdnLab.agent();
  });
  after(() => fqdnLab[Symbol.asyncDispose]());

  /** The number of an address that no other test uses. */
  const unused = () => {
    next += 1;
    return next;
  };
  /** The answers that dig prints. */
  const dig = async (...args: readonly string[]) => {
    const options = ['+short', '+tries=1', '+time=5'];
    const { stdout } = await pod.exec('dig', [...options, ...args], { reject: false });
    return stdout.split('\n').filter((line) => line !== '' && !line.startsWith(';'));
  };
  const look = (name: string, type: Type = 'A', ...args: readonly string[]) =>
    dig(`@${VIP[4]}`, name, type, ...args);
  /** Whether a connection succeeds without a single denied packet. */
  const connects = async (address: string) => {
    const before = await agent.call('denied');
    const { outcome } = await pod.tcp(address, PORT);
    return outcome === 'answered' && (await agent.call('denied')) === before;
  };
  const isDenied = async (address: string) => {
    const before = await agent.call('denied');
    const { outcome } = await pod.tcp(address, PORT, { timeoutMs: 300 });
    return outcome === 'timeout' && (await agent.call('denied')) > before;
  };
  const unasked = async () => (await agent.call('numbers')).unasked;
  const restart = async (options?: Parameters<FqdnLab['agent']>[0]) => {
    await agent.stop();
    agent = await fqdnLab.agent(options);
  };

  describe('are observed', () => {
    afterEach(async () => {
      assert.deepEqual(await agent.call('log'), []);
    });

    for (const resolver of Object.values(VIP)) {
      for (const type of ['A', 'AAAA'] as const) {
        for (const protocol of ['+notcp', '+tcp']) {
          it(`of type ${type} from ${resolver}, dig ${protocol}`, async () => {
            const number = unused();
            const address = addressOf(number, type);
            assert.ok(await isDenied(address));
            const found = await dig(`@${resolver}`, `a${number}.example.com`, type, protocol);
            assert.equal(found.length, 1);
            assert.ok(await connects(address));
          });
        }
      }
    }

    it('for names in any case, and for subdomains at any depth', async () => {
      const [one, two] = [unused(), unused()];
      await look(`A${one}.eXample.COM`);
      await look(`a${two}.b.c.Example.com.`);
      assert.ok(await connects(addressOf(one, 'A')));
      assert.ok(await connects(addressOf(two, 'A')));
    });

    it('for matching names only; other names are resolved without observation', async () => {
      for (const name of ['other.test', 'my-example.com', 'example.com.other.test']) {
        const number = unused();
        const found = await look(`a${number}.${name}`);
        assert.deepEqual(found, [addressOf(number, 'A')]);
        assert.ok(await isDenied(addressOf(number, 'A')));
      }
    });

    it('for the queried name at the end of a CNAME chain', async () => {
      const number = unused();
      assert.equal((await look(`a${number}-cname.example.com`)).length, 2);
      assert.ok(await connects(addressOf(number, 'A')));
    });

    it('only within one answer: not for a CNAME without address, nor for the alias of another answer', async () => {
      const number = unused();
      assert.equal((await look(`a${number}-bare.example.com`)).length, 1);
      assert.equal((await look(`alias-of-a${number}.elsewhere.test`)).length, 1);
      assert.ok(await isDenied(addressOf(number, 'A')));
    });

    it('from a hundred addresses of a name, over TCP and in a datagram of 4,096 bytes', async () => {
      const hundred = Array.from({ length: 100 }, (_, index) => 1000 + index);
      for (const [type, args] of [
        ['AAAA', ['+tcp']],
        ['A', ['+notcp', '+bufsize=4096', '+ignore']],
      ] as const) {
        for (const name of ['m100.example.com', 'm100-x.example.com']) {
          assert.equal((await look(name, type, ...args)).length, 100);
        }
        for (const number of [hundred[0], hundred[50], hundred[99]]) {
          assert.ok(await connects(addressOf(number ?? 0, type)));
        }
      }
      // In IPv6 fragments.
      const args = ['+notcp', '+bufsize=8192', '+ignore', '+short', '+tries=1', '+time=5'];
      assert.equal((await dig(`@${VIP[6]}`, 'm100-six.example.com', 'AAAA', ...args)).length, 100);
      const answers = await agent.call('fqdnEntries');
      assert.equal(answers.filter((each) => each.name === 'm100-six.example.com').length, 100);
      for (const name of ['m100.example.com', 'm100-x.example.com']) {
        assert.equal(answers.filter((each) => each.name === name).length, 200);
      }
    });

    it('from a truncated answer, and the rest over TCP', async () => {
      const name = 'm60-t299.example.com';
      const count = async () =>
        (await agent.call('fqdnEntries')).filter((each) => each.name === name).length;
      assert.equal((await look(name, 'A', '+noedns', '+ignore')).length, 5);
      assert.equal(await count(), 5);
      assert.equal((await look(name, 'A', '+noedns')).length, 60);
      assert.equal(await count(), 60);
    });

    it('if they are backend addresses, but not the VIP of a Service', async () => {
      const { node } = fqdnLab.lab;
      const [, other] = fqdnLab.pods;
      await other.serve({ protocol: 'TCP', port: PORT });
      const vip = '10.96.0.80';
      const rule = `PREROUTING -d ${vip} -p tcp -j DNAT --to-destination ${other.ipv4}`;
      await node.exec('iptables-nft', ['-t', 'nat', '-A', ...rule.split(' ')]);
      await look(`i${vip.replaceAll('.', 'x')}.example.com`);
      assert.ok(await isDenied(vip));
      await look(`i${other.ipv4.replaceAll('.', 'x')}.example.com`);
      assert.ok(await connects(other.ipv4));
      assert.ok(await connects(vip));
      await node.exec('iptables-nft', ['-t', 'nat', '-D', ...rule.split(' ')]);
    });

    it('before the pod gets the answer, a thousand times', async () => {
      const before = await agent.call('denied');
      const { answered, connected } = await client.call('lookups', {
        resolver: VIP[4],
        name: 'a#.example.com',
        first: 10_000,
        count: 1000,
        concurrency: 8,
        port: PORT,
      });
      assert.deepEqual([answered, connected], [1000, 1000]);
      assert.equal(await agent.call('denied'), before);
    });

    it('for simultaneous A and AAAA queries to a resolver with several endpoints', async () => {
      // While the first query is queued, its conntrack entry is unconfirmed when the second one
      // arrives.
      assert.equal(await client.call('pairs', VIP[4], 'a#.other.test', 300), 600);
    });
  });

  describe('are not observed', () => {
    let servers: readonly Child<ServerFunctions>[];
    let spoofers: Readonly<Record<'client' | 'pod' | 'elsewhere', Child<SpooferFunctions>>>;
    const RESOLVER_PORT = 53;

    before(async () => {
      servers = fqdnLab.servers;
      const [first, second] = fqdnLab.pods;
      const script = 'spoofer.ts';
      spoofers = {
        client: await fqdnLab.start(first, script),
        pod: await fqdnLab.start(second, script),
        elsewhere: await fqdnLab.start(fqdnLab.lab.elsewhere, script),
      };
    });

    /**
     * Sends an unanswered query from the pod.
     * @returns the query, and the endpoint that received it.
     */
    const ask = async (number: number) => {
      const name = `a${number}-silent.example.com`;
      const asking = pod.spawn('dig', ['+tries=1', '+time=10', `@${VIP[4]}`, name]);
      return await waitFor('the query', async () => {
        for (const [index, server] of servers.entries()) {
          const query = (await server.call('asked')).find((each) => each.name === name);
          const host = fqdnLab.lab.remotePods[index];
          if (query !== undefined && host !== undefined) return { query, host, asking };
        }
        return undefined;
      });
    };
    const answerOf = ({ id, name }: Pick<Asked, 'id' | 'name'>, number: number) =>
      packet.encode({
        type: 'response',
        id,
        questions: [{ type: 'A', name }],
        answers: [{ type: 'A', name, ttl: 300, data: addressOf(number, 'A') }],
      });
    const back = ({ address, port }: Asked, from: string): Flow => {
      return { from, fromPort: RESOLVER_PORT, to: address, toPort: port };
    };

    it('from a server that is not a resolver', async () => {
      const number = unused();
      const { elsewhere } = fqdnLab.lab;
      const before = await agent.call('numbers');
      assert.deepEqual(await dig(`@${elsewhere.ipv4}`, `a${number}.example.com`, '+time=1'), []);
      // Another pod may query this server.
      const [, other] = fqdnLab.pods;
      const { stdout } = await other.exec('dig', [
        '+short',
        `@${elsewhere.ipv4}`,
        `a${number}.example.com`,
      ]);
      assert.equal(stdout, addressOf(number, 'A'));
      assert.deepEqual(await agent.call('numbers'), before);
      assert.ok(await isDenied(addressOf(number, 'A')));
    });

    it('from answers with another source, id, name or port', async () => {
      const number = unused();
      const { query, host, asking } = await ask(number);
      const before = await unasked();
      const { elsewhere } = fqdnLab.lab;
      const flow = back(query, host.ipv4);
      const forgeries: readonly (readonly [Flow, Buffer])[] = [
        [back(query, elsewhere.ipv4), answerOf(query, number)],
        [flow, answerOf({ ...query, id: query.id ^ 1 }, number)],
        [flow, answerOf({ ...query, name: 'b.example.com' }, number)],
        [{ ...flow, toPort: flow.toPort ^ 1 }, answerOf(query, number)],
        [{ ...flow, fromPort: 54 }, answerOf(query, number)],
        [{ ...flow, from: VIP[4] }, answerOf(query, number)],
      ];
      for (const [forged, data] of forgeries) {
        await spoofers.elsewhere.call('send', forged, data);
      }
      // For conntrack, two of them belong to the connection.
      await waitFor('they are seen', async () => (await unasked()) >= before + 2);
      assert.ok(await isDenied(addressOf(number, 'A')));
      asking.kill();
    });

    it('from answers that the client spoofs', async () => {
      const number = unused();
      const { query, host, asking } = await ask(number);
      const flow = back(query, host.ipv4);
      const counted = await agent.call('forgedAnswers');
      await spoofers.client.call('sendFrame', flow, answerOf(query, number));
      await waitFor('it is seen', async () => (await agent.call('forgedAnswers')) === counted + 1);
      assert.ok(await isDenied(addressOf(number, 'A')));
      // The same spoofed packet is accepted from the resolver's interface.
      await spoofers.elsewhere.call('send', flow, answerOf(query, number));
      await waitFor('the address', async () => connects(addressOf(number, 'A')));
      asking.kill();
    });

    it('without a query', async () => {
      const number = unused();
      const [host] = fqdnLab.lab.remotePods;
      const flow = { from: host?.ipv4 ?? '', fromPort: 53, to: pod.ipv4, toPort: 40_000 };
      const name = `a${number}.example.com`;
      // Packets of the previous test are counted by now.
      await look('a2.other.test');
      await spoofers.elsewhere.call('send', flow, answerOf({ id: 0, name }, number));
      await spoofers.pod.call('send', { ...flow, from: VIP[4] }, answerOf({ id: 0, name }, number));
      // No packet so far belongs to a connection to a resolver. The packet after them does.
      const before = await agent.call('numbers');
      await look('a1.other.test');
      const { queries, answers, unasked: others } = await agent.call('numbers');
      assert.deepEqual(
        [queries, answers, others],
        [before.queries + 1, before.answers + 1, before.unasked],
      );
      assert.ok(await isDenied(addressOf(number, 'A')));
    });

    it('from queries of the node itself', async () => {
      const { node } = fqdnLab.lab;
      const before = await agent.call('numbers');
      const [host] = fqdnLab.lab.remotePods;
      await agent.call('setResolvers', [host?.ipv4 ?? '', ...Object.values(VIP)]);
      const resolver = host?.ipv4 ?? '';
      await waitFor('resolver', async () => (await queuedResolvers(node)).includes(resolver));
      const { stdout } = await node.exec('dig', ['+short', `@${host?.ipv4}`, 'a9.example.com']);
      assert.equal(stdout, addressOf(9, 'A'));
      assert.deepEqual(await agent.call('numbers'), before);
      await agent.call('setResolvers', Object.values(VIP));
    });

    it('for a pod whose queries are denied: a domain name rule does not allow the resolver', async () => {
      await restart({ allowed: [] });
      // A lookup from a port used in the last minute would match that conntrack entry.
      await fqdnLab.lab.node.exec('conntrack', ['-F']);
      const before = await agent.call('denied');
      assert.deepEqual(await look(`a${unused()}.example.com`, 'A', '+time=1'), []);
      assert.ok((await agent.call('denied')) > before);
      await restart();
    });
  });

  describe('come from resolvers', () => {
    const LOCAL = '169.254.20.10';
    const RULES = ['PREROUTING -d', 'OUTPUT -s'].map((side) => `${side} ${LOCAL} -j NOTRACK`);

    it('on the node itself, tracked or untracked (NodeLocal DNSCache)', async () => {
      const { node } = fqdnLab.lab;
      await node.exec('ip', ['address', 'add', `${LOCAL}/32`, 'dev', 'lo']);
      for (const rule of RULES) {
        await node.exec('iptables-nft', ['-t', 'raw', '-A', ...rule.split(' ')]);
      }
      await fqdnLab.serveDns(node, node.ipv4, node.ipv6, LOCAL);
      const resolvers = [node.ipv4, node.ipv6, LOCAL];
      await restart({ resolvers, allowed: resolvers.map((each) => [each, each]) });
      for (const resolver of resolvers) {
        for (const protocol of ['+notcp', '+tcp']) {
          const number = unused();
          assert.equal((await dig(`@${resolver}`, `a${number}.example.com`, protocol)).length, 1);
          assert.ok(await connects(addressOf(number, 'A')), `${resolver} ${protocol}`);
        }
      }
      // Queries of the node itself are ignored.
      for (const resolver of [node.ipv4, LOCAL]) {
        const { stdout } = await node.exec('dig', ['+short', `@${resolver}`, 'a9.example.com']);
        assert.equal(stdout, addressOf(9, 'A'));
      }
      const { queries, answers, unasked: others } = await agent.call('numbers');
      assert.deepEqual([queries, answers, others], [6, 6, 0]);
      await restart();
    });

    it('that are current, after the resolvers change', async () => {
      const { elsewhere, node } = fqdnLab.lab;
      const rules = async (resolver: string) => {
        await agent.call('setResolvers', [resolver]);
        await waitFor('resolver', async () => (await queuedResolvers(node)).includes(resolver));
      };
      const allowed = ['198.51.100.10', '10.244.2.11', '10.244.2.12'];
      await restart({ allowed: allowed.map((each) => [each, each]) });
      const [one, two, three] = [unused(), unused(), unused()];
      await dig(`@${elsewhere.ipv4}`, `a${one}.example.com`, '+time=1');
      assert.ok(await isDenied(addressOf(one, 'A')));
      await rules(elsewhere.ipv4);
      await dig(`@${elsewhere.ipv4}`, `a${two}.example.com`);
      assert.ok(await connects(addressOf(two, 'A')));
      await look(`a${three}.example.com`);
      assert.ok(await isDenied(addressOf(three, 'A')));
      await restart();
    });
  });

  describe('lifetime of addresses', () => {
    it('ends after the TTL; established connections continue', async () => {
      await restart({ learner: { floor: 0 } });
      const number = unused();
      const address = addressOf(number, 'A');
      const size = await agent.call('cachedAddresses', `a${number}-t1.example.com`);
      assert.equal(size, 0);
      await look(`a${number}-t1.example.com`);
      const connection = await pod.hold(address, PORT);
      await waitFor('it ends', () => isDenied(address));
      assert.equal(await connection.exchange('still here'), 'still here');
      // The next answer adds them again.
      await look(`a${number}-t1.example.com`);
      assert.ok(await connects(address));
      await connection.close();
      await restart();
    });

    it('ends before the TTL when the cache is full', async () => {
      const TOTAL = 40;
      await agent.stop();
      // Addresses of the other names must be evicted.
      await fqdnLab.lab.node.exec('nft', ['delete', 'table', 'ip', 'portwide-policy']);
      agent = await fqdnLab.agent({ learner: { total: TOTAL } });
      await client.call('lookups', {
        resolver: VIP[4],
        name: 'a#-t296.example.com',
        first: 30_000,
        count: 3 * TOTAL,
        concurrency: 4,
      });
      const { addresses, evictions } = await agent.call('numbers');
      assert.ok(addresses <= TOTAL && evictions >= 2 * TOTAL);
      const elements = async () => (await agent.call('elements', 1)).filter(isIpv4).length;
      await waitFor(
        'the other addresses are removed',
        async () => (await elements()) === addresses,
      );
      const cached = (await agent.call('fqdnEntries')).filter(({ address }) => isIpv4(address));
      assert.equal(cached.length, addresses);
      assert.ok(await connects(addressOf(30_000 + 3 * TOTAL - 1, 'A')));
      await restart();
    });

    it('continues while no rule has a domain name and no packets are queued', async () => {
      const { node } = fqdnLab.lab;
      const number = unused();
      await look(`a${number}.example.com`);
      await agent.call('setNames', []);
      await waitFor('no packet is queued', async () => (await queuedResolvers(node)) === '');
      assert.ok(await connects(addressOf(number, 'A')));
      const other = unused();
      const { queries } = await agent.call('numbers');
      assert.equal((await look(`a${other}.example.com`)).length, 1);
      assert.equal((await agent.call('numbers')).queries, queries);
      // A new list gets the cached addresses.
      await agent.call('setNames', [['*.example.com', [2]]]);
      assert.ok((await agent.call('elements', 2)).includes(addressOf(number, 'A')));
      await waitFor('packets are queued again', () => queuedResolvers(node));
      await look(`a${other}.example.com`);
      assert.ok(await connects(addressOf(other, 'A')));
    });

    it('begins with the first lookup after packets are queued, because the thread was started in advance', async () => {
      const { node } = fqdnLab.lab;
      await restart({ names: [] });
      await waitFor('a thread has the queue', () => agent.call('queue'));
      assert.equal(await queuedResolvers(node), '');
      assert.equal((await agent.call('numbers')).isNotObserving, false);
      await agent.call('setNames', [['*.example.com', [1]]]);
      await waitFor('packets are queued', () => queuedResolvers(node));
      // The first lookup must be observed, because clients cache its answer.
      const number = unused();
      await look(`a${number}.example.com`);
      assert.ok(await connects(addressOf(number, 'A')));
      assert.deepEqual(await agent.call('log'), []);
    });
  });

  describe('with an agent', () => {
    it('that is killed, DNS works, nothing is observed, and the next agent restores the cache', async () => {
      const [one, two] = [unused(), unused()];
      await look(`a${one}.example.com`);
      const connection = await pod.hold(addressOf(one, 'A'), PORT);
      await agent.stop();
      assert.deepEqual(await look(`a${two}.example.com`), [addressOf(two, 'A')]);
      assert.deepEqual(await look(`a${two}.example.com`, 'A', '+tcp'), [addressOf(two, 'A')]);
      const { outcome } = await pod.tcp(addressOf(one, 'A'), PORT);
      assert.equal(outcome, 'answered');
      assert.equal(
        (await pod.tcp(addressOf(two, 'A'), PORT, { timeoutMs: 300 })).outcome,
        'timeout',
      );
      agent = await fqdnLab.agent();
      assert.ok(await connects(addressOf(one, 'A')));
      assert.equal(await connection.exchange('still here'), 'still here');
      assert.ok(await isDenied(addressOf(two, 'A')));
      await look(`a${two}.example.com`);
      assert.ok(await connects(addressOf(two, 'A')));
      await connection.close();
    });

    it('whose main thread hangs, DNS works', async () => {
      const [one, two] = [unused(), unused()];
      const { overdue } = await agent.call('numbers');
      await agent.call('hang', 6000);
      assert.equal((await look(`a${one}.example.com`)).length, 1);
      assert.equal((await look(`a${two}.example.com`)).length, 1);
      assert.equal((await look(`a${two}.other.test`)).length, 1);
      assert.equal(
        (await pod.tcp(addressOf(one, 'A'), PORT, { timeoutMs: 300 })).outcome,
        'timeout',
      );
      // Packets are no longer queued after two seconds. Addresses of earlier answers are added late.
      await waitFor('the addresses', () => connects(addressOf(one, 'A')));
      await waitFor('addresses are added again', async () => {
        await look(`a${two}.example.com`);
        return await connects(addressOf(two, 'A'));
      });
      assert.ok((await agent.call('numbers')).overdue >= overdue + 1);
    });

    it('that cannot write to the kernel, DNS works and the failure is reported', async () => {
      const number = unused();
      await agent.call('fail', true);
      assert.equal((await look(`a${number}.example.com`)).length, 1);
      assert.ok(await isDenied(addressOf(number, 'A')));
      assert.deepEqual(await agent.call('log'), ['not stored: Error: simulated failure']);
      assert.equal((await agent.call('numbers')).notLearned, 1);
      await agent.call('fail', false);
      await look(`a${number}.example.com`);
      assert.ok(await connects(addressOf(number, 'A')));
    });

    it('whose queue is in use, the failure is reported and retried', async () => {
      const { node } = fqdnLab.lab;
      await agent.stop();
      const holder = await fqdnLab.start<QueueProcessFunctions>(
        node,
        '../../netlink/queue-process.ts',
      );
      await holder.call('listen', DNS_QUEUE, 8, true);
      agent = await fqdnLab.agent({ waits: false });
      await waitFor('the failure is reported', async () =>
        (await agent.call('log')).some((line) => line.includes('EPERM')),
      );
      assert.equal((await agent.call('numbers')).isNotObserving, true);
      await holder.stop();
      const number = unused();
      await waitFor('it has the queue', async () => {
        await look(`a${number}.example.com`);
        return await connects(addressOf(number, 'A'));
      });
      assert.equal((await agent.call('numbers')).isNotObserving, false);
    });

    it('on a node that cannot queue packets, DNS works, and the failure is reported once and retried', async () => {
      const isNotObserving = async () => (await agent.call('numbers')).isNotObserving;
      await agent.call('log');
      await agent.call('refuseQueue', true);
      await waitFor('the failure is reported', isNotObserving);
      await waitFor('resolvers expire', async () => {
        return (await queuedResolvers(fqdnLab.lab.node)) === '';
      });
      const number = unused();
      assert.equal((await look(`a${number}.example.com`)).length, 1);
      assert.ok(await isDenied(addressOf(number, 'A')));
      assert.deepEqual(await agent.call('log'), ['queue: Error: simulated failure']);
      await agent.call('refuseQueue', false);
      await waitFor('packets are queued', async () => !(await isNotObserving()));
      await look(`a${number}.example.com`);
      assert.ok(await connects(addressOf(number, 'A')));
    });

    it('whose thread dies, DNS works and a new thread takes the queue', async () => {
      await agent.call('setResolvers', [...Object.values(VIP), 'no:address']);
      await waitFor('the failure is reported', async () =>
        (await agent.call('log')).some((line) => line.startsWith('thread:')),
      );
      await agent.call('setResolvers', Object.values(VIP));
      const number = unused();
      assert.equal((await look(`a${number}.example.com`)).length, 1);
      await waitFor('addresses are added again', async () => {
        await look(`a${number}.example.com`);
        return await connects(addressOf(number, 'A'));
      });
    });

    it('that replaces the policy table, deferred answers are not lost', async () => {
      const COUNT = 500;
      const { node } = fqdnLab.lab;
      const answeredMeanwhile = async (first: number) => {
        let looking = true;
        const lookups = client.call('lookups', {
          resolver: VIP[4],
          name: 'a#-t298.example.com',
          first,
          count: COUNT,
          concurrency: 200,
          perSecond: 400,
        });
        const replacing = (async () => {
          while (looking) {
            await node.exec('nft', ['add', 'chain', 'ip', 'portwide-policy', 'unknown'], {
              reject: false,
            });
            const applied = await agent.call('applied');
            await waitFor(
              'the table is replaced',
              async () => (await agent.call('applied')) > applied,
            );
          }
        })();
        const { answered } = await lookups;
        looking = false;
        await replacing;
        return answered;
      };
      // Packets in flight while a table is deleted are lost. On a busy machine this takes long, so
      // the best of three attempts counts.
      let answered = 0;
      for (let attempt = 0; attempt < 3 && answered <= 0.9 * COUNT; attempt += 1) {
        answered = Math.max(answered, await answeredMeanwhile(50_000 + attempt * COUNT));
      }
      assert.ok(answered > 0.9 * COUNT, `${answered} answers`);
      await agent.call('log');
    });

    it('whose policy table is deleted externally, packets are queued again', async () => {
      const { node } = fqdnLab.lab;
      await node.exec('nft', ['flush', 'ruleset']);
      await translate(node, fqdnLab.lab.remotePods);
      const number = unused();
      await waitFor('it enforces again', () => isDenied(addressOf(number, 'A')));
      await waitFor('packets are queued', () => queuedResolvers(node));
      await look(`a${number}.example.com`);
      assert.ok(await connects(addressOf(number, 'A')));
      await agent.call('log');
    });

    it('whose main thread blocks for a while, all addresses are added afterwards', async () => {
      const COUNT = 250;
      const before = await agent.call('numbers');
      const size = await agent.call('size', 'fqdn-peers');
      await agent.call('hang', 1000);
      // More answers wait than the initial queue length.
      const { answered } = await client.call('lookups', {
        resolver: VIP[4],
        name: 'a#-t295.example.com',
        first: 40_000,
        count: COUNT,
        concurrency: COUNT,
        perSecond: 250,
      });
      const after = await agent.call('numbers');
      assert.equal(answered, COUNT);
      assert.deepEqual(
        [after.answers - before.answers, after.unasked, after.overdue],
        [COUNT, before.unasked, before.overdue],
      );
      assert.equal((await agent.call('size', 'fqdn-peers')) - size, COUNT);
    });

    it('that loses its last domain name, deferred packets are accepted', async () => {
      await agent.call('stick', true);
      const number = unused();
      const { answers } = await agent.call('numbers');
      const looking = look(`a${number}.example.com`);
      await waitFor('the answer', async () => (await agent.call('numbers')).answers > answers);
      assert.equal((await agent.call('queue'))?.waiting, 1);
      await agent.call('setNames', []);
      assert.deepEqual(await looking, [addressOf(number, 'A')]);
      assert.equal((await agent.call('numbers')).overdue, 0);
      await restart();
    });

    it('that is closed, DNS works', async () => {
      const number = unused();
      await look(`a${number}.example.com`);
      await agent.call('close');
      assert.equal(await agent.call('queue'), undefined);
      const other = unused();
      assert.equal((await look(`a${other}.example.com`)).length, 1);
      const known = await pod.tcp(addressOf(number, 'A'), PORT);
      assert.equal(known.outcome, 'answered');
      const unknown = await pod.tcp(addressOf(other, 'A'), PORT, { timeoutMs: 300 });
      assert.equal(unknown.outcome, 'timeout');
      await restart();
    });

    it('that is busy, no address is lost', async () => {
      const COUNT = 3000;
      const before = await agent.call('numbers');
      const size = await agent.call('size', 'fqdn-peers');
      // The longest event loop delay seen under load.
      await agent.call('keepBusy', 65, 100);
      const { answered } = await client.call('lookups', {
        resolver: VIP[4],
        name: 'a#-t297.example.com',
        first: 20_000,
        count: COUNT,
        // At most the queue length, so that the result does not depend on the machine.
        concurrency: QUEUE_LENGTH_LIMITS.min / 2,
        perSecond: 2000,
      });
      const after = await agent.call('numbers');
      assert.equal(answered, COUNT);
      assert.deepEqual(
        [after.queries - before.queries, after.answers - before.answers],
        [COUNT, COUNT],
      );
      assert.deepEqual([after.unasked, after.overdue], [before.unasked, before.overdue]);
      assert.equal((await agent.call('size', 'fqdn-peers')) - size, COUNT);
    });
  });
});
