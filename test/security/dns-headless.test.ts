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

describe(`DNS of a headless Service with ${SLICES} slices`, () => {
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

  it('answers other names while its slices arrive and go', async () => {
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
