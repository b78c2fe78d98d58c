import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ResultPromise } from 'execa';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { serviceManifest, sliceManifest, withPods } from './manifests.ts';
import { packetsOf, type Wire } from './media/capture.ts';
import { type Capture, startCapture, trackedUdp } from './media/tcpdump.ts';

const VIPS = { 4: '203.0.113.41', 6: '2001:db8:113::41' } as const;
const SIP = 5060;
const FIRST = 20_480;
const PER_POD = 128;
/** A caller sends RTP from this port, or from another one further up. */
const CALLER_PORT = 30_000;
/** Half a second of RTP of each call, in one direction. */
const PACKETS = 25;
const DEADLINE_MS = 60_000;
const scenario = (name: string) => new URL(`./media/${name}.xml`, import.meta.url).pathname;
/** SIPp refuses to start if it may open more sockets than the limit of files. */
const COMMON = ['-nostdin', '-max_socket', '100'];

describe('SIP user agents with owned media ports', () => {
  let lab: Lab;
  let agents: Agent[];
  let directory: string;
  let capture: Capture;
  const calls: ResultPromise[] = [];

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-sip-'));
    lab = await createLab({ pods: 2, remotePods: 1 });
    // A node's own packets show whether its agent has synced.
    agents = [lab.node, lab.node2].map(
      (node) => new Agent({ ...lab, node, client: node }, { syncs: 2 }),
    );
    capture = await startCapture(lab.client, directory);
  });
  after(async () => {
    await Promise.all(agents?.map((agent) => agent.destroy()) ?? []);
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const pods = () => [...lab.pods, ...lab.remotePods];
  const startAgents = async () => {
    const objects = [
      serviceManifest('phones', {
        annotations: {
          'portwide.dev/ports': `${SIP}/UDP`,
          'portwide.dev/owned-ports': `${FIRST}-${FIRST + 8 * PER_POD - 1}/UDP`,
          'portwide.dev/ports-per-pod': `${PER_POD}`,
        },
        ingress: Object.values(VIPS).map((ip) => ({ ip, ipMode: 'VIP' })),
        spec: { type: 'LoadBalancer', clusterIPs: ['10.96.0.61', 'fd00:10:96::61'] },
      }),
      ...([4, 6] as const).map((family) =>
        sliceManifest(
          'phones',
          family,
          pods().map((pod, at) => [pod, { targetRef: { kind: 'Pod', name: `phone-${at}` } }]),
        ),
      ),
    ];
    await Promise.all(
      agents.map(async (agent, at) => {
        const name = at === 0 ? [] : ['--hostname-override=node2'];
        await agent.start([...AGENT_FLAGS, '--proxy-mode=nftables', ...name]);
        await agent.apply(withPods(objects));
      }),
    );
  };

  const addressOf = (host: Host, family: 4 | 6) => (family === 4 ? host.ipv4 : `[${host.ipv6}]`);

  /** Starts user agents that announce the VIP with the first port of their pod, and echo RTP. */
  const startPhones = () => {
    for (const family of [4, 6] as const) {
      for (const [ordinal, pod] of pods().entries()) {
        const own = addressOf(pod, family);
        const media = ['-mi', own, '-mp', `${FIRST + ordinal * PER_POD}`, '-rtp_echo'];
        const args = ['-sf', scenario('sip-answer'), '-i', own, '-p', `${SIP}`, ...media];
        pod.spawn('sipp', [...args, '-key', 'vip', VIPS[family], ...COMMON]);
      }
    }
  };

  /** Whether callers talk on or hang up: callers read this file. The zero ends the text for SIPp. */
  const setState = (state: 'talk' | 'end') => writeFileSync(join(directory, 'state'), `${state}\0`);

  /** Callers outside. SIPp sends RTP of all its calls from one port, so each call has a SIPp. */
  const call = (count: number) => {
    const file = join(directory, 'call.xml');
    writeFileSync(
      file,
      readFileSync(scenario('sip-call'), 'utf8').replaceAll('DIRECTORY', directory),
    );
    for (let index = 0; index < count; index++) {
      const family = index % 2 === 0 ? 4 : 6;
      const own = addressOf(lab.client, family);
      const vip = family === 4 ? VIPS[4] : `[${VIPS[6]}]`;
      const media = ['-mi', own, '-mp', `${CALLER_PORT + 4 * calls.length}`];
      const args = ['-sf', file, `${vip}:${SIP}`, '-i', own, ...media, '-m', '1', ...COMMON];
      calls.push(lab.client.spawn('sipp', args));
    }
  };

  /** Packets to and from owned ports. */
  const media = (seen: Wire['sent']) =>
    new Map([...seen].filter(([far]) => !far.endsWith(` ${SIP}`)));

  /** Waits until all callers could hear half a second more. */
  const flow = async () => {
    const heard = () => packetsOf(media(capture.read().received));
    const goal = heard() + calls.length * PACKETS;
    await waitFor('RTP comes back from pods', () => heard() >= goal, DEADLINE_MS);
    const ended = calls
      .map(({ nodeChildProcess }) => nodeChildProcess.exitCode)
      .filter((code) => code !== null);
    assert.deepEqual(ended, [], 'all calls go on');
  };

  it('20 calls lose no packet while agents are killed, and show only ports of the VIP', async function () {
    this.timeout(180_000);
    await startAgents();
    startPhones();
    writeFileSync(join(directory, 'speech'), Buffer.alloc(8000));
    setState('talk');
    call(10);
    await flow();
    await Promise.all(agents.map((agent) => agent.kill()));
    await flow();
    call(10);
    await flow();
    await startAgents();
    await flow();
    const tracked = await trackedUdp([lab.node, lab.node2]);
    assert.deepEqual(
      tracked.filter((entry) => !entry.includes(` dport=${SIP} `)),
      [],
      'no conntrack entries for media',
    );
    setState('end');
    const ended = await Promise.all(calls);
    assert.equal(ended.length, 20);
    await waitFor('the last echoes arrive', () => {
      const { sent, received } = capture.read();
      return packetsOf(media(sent)) === packetsOf(media(received));
    });
    const { sent, received } = capture.read();
    const wire = await capture.finish({ sent: packetsOf(sent), received: packetsOf(received) });
    assert.deepEqual(
      [...media(wire.received)].sort(),
      [...media(wire.sent)].sort(),
      'each packet to a port of the VIP comes back from it',
    );
    const announced = Object.values(VIPS).flatMap((vip) =>
      pods().map((_, ordinal) => `${vip} ${FIRST + ordinal * PER_POD}`),
    );
    const signalling = Object.values(VIPS).map((vip) => `${vip} ${SIP}`);
    for (const seen of [wire.sent, wire.received]) {
      const strange = [...seen.keys()].filter(
        (far) => ![...announced, ...signalling].includes(far),
      );
      assert.deepEqual(strange, [], 'no pod and no node is on the wire');
      const used = [...media(seen).keys()];
      assert.equal(new Set(used.map((far) => far.split(' ')[0])).size, 2, 'both VIPs are used');
      assert.ok(new Set(used.map((far) => far.split(' ')[1])).size > 1, 'several pods answer');
    }
  });
});
