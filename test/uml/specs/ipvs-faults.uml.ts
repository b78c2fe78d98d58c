/** Faults in IPVS mode: packets show the fault, and one command and the answer for the page name its cause. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { StatusClient } from '../../../status/client.ts';
import { IPVS_CAUSES as CAUSES, type Cause } from '../../e2e/fault-causes.ts';
import { comparable, IPVS_ANSWERS, type IpvsFault } from '../../e2e/ipvs-answers.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { type Host, waitFor } from '../../lab/lab.ts';
import { PORTWIDE } from '../../portwide.ts';
import { IPVS_FLAGS, IpvsLab } from '../ipvs-lab.ts';

const VIP = '10.96.0.10';
const EXTERNAL_VIP = '203.0.113.10';
const PORTS = { ports: [{ name: '', port: 8080 }] };
const UDP_PORTS = { ports: [{ name: '', port: 53, protocol: 'UDP' }] };
/** Milliseconds without an answer after which a packet counts as dropped, on a slow machine. */
const QUIET_MS = 3000;

const web = (spec: Readonly<Record<string, unknown>> = {}) =>
  serviceManifest('web', { spec: { clusterIPs: [VIP], ports: [{ port: 80 }], ...spec } });
const balanced = (spec: Readonly<Record<string, unknown>>) =>
  serviceManifest('web', {
    spec: { clusterIPs: [VIP], ports: [{ port: 80 }], type: 'LoadBalancer', ...spec },
    ingress: [{ ip: EXTERNAL_VIP }],
  });

describe('faults in IPVS mode: one command and the answer for the page name the cause', () => {
  let ipvs: IpvsLab;
  let directory: string;
  let socket: string;
  let client: Host;
  let pod: Host;
  let localPort = 20_000;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-faults-'));
    socket = join(directory, 'agent.sock');
    ipvs = await IpvsLab.create();
    ({ client } = ipvs.lab);
    [pod] = ipvs.pods(0) as [Host];
    await client.exec('ip', ['route', 'replace', '203.0.113.0/24', 'via', ipvs.lab.node.ipv4]);
    // Only the test repairs what is deleted.
    const flags = [`--status-socket=${socket}`, '--ipvs-sync-period=1h'];
    await ipvs.agent.start([...IPVS_FLAGS, ...flags]);
  });
  after(async () => {
    await ipvs?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const ask = async (cause: Cause) => {
    const args = [...cause.command, `--status-socket=${socket}`];
    const options = { reject: false, timeoutMs: 60_000 };
    const { stdout, stderr, exitCode } = await ipvs.lab.node.exec(PORTWIDE, args, options);
    return { text: `${stdout}\n${stderr}`, exitCode };
  };
  const names = async (fault: IpvsFault) => {
    const cause: Cause = CAUSES[fault];
    const { text, exitCode } = await ask(cause);
    assert.match(text, cause.printed);
    assert.equal(exitCode, cause.exitCode, text);
    const { path, answer } = IPVS_ANSWERS[fault];
    const status = new StatusClient({ socketPath: socket });
    const given = await status.get<Record<string, unknown>>(path, [], cause.page.fields);
    assert.deepEqual(comparable(given, answer), comparable(answer, answer));
  };
  const options = (timeoutMs: number) => {
    localPort += 1;
    return { timeoutMs, localPort };
  };
  const outcome = async (address: string, port = 80) =>
    (await client.tcp(address, port, options(QUIET_MS))).outcome;
  const answers = async (address: string) =>
    assert.equal((await client.tcp(address, 80, options(20_000))).outcome, 'answered');
  /** A Service whose packets are answered before the fault. */
  const healthy = async () => {
    await ipvs.agent.apply([web(), sliceManifest('web', 4, [pod], PORTS)]);
    await answers(VIP);
  };
  const titleOf = ({ fault, command }: Cause) => `${fault}: ${command[0]}`;

  it(titleOf(CAUSES.noneReady), async () => {
    await healthy();
    const notReady = [pod, { conditions: { ready: false } }] as const;
    await ipvs.agent.apply([web(), sliceManifest('web', 4, [notReady], PORTS)]);
    assert.equal(await outcome(VIP), 'refused');
    await names('noneReady');
  });

  it(titleOf(CAUSES.localPolicy), async () => {
    const remote = ipvs.lab.remotePods.slice(0, 1);
    await ipvs.agent.apply([
      balanced({ externalTrafficPolicy: 'Local' }),
      sliceManifest('web', 4, remote, PORTS),
    ]);
    assert.equal(await outcome(EXTERNAL_VIP), 'timeout');
    await names('localPolicy');
  });

  it(titleOf(CAUSES.nodeAddress), async () => {
    const { node } = ipvs.lab;
    const spec = { clusterIPs: [VIP], type: 'LoadBalancer', allocateLoadBalancerNodePorts: false };
    const ingress = [{ ip: node.ipv4 }];
    await ipvs.agent.apply([
      serviceManifest('media', { annotations: ALL_PORTS, ingress, spec }),
      sliceManifest('media', 4, [pod]),
    ]);
    assert.equal(await outcome(node.ipv4, 7000), 'refused');
    await names('nodeAddress');
  });

  it(titleOf(CAUSES.sourceRanges), async () => {
    await ipvs.agent.apply([
      balanced({ loadBalancerSourceRanges: ['198.51.100.0/24'] }),
      sliceManifest('web', 4, [pod], PORTS),
    ]);
    assert.equal(await outcome(EXTERNAL_VIP), 'timeout');
    await names('sourceRanges');
  });

  it(titleOf(CAUSES.deletedRule), async () => {
    await healthy();
    const destination = ['-t', `${VIP}:80`, '-r', `${pod.ipv4}:8080`];
    await ipvs.lab.node.exec('ipvsadm', ['-d', ...destination]);
    try {
      assert.notEqual(await outcome(VIP), 'answered');
      await names('deletedRule');
    } finally {
      await ipvs.lab.node.exec('ipvsadm', ['-a', ...destination, '-m', '-w', '1']);
    }
    await answers(VIP);
  });

  it(titleOf(CAUSES.staleConnection), async () => {
    await ipvs.agent.apply([
      serviceManifest('dns', {
        spec: { clusterIPs: [VIP], ports: [{ port: 53, protocol: 'UDP' }] },
      }),
      sliceManifest('dns', 4, [pod], UDP_PORTS),
    ]);
    const entry = [
      ...['-p', 'udp', '-s', client.ipv4, '-d', VIP, '--sport', '5353', '--dport', '53'],
      ...['--dst-nat', '10.244.1.99:53', '-t', '120'],
    ];
    await ipvs.lab.node.exec('conntrack', ['-I', ...entry]);
    const send = async (from: number) =>
      (await client.udp(VIP, 53, { timeoutMs: QUIET_MS, localPort: from })).outcome;
    assert.equal(await send(5354), 'answered');
    assert.notEqual(await send(5353), 'answered');
    await names('staleConnection');
    await ipvs.lab.node.exec('conntrack', ['-F']);
  });

  it(titleOf(CAUSES.conntrackFull), async () => {
    const { node } = ipvs.lab;
    await healthy();
    await node.exec('conntrack', ['-F']);
    // The kernel evicts other connections than established ones from a full table.
    const held = await ipvs.hold(...Array.from({ length: 20 }, () => [VIP, 80] as const));
    const { stdout } = await node.exec('cat', ['/proc/sys/net/netfilter/nf_conntrack_count']);
    // Here, in the first network namespace, it can be set: for all.
    const limitFile = '/proc/sys/net/netfilter/nf_conntrack_max';
    const before = readFileSync(limitFile, 'utf8');
    writeFileSync(limitFile, stdout);
    try {
      assert.equal(await outcome(VIP), 'timeout');
      await names('conntrackFull');
    } finally {
      writeFileSync(limitFile, before);
      for (const each of held) await each.close();
    }
    await answers(VIP);
  });

  it(titleOf(CAUSES.foreignDrop), async () => {
    await healthy();
    const { node } = ipvs.lab;
    const rule = ['-p', 'tcp', '--dport', '8080', '-j', 'DROP'];
    await node.exec('iptables-legacy', ['-I', 'OUTPUT', ...rule]);
    try {
      assert.equal(await outcome(VIP), 'timeout');
      // The agent keeps rules of other programs for a while (agent/kept-answer.ts).
      await waitFor(
        'the agent reads the new rules',
        async () => CAUSES.foreignDrop.printed.test((await ask(CAUSES.foreignDrop)).text),
        150_000,
      );
      await names('foreignDrop');
    } finally {
      await node.exec('iptables-legacy', ['-D', 'OUTPUT', ...rule]);
    }
  });
});
