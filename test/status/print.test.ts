import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { describeValue } from '../../api/read-field.ts';
import type { NodeStatus } from '../../status/api/node-status.ts';
import { documentText, jsonLine } from '../../status/print/documents.ts';
import { DIFF_COLUMNS, kernelDiffText } from '../../status/print/kernel-diff.ts';
import {
  LISTED_ENDPOINT_COLUMNS,
  LISTED_ROUTE_COLUMNS,
  POLICY_COLUMNS,
  SERVICE_COLUMNS,
} from '../../status/print/lists.ts';
import { NODE_COLUMNS, nodeStatusText, statusChanges } from '../../status/print/node-status.ts';
import { WatchedRows } from '../../status/print/row-changes.ts';
import { serviceDetailText } from '../../status/print/service-detail.ts';
import { COLOURED, PLAIN } from '../../status/print/style.ts';
import { tableText } from '../../status/print/table.ts';
import {
  FLOW_COLUMNS,
  lostText,
  sampleNotes,
  TOP_COLUMNS,
  TRAFFIC_COLUMNS,
} from '../../status/print/traffic.ts';
import {
  CHANGED,
  DEGRADED,
  DETAIL,
  diff,
  ENDPOINTS,
  HEALTHY,
  MISSING,
  NOW,
  OWNED_DETAIL,
  POLICIES,
  ROUTES,
  SERVICES,
  service,
  UNEXPECTED,
} from './answers.ts';
import { BUSY_SERVICES, FLOWS, TOP_ROWS, topList } from './traffic-answers.ts';

const now = Date.parse(NOW);

/** Compares with a file in golden/. */
function isGolden(name: string, text: string): void {
  assert.equal(text, readFileSync(new URL(`golden/${name}.txt`, import.meta.url), 'utf8'));
}

describe('status/print: tables', () => {
  it('prints Services', () => isGolden('services', tableText(SERVICE_COLUMNS, SERVICES, now)));

  it('prints endpoints with the decision about each', () =>
    isGolden('endpoints', tableText(LISTED_ENDPOINT_COLUMNS, ENDPOINTS, now)));

  it('prints Routes', () => isGolden('routes', tableText(LISTED_ROUTE_COLUMNS, ROUTES, now)));

  it('prints policies', () => isGolden('policies', tableText(POLICY_COLUMNS, POLICIES, now)));

  it('prints one row for a node', () => {
    const waiting: NodeStatus = {
      ...HEALTHY,
      state: 'starting',
      families: HEALTHY.families.map((family, index) =>
        index === 0 ? family : { ...family, lastSync: null },
      ),
    };
    isGolden('nodes', tableText(NODE_COLUMNS, [HEALTHY, DEGRADED, waiting], now));
  });

  it('prints one row for the differences of a node', () =>
    isGolden('diffs', tableText(DIFF_COLUMNS, [diff([]), diff([MISSING, CHANGED])], now)));
});

describe('status/print: traffic', () => {
  it('adds connections and rates to Services, unknown without them', () => {
    const columns = [...SERVICE_COLUMNS.slice(0, 2), ...TRAFFIC_COLUMNS];
    isGolden('services-traffic', tableText(columns, [...BUSY_SERVICES, service()], now));
  });

  for (const by of ['service', 'endpoint', 'port'] as const) {
    it(`prints the busiest by ${by}`, () =>
      isGolden(`top-${by}`, tableText(TOP_COLUMNS[by], TOP_ROWS[by], now)));
  }

  it('says that there are no rates yet, and what the agent says', () => {
    const { sample } = topList([], null);
    assert.deepEqual(sampleNotes({ ...sample, notes: ['a\u001bnote'] }), [
      'no rates yet: the agent has one sample',
      'a\\u001bnote',
    ]);
    assert.deepEqual(sampleNotes(topList([]).sample), []);
  });

  it('prints flows, and where some are missing', () => {
    isGolden('flows', tableText(FLOW_COLUMNS, FLOWS, now));
    assert.equal(
      lostText({ at: NOW, lost: 12 }),
      `${NOW}   12 flows not shown: the kernel or this command was too slow\n`,
    );
  });

  it('prints an object as one line of printable ASCII', () =>
    assert.equal(jsonLine({ a: ['\u001b[31mü'] }), '{"a":["\\u001b[31m\\u00fc"]}\n'));
});

describe('status/print: status', () => {
  it('prints a healthy node with all features', () =>
    isGolden('status-wide', nodeStatusText(HEALTHY, PLAIN, true)));

  it('says that the source has no Node of this name, unless an older agent does not know', () => {
    const textWith = (fields: object) =>
      nodeStatusText({ ...HEALTHY, source: { ...HEALTHY.source, ...fields } }, PLAIN, false);
    assert.match(textWith({ hasNode: false }), /^Source: .*: Service ok, no Node node$/m);
    assert.match(textWith({ hasNode: undefined }), /^Source: .*: Service ok, Node node ok$/m);
  });

  it('prints problems first', () =>
    isGolden('status-degraded', nodeStatusText(DEGRADED, PLAIN, false)));

  it('prints what an agent that starts waits for', () => {
    const text = nodeStatusText(
      { ...HEALTHY, state: 'starting', waitingFor: ['Nodes', 'pod CIDRs'] },
      PLAIN,
      false,
    );
    assert.match(text, /^State: +starting\nWaiting for: +Nodes, pod CIDRs\n/m);
  });

  it('colours the state', () =>
    assert.ok(nodeStatusText(DEGRADED, COLOURED, false).includes('\u001b[31mdegraded\u001b[39m')));

  it('prints changes, and none for another attempt or sync', () => {
    isGolden('status-changes', statusChanges(HEALTHY, DEGRADED, PLAIN).join(''));
    const again = JSON.parse(
      JSON.stringify(DEGRADED)
        .replaceAll('3 attempts', '4 attempts')
        .replaceAll('11:59:57', '12:01:00'),
    ) as NodeStatus;
    assert.deepEqual(statusChanges(DEGRADED, again, PLAIN), []);
    assert.deepEqual(statusChanges(HEALTHY, { ...HEALTHY, startedAt: NOW }, PLAIN), [
      `${NOW}   the agent was restarted\n`,
    ]);
  });
});

describe('status/print: describe', () => {
  it('prints the slices of pods, and endpoints without slice', () =>
    isGolden('service-owned', serviceDetailText(OWNED_DETAIL, now, PLAIN)));

  it('prints everything about a Service, problems first', () =>
    isGolden('service', serviceDetailText(DETAIL, now, PLAIN)));

  it('prints an unknown number of connections and empty sections', () => {
    const text = serviceDetailText(
      { ...DETAIL, connections: null, problems: [], events: [], kernel: [], kernelTotal: 0 },
      now,
      PLAIN,
    );
    assert.match(text, /^Connections: +<unknown>$/m);
    for (const label of ['Problems', 'Events', 'Kernel objects']) {
      assert.match(text, new RegExp(`^${label}: +<none>$`, 'm'));
    }
  });

  it('escapes control characters of a Problem, an Event and an annotation in one way', () => {
    const clear = '\u001b\n\t\r\b\f\u007f\u009b\u202e[2J';
    const [event] = DETAIL.events;
    assert.ok(event !== undefined);
    const text = serviceDetailText(
      {
        ...DETAIL,
        objects: { ...DETAIL.objects, annotation: `all${clear}` },
        problems: [{ reason: 'R', message: describeValue(clear), object: null, family: null }],
        events: [{ ...event, message: clear }],
      },
      now,
      PLAIN,
    );
    assert.match(text, /^[\x20-\x7e\n]+$/);
    const escaped = String.raw`\u001b\n\t\r\b\f\u007f\u009b\u202e[2J`;
    assert.equal(text.split(escaped).length, 4);
  });
});

describe('status/print: diff', () => {
  it('prints a listing by object, counts the others, marks changes in progress, and names families that are not synced', () => {
    const changing = { ...UNEXPECTED, inProgress: true };
    const fields = {
      different: 1236,
      compared: 9000,
      inProgress: 1,
      omitted: 1234,
      unsynced: [
        { family: 'IPv4', hasSynced: true, error: 'EPERM' },
        { family: 'IPv6', hasSynced: false, error: null },
      ],
    } as const;
    const text = kernelDiffText(diff([MISSING, CHANGED, changing], fields), PLAIN);
    isGolden('diff', text);
  });

  it('prints how many objects were compared if none differs', () =>
    assert.equal(kernelDiffText(diff([]), PLAIN), 'no differences; 120 objects compared\n'));
});

describe('status/print/documents', () => {
  const value = { name: 'web', list: [1, 2], text: 'a\u001b[2J\u202eb', 'with space': null };

  for (const [format, read] of [
    ['json', (text: string): unknown => JSON.parse(text)],
    ['yaml', (text: string): unknown => parse(text)],
  ] as const) {
    it(`writes ${format} that reads back the same, without control characters`, async () => {
      const text = await documentText(value, format);
      assert.match(text, /^[\x20-\x7e\n]+$/);
      assert.deepEqual(read(text), value);
    });
  }

  it('writes plain YAML where it can', async () =>
    assert.equal(await documentText({ name: 'web' }, 'yaml'), 'name: web\n'));
});

describe('status/print/row-changes', () => {
  it('finds new, changed and deleted rows', () => {
    const rows = new WatchedRows(({ name }: { name: string }) => name);
    const [one, two] = [service({ name: 'one' }), service({ name: 'two' })];
    assert.deepEqual(rows.update([one, two]).changed, [one, two]);
    assert.deepEqual(rows.update([two, one]), { changed: [], deleted: [] });
    const changed = service({ name: 'two', state: 'noEndpoints' });
    assert.deepEqual(rows.update([changed]), { changed: [changed], deleted: [one] });
    assert.deepEqual(rows.update([changed, one]), { changed: [one], deleted: [] });
  });
});
