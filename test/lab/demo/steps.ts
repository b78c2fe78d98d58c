/** Demo steps with a running Service. Each step verifies first and prints afterwards. */
import assert from 'node:assert/strict';
import { type Host, type Outcome, waitFor } from '../lab.ts';
import { DEADLINE_MS, type DemoEnvironment, replyOf } from './environment.ts';
import { randomPorts } from './random.ts';
import { folded, heading, print, table } from './text.ts';

/** Shows the hosts and their addresses. */
export function showNetwork({ lab, pods }: DemoEnvironment): void {
  heading('A small network of Linux network namespaces');
  const line = (label: string, { ipv4, ipv6 }: Host, note = '') =>
    print(`${label.padEnd(18)}${ipv4.padEnd(17)}${ipv6.padEnd(20)}${note}`.trimEnd());
  const podsOf = (node: readonly Host[], margin: string) => {
    for (const pod of node) line(`${margin}+-- ${pod.name}`, pod);
  };
  line('client', lab.client);
  print('|');
  line('+-- node', lab.node, 'runs Portwide');
  podsOf(lab.pods, '|   ');
  line('+-- node2', lab.node2);
  podsOf(lab.remotePods, '    ');
  print(
    '',
    `Each of the ${pods.length} pods answers on every TCP and UDP port, with its name and the port on which it was`,
    'reached.',
  );
}

/** Shows the manifest, and how the agent was started with it. */
export function showService({ allPorts, command }: DemoEnvironment): void {
  heading(`An all-ports Service: examples/${allPorts.file}`);
  const [service = ''] = allPorts.text.split('\n---\n');
  print(
    ...service.split('\n').map((line) => `  ${line}`),
    '',
    'The rest of the file has the EndpointSlices with the pods. Portwide was started with:',
    '',
    ...folded(command).map((line) => `  ${line}`),
    '',
    'DIR contains this file and examples/port-ranges.yaml. In a cluster, Portwide watches the API',
    'server instead.',
  );
}

/**
 * Resolves the Service's name in a pod.
 *
 * @returns its addresses: IPv4, IPv6.
 */
export async function showName(stage: DemoEnvironment, seed: number): Promise<[string, string]> {
  const { lab, allPorts, dnsServer, dnsCommand } = stage;
  const [pod = assert.fail()] = lab.pods;
  const rows: string[][] = [];
  const found: string[] = [];
  for (const [type, expected] of [
    ['A', allPorts.vips[0]],
    ['AAAA', allPorts.vips[1]],
    ['SRV', undefined],
  ] as const) {
    const result = await pod.resolve(dnsServer, allPorts.name, type);
    const answers = 'answers' in result ? result.answers : [];
    assert.deepEqual(
      result,
      expected === undefined ? { code: 'ENODATA' } : { answers: [expected] },
    );
    found.push(...answers);
    rows.push([allPorts.name, type, answers[0] ?? 'none']);
  }
  const [ipv4 = '', ipv6 = ''] = found;
  const [port = 0] = randomPorts(seed, 1);
  const { host } = replyOf(await pod.tcp(ipv4, port));
  heading(`DNS: ${pod.name} resolves the name of the Service`);
  print(
    'Portwide also answers DNS for the cluster domain. The Service has no SRV records, which name',
    'ports: it serves all ports, and the one in its manifest is a placeholder.',
    '',
    ...folded(dnsCommand).map((line) => `  ${line}`),
    '',
  );
  table(rows);
  print('', `${pod.name} connects to ${ipv4}, port ${port}: answered by ${host}`);
  return [ipv4, ipv6];
}

/** Connects to random ports, with both protocols and both families. */
export async function showRandomPorts(
  { lab }: DemoEnvironment,
  addresses: readonly [string, string],
  seed: number,
): Promise<void> {
  const ports = randomPorts(seed, 12);
  const rows = [['protocol', 'to', 'port', 'answered by', 'at', 'port seen by pod']];
  for (const [index, port] of ports.entries()) {
    const vip = addresses[index < 8 ? 0 : 1];
    const tcp = index % 2 === 0;
    const reply = replyOf(await (tcp ? lab.client.tcp(vip, port) : lab.client.udp(vip, port)));
    assert.equal(reply.localPort, port, 'the pod sees the port that the client called');
    rows.push([
      reply.protocol,
      vip,
      String(port),
      reply.host,
      reply.localAddress,
      String(reply.localPort),
    ]);
  }
  heading(`${ports.length} random ports (to repeat: make demo SEED=${seed})`);
  table(rows);
}

/** Shows the distribution of connections over the pods, and pings the VIP. */
export async function showSpread(
  { lab, pods, allPorts }: DemoEnvironment,
  seed: number,
): Promise<void> {
  const count = 300;
  const [vip] = allPorts.vips;
  const { answered } = await lab.client.burst(vip, randomPorts(seed, count), count);
  const shares = pods.map(({ name }) => ({ name, share: answered[name] ?? 0 }));
  assert.equal(
    shares.reduce((sum, { share }) => sum + share, 0),
    count,
    'every connection is answered by a pod',
  );
  // A pod gets 75 on average; fewer than 30 once in some 10^9 runs.
  for (const { name, share } of shares) assert.ok(share >= 30, `${name} received only ${share}`);
  heading(`${count} TCP connections from one client, each to another random port`);
  table(shares.map(({ name, share }) => [name, String(share), '#'.repeat(share / 3)]));

  print('');
  for (const address of allPorts.vips) {
    const before = await pings(pods);
    assert.ok(await lab.client.ping(address, 3000), `${address} answers a ping`);
    const after = await pings(pods);
    const by = pods.filter((_, index) => after[index] !== before[index]);
    assert.equal(by.length, 1, 'one pod received the echo request');
    print(`ping ${address.padEnd(allPorts.vips[1].length)}   answered by ${by[0]?.name}`);
  }
}

/** Connects to port 22, on which the node listens as well. */
export async function showPort22({ lab, pods, allPorts }: DemoEnvironment): Promise<void> {
  const { client, node } = lab;
  await node.serve({ protocol: 'TCP', port: 22 });
  const rows = [];
  for (const [family, vip] of allPorts.vips.entries()) {
    const own = family === 0 ? node.ipv4 : node.ipv6;
    for (const [from, to] of [
      [client, own],
      [client, vip],
      [node, vip],
    ] as const) {
      const { host } = replyOf(await from.tcp(to, 22));
      const expected = to === own ? [node.name] : pods.map(({ name }) => name);
      assert.ok(expected.includes(host), `${to} port 22 was answered by ${host}`);
      rows.push([`from ${from.name}`, `to ${to}`, 'port 22', `answered by ${host}`]);
    }
  }
  heading('Port 22, on which the node itself listens too (as for SSH)');
  table(rows);
}

/** Removes all pods. Connections are rejected by a rule, not by the node itself. */
export async function showNoEndpoints(stage: DemoEnvironment): Promise<void> {
  const { lab, allPorts } = stage;
  const { client, node } = lab;
  stage.keepEndpoints(allPorts, []);
  for (const vip of allPorts.vips) {
    await waitFor(
      `${vip} refuses`,
      async () => (await client.tcp(vip, 22, { timeoutMs: 300 })).outcome === 'refused',
      DEADLINE_MS,
    );
  }
  const rows = [];
  for (const vip of allPorts.vips) {
    for (const from of [client, node]) {
      refused(await from.tcp(vip, 22));
      refused(await from.udp(vip, 5060));
      rows.push([`from ${from.name}`, `to ${vip}`, 'TCP 22, UDP 5060', 'refused']);
    }
  }
  assert.equal(replyOf(await client.tcp(node.ipv4, 22)).host, node.name);
  rows.push(['from client', `to ${node.ipv4}`, 'TCP 22', 'answered by node']);
  heading('No endpoints: connections are rejected, and the node does not answer instead');
  table(rows);
}

/** Connects to the second example, inside and outside its port ranges. */
export async function showRanges({ lab, portRanges }: DemoEnvironment): Promise<void> {
  const rows = [];
  for (const vip of portRanges.vips) {
    for (const port of [5060, 20_000, 20_100]) {
      const reply = replyOf(await lab.client.udp(vip, port));
      assert.equal(reply.localPort, port);
      assert.match(reply.host, /^pod-/);
      rows.push(['UDP', vip, String(port), `answered by ${reply.host}, at port ${port}`]);
    }
    refused(await lab.client.udp(vip, 20_101));
    rows.push(['UDP', vip, '20101', 'refused']);
    refused(await lab.client.tcp(vip, 5060));
    rows.push(['TCP', vip, '5060', 'refused']);
  }
  const ranges = portRanges.text.match(/portwide\.dev\/ports: (.*)/)?.[1];
  heading(`A Service on port ranges: examples/${portRanges.file} (${ranges})`);
  table(rows);
}

/** Asserts a rejection by a rule; a host without a server would send a reset. */
function refused(outcome: Outcome): void {
  assert.deepEqual(outcome, { outcome: 'refused', by: 'icmp' });
}

/** Number of echo requests that each host received. */
function pings(hosts: readonly Host[]): Promise<string[]> {
  return Promise.all(
    hosts.map(
      async (host) => (await host.exec('nstat', ['-asz', 'IcmpInEchos', 'Icmp6InEchos'])).stdout,
    ),
  );
}
