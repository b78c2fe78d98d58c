import assert from 'node:assert/strict';
import { type DnsProcess, startDns } from '../e2e/dns-server.ts';
import { ApiFeed } from '../e2e/feed.ts';
import { largeSlice, largeSliceAddress, serviceManifest } from '../e2e/manifests.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';

const SLICES = 1000;
const PER_SLICE = 100;
const CHUNK = 50;
const ZONE = 'default.svc.cluster.local';
const PORT = 5353;
/** Milliseconds. A server that recomputes the whole Service for each slice exceeds it. */
const ANSWER_MS = 2000;

/** The most that the API server takes in one EndpointSlice. */
const MOST_ENDPOINTS = 1000;
const MOST_PORTS = 100;
/** With a record for each endpoint and port, these slices would have 4,000,000 records. */
const LARGE_SLICES = 40;
/** Bytes: several times what these slices need, and half of what so many records would need. */
const MOST_MEMORY = 350e6;

describe('DNS of headless Services with many endpoints', () => {
  let lab: Lab;
  let feed: ApiFeed;
  let dns: DnsProcess;
  const slices = Array.from({ length: SLICES }, (_, index) =>
    largeSlice('many', index, PER_SLICE, 80),
  );

  before(async () => {
    lab = await createLab({});
    feed = await ApiFeed.start(lab);
    feed.write('objects', [
      serviceManifest('web', { spec: { clusterIPs: ['10.96.0.1'], ports: [{ port: 80 }] } }),
      serviceManifest('many', { spec: { clusterIPs: ['None'], ports: [{ port: 80 }] } }),
    ]);
    await feed.written();
    dns = await startDns(lab.node, [...feed.flags, `--port=${PORT}`, '--metrics-bind-address=']);
  });
  after(async () => {
    await dns?.stop();
    await lab?.destroy();
  });

  const resolve = (name: string) =>
    lab.client.resolve(`${lab.node.ipv4}:${PORT}`, `${name}.${ZONE}`, 'A', ANSWER_MS);

  /** Writes slices in chunks, and asks for another Service while the server reads each. */
  async function change(call: 'put' | 'delete'): Promise<void> {
    for (let from = 0; from < SLICES; from += CHUNK) {
      const written = feed.double.call(call, ...slices.slice(from, from + CHUNK));
      const answer = await resolve('web');
      assert.deepEqual(answer, { answers: ['10.96.0.1'] }, `after ${from} slices`);
      await written;
    }
  }

  const lastHost = `${largeSliceAddress(SLICES - 1, PER_SLICE - 1).replaceAll('.', '-')}.many`;

  it(`answers other names while slices of ${MOST_ENDPOINTS} endpoints and ${MOST_PORTS} ports arrive`, async () => {
    const hostname = (slice: number, endpoint: number) => `h${slice}-${endpoint}`;
    const large = Array.from({ length: LARGE_SLICES }, (_, slice) => ({
      ...largeSlice('many', slice, 0, 80),
      ports: Array.from({ length: MOST_PORTS }, (_, port) => ({
        name: `p${port}`,
        port: 1 + port,
      })),
      endpoints: Array.from({ length: MOST_ENDPOINTS }, (_, endpoint) => ({
        addresses: [`10.${slice}.${endpoint >> 8}.${endpoint & 255}`],
        hostname: hostname(slice, endpoint),
      })),
    }));
    const written = feed.double.call('put', ...large);
    const last = hostname(LARGE_SLICES - 1, MOST_ENDPOINTS - 1);
    const isComplete = async () => {
      assert.deepEqual(await resolve('web'), { answers: ['10.96.0.1'] });
      return 'answers' in (await resolve(`${last}.many`));
    };
    await waitFor('the last slice', isComplete, 60_000);
    await written;
    const { stdout } = await lab.node.exec('cat', [`/proc/${dns.process.pid}/status`]);
    const [, kilobytes] = /^VmRSS:\s+(\d+) kB$/m.exec(stdout) ?? [];
    assert.ok(Number(kilobytes) * 1024 < MOST_MEMORY, `${kilobytes} kB`);
    await feed.double.call('delete', ...large);
    const isGone = async () => !('answers' in (await resolve(`${last}.many`)));
    await waitFor('no records', isGone, 60_000);
  });

  it(`answers other names while ${SLICES} slices of a Service arrive and go`, async () => {
    await change('put');
    await waitFor('the last slice', async () => 'answers' in (await resolve(lastHost)), 60_000);
    const some = await resolve('many');
    assert.ok('answers' in some, JSON.stringify(some));
    const [first = ''] = some.answers;
    assert.match(String(first), /^10\.[0-3]\.\d+\.\d+$/);
    // As many as fit in a message of 64 KiB, not all.
    assert.ok(some.answers.length > 1000 && some.answers.length < 5000, `${some.answers.length}`);
    await change('delete');
    const isGone = async () => !('answers' in (await resolve('many')));
    await waitFor('no records', isGone, 60_000);
  });
});
