import assert from 'node:assert/strict';
import type { FlowLine } from '../../../status/api/traffic.ts';
import { FlowQueue } from '../../../status/traffic/flow-queue.ts';
import { entry, NO_FILTER, VIP } from './fake-traffic.ts';

describe('FlowQueue: events that wait for a client', () => {
  it('keeps a bounded number, and says how many are lost', async () => {
    const queue = new FlowQueue(NO_FILTER, () => 0, 2);
    const event = { at: '', event: 'opened', service: null, reason: '', policies: [] } as const;
    const { details, id, zone, status, ...tuple } = entry();
    for (const port of [1, 2, 3, 4]) {
      const flow = {
        family: tuple.family,
        protocol: 'TCP',
        source: tuple.origSrc,
        sourcePort: port,
        destination: VIP,
        destinationPort: 80,
        endpoint: VIP,
        endpointPort: 80,
        masqueraded: false,
        state: null,
        packets: null,
        bytes: null,
        stale: false,
      };
      queue.push({ ...event, flow });
    }
    queue.end();
    const lines: FlowLine[] = [];
    for await (const line of queue.lines()) lines.push(line);
    assert.deepEqual(
      lines.map((line) => ('flow' in line ? line.flow.sourcePort : line.lost)),
      [1, 2, 2],
    );
  });
});
