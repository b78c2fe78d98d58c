import assert from 'node:assert/strict';
import packet from 'dns-packet';
import type { Child } from '../child.ts';
import { type Host, waitFor } from '../lab/lab.ts';
import type { AgentFunctions } from '../policy/fqdn/agent.ts';
import { type Asked, addressOf, type ServerFunctions } from '../policy/fqdn/dns-server.ts';
import { createFqdnLab, type FqdnLab, PORT, VIP } from '../policy/fqdn/fqdn-lab.ts';
import type { Flow } from '../policy/fqdn/packets.ts';
import type { SpooferFunctions } from '../policy/fqdn/spoofer.ts';

const REMOTE_PODS = ['10.244.2.0', '10.244.2.255', 'fd00:10:244:2::', 'fd00:10:244:2::ffff'];

/** Forged answers have the resolver's address and port, and the client's port, id and question. */
describe('dns-snooper: forged answers on another interface than the way back to the resolver', () => {
  let fqdnLab: FqdnLab;
  let pod: Host;
  let neighbour: Host;
  let agent: Child<AgentFunctions>;
  let localServer: Child<ServerFunctions>;
  let spoofers: Readonly<Record<'neighbour' | 'outside', Child<SpooferFunctions>>>;
  let next = 0;

  before(async () => {
    fqdnLab = await createFqdnLab();
    [pod, neighbour] = fqdnLab.pods;
    localServer = await fqdnLab.serveDns(neighbour, '0.0.0.0', '::');
    spoofers = {
      neighbour: await fqdnLab.start(neighbour, 'spoofer.ts'),
      outside: await fqdnLab.start(fqdnLab.lab.elsewhere, 'spoofer.ts'),
    };
    const [first = '', last = '', first6 = '', last6 = ''] = REMOTE_PODS;
    agent = await fqdnLab.agent({
      resolvers: [...Object.values(VIP), neighbour.ipv4, neighbour.ipv6],
      allowed: [
        [first, last],
        [first6, last6],
        [neighbour.ipv4, neighbour.ipv4],
        [neighbour.ipv6, neighbour.ipv6],
      ],
    });
  });
  after(() => fqdnLab?.[Symbol.asyncDispose]());

  const reaches = async (address: string, timeoutMs = 300) =>
    (await pod.tcp(address, PORT, { timeoutMs })).outcome === 'answered';
  const rpFilter = (value: number) =>
    fqdnLab.lab.node.exec('sysctl', ['-qw', `net.ipv4.conf.all.rp_filter=${value}`]);

  /** Sends a query that the resolver does not answer. @returns the query and the resolver that received it. */
  const ask = async (resolver: string, name: string) => {
    const asking = pod.spawn('dig', ['+tries=1', '+time=300', `@${resolver}`, name]);
    const { servers, lab } = fqdnLab;
    const candidates = [
      ...servers.map((server, index) => [server, lab.remotePods[index]] as const),
      [localServer, neighbour] as const,
    ];
    const found = await waitFor('the query', async () => {
      for (const [server, host] of candidates) {
        const query = (await server.call('asked')).find((each) => each.name === name);
        if (query !== undefined && host !== undefined) return { query, host };
      }
      return undefined;
    });
    return { ...found, asking };
  };
  const answerOf = ({ id, name }: Asked, number: number) =>
    packet.encode({
      type: 'response',
      id,
      questions: [{ type: 'A', name }],
      answers: [{ type: 'A', name, ttl: 300, data: addressOf(number, 'A') }],
    });

  for (const [sender, honest] of [
    ['neighbour', 'outside'],
    ['outside', 'neighbour'],
  ] as const) {
    for (const [family, setting] of [
      [4, 0],
      [4, 1],
      [4, 2],
      [6, 0],
    ] as const) {
      const filter = family === 4 ? `, rp_filter=${setting}` : '';
      it(`from ${sender === 'neighbour' ? 'a pod' : 'outside'}, IPv${family}${filter}, teach nothing`, async () => {
        next += 3;
        const [forged, other, real] = [next, next + 1, next + 2] as const;
        await rpFilter(setting);
        const local = family === 4 ? neighbour.ipv4 : neighbour.ipv6;
        const resolver = sender === 'neighbour' ? VIP[family] : local;
        const { query, host, asking } = await ask(resolver, `a${real}-silent.example.com`);
        const flow: Flow = {
          from: family === 4 ? host.ipv4 : host.ipv6,
          fromPort: 53,
          to: query.address,
          toPort: query.port,
        };
        const counted = await agent.call('forgedAnswers');
        await spoofers[sender].call('send', flow, answerOf(query, forged));
        // Packets are inspected in order of arrival, so the forged answer was inspected, too.
        await waitFor('the next answer is learned', async () => {
          await pod.exec('dig', ['+tries=1', `@${resolver}`, `a${other}.example.com`]);
          return await reaches(addressOf(other, 'A'), 1000);
        });
        assert.equal(await reaches(addressOf(forged, 'A')), false);
        // A strict rp_filter drops the packet earlier.
        if (setting === 0) assert.equal(await agent.call('forgedAnswers'), counted + 1);
        await spoofers[honest].call('send', flow, answerOf(query, real));
        await waitFor('the answer of the resolver is learned', () =>
          reaches(addressOf(real, 'A'), 1000),
        );
        asking.kill();
        // The forged answers are reported some time later.
        const log = await agent.call('log');
        assert.deepEqual(
          log.filter((line) => !line.startsWith('forged: ')),
          [],
        );
      });
    }
  }
});
