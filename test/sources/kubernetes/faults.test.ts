/** Every fault of the API-server double, once while listing and once while watching. */
import assert from 'node:assert/strict';
import type { Fault } from '../../api-server/faults.ts';
import { nodeManifest, sliceManifest } from '../../e2e/manifests.ts';
import { until } from '../recording-sink.ts';
import {
  IMPATIENT,
  PATIENT,
  SourceFixture,
  type SourceFixtureOptions,
  service,
} from './source-fixture.ts';

const HTML = '<html><head><title>502 Bad Gateway</title></head></html>\n';
const status = (code: number, reason: string, retryAfter?: number | string) =>
  ({ kind: 'status', code, reason, ...(retryAfter !== undefined && { retryAfter }) }) as const;

interface Case {
  readonly what: string;
  readonly fault: Fault;
  /** Milliseconds until the retry; 1200 without `Retry-After`. */
  readonly wait?: number;
  /** The watch stays open, and is renewed without a wait. */
  readonly isSilent?: boolean;
  /** A relist follows, because the watch cannot continue. */
  readonly lists?: boolean;
}

const CASES: readonly Case[] = [
  { what: 'a connection closed before the response', fault: { kind: 'refuse' } },
  { what: 'a connection closed in the middle of a line', fault: { kind: 'cut' } },
  { what: 'a response that ends in the middle of a line', fault: { kind: 'truncate' } },
  { what: 'a connection without a response', fault: { kind: 'silence' } },
  {
    what: 'a response of one byte at a time',
    fault: { kind: 'trickle', everyMs: 10 },
    isSilent: true,
  },
  { what: 'status 500', fault: status(500, 'InternalError') },
  { what: 'status 503', fault: status(503, 'ServiceUnavailable') },
  { what: '429 with Retry-After', fault: status(429, 'TooManyRequests', 7), wait: 8750 },
  { what: '503 with Retry-After', fault: status(503, 'ServiceUnavailable', 3), wait: 3750 },
  { what: 'a Retry-After of several years', fault: status(429, 'TooMany', 1e9), wait: 750_000 },
  { what: 'a Retry-After that is not a number', fault: status(429, 'TooMany', 'Tue, 2 Jan') },
  { what: 'garbage', fault: { kind: 'text', text: '\u0000\u0001\ufffd{{{\n' }, lists: true },
  { what: 'an HTML page', fault: { kind: 'text', text: HTML, type: 'text/html' }, lists: true },
  { what: 'an empty response', fault: { kind: 'text', text: '' } },
];

describe('faults of an API server', () => {
  let fixture: SourceFixture;
  const open = async (options: SourceFixtureOptions) => {
    fixture = new SourceFixture(options);
    await fixture.double.listen();
    fixture.double.put(service('a', 1), service('b', 1));
  };
  /** Short timeouts are only used for faults that need a timeout. */
  const openFor = ({ kind }: Fault) =>
    open({ timeouts: kind === 'silence' || kind === 'trickle' ? IMPATIENT : PATIENT });
  afterEach(() => fixture.stop());

  for (const { what, fault, wait = 1200 } of CASES) {
    it(`retries a list after ${what}`, async () => {
      await openFor(fault);
      fixture.double.fail({ verb: 'list', resource: 'services', fault });
      await fixture.startAndWatch();
      await fixture.waitForServices({ a: 1, b: 1 });
      assert.equal(fixture.requests('list').length, 2);
      assert.equal(fixture.waits[0], wait);
      assert.deepEqual(fixture.problems, []);
    });
  }

  for (const { what, fault, wait = 1200, lists = false, isSilent } of CASES) {
    it(`retries a watch after ${what}`, async () => {
      await openFor(fault);
      fixture.double.fail({ verb: 'watch', resource: 'services', fault });
      fixture.start();
      await fixture.waitForRequest('watch', 1);
      fixture.double.put(service('a', 2), service('c', 1));
      fixture.double.delete(service('b', 1));
      await fixture.waitForServices({ a: 2, c: 1 });
      assert.equal(fixture.waits[0], isSilent ? undefined : wait);
      assert.equal(fixture.requests('list').length, lists ? 2 : 1);
    });
  }

  it('renews a watch that is silent but open', async () => {
    await open({ timeouts: IMPATIENT });
    await fixture.startAndWatch();
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    fixture.double.breakWatches('silence', 'services');
    fixture.double.put(service('d', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1, d: 1 });
    assert.equal(fixture.requests('list').length, 1);
  });

  it('keeps an idle watch that delivers bookmarks', async () => {
    await open({ timeouts: { ...PATIENT, silence: 500 }, bookmarkMs: 20 });
    fixture.double.put(
      { ...nodeManifest([]), metadata: { name: 'node-1' } },
      sliceManifest('a', 4, []),
    );
    await fixture.startAndWatch();
    const started = performance.now();
    await until('the silence period is over', () => {
      return performance.now() - started > 800;
    });
    assert.deepEqual(fixture.waits, []);
    for (const resource of ['services', 'endpointslices', 'nodes']) {
      assert.equal(fixture.requests('watch', resource).length, 1);
    }
  });

  it('does not relist from an overloaded server', async () => {
    await open({});
    await fixture.startAndWatch();
    const fault = status(429, 'TooManyRequests', 1);
    fixture.double.fail({ verb: 'watch', resource: 'services', fault, times: 5 });
    fixture.double.breakWatches('cut', 'services');
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    assert.equal(fixture.requests('list').length, 1);
  });

  it('reads a change that a watch missed from the next list', async () => {
    await open({});
    await fixture.startAndWatch();
    fixture.double.dropChanges(2);
    fixture.double.put(service('a', 9));
    fixture.double.delete(service('b', 1));
    fixture.double.put(service('c', 1));
    await fixture.waitForServices({ a: 1, b: 1, c: 1 });
    fixture.double.compact();
    fixture.double.breakWatches('expire', 'services');
    await fixture.waitForServices({ a: 9, c: 1 });
  });

  it('reconnects to a server that restarts on the same port', async () => {
    await open({});
    await fixture.startAndWatch();
    await fixture.double.close();
    await until('reconnecting has failed several times', () => fixture.waits.length > 12);
    fixture.double.put(service('c', 1));
    fixture.double.delete(service('a', 1));
    assert.deepEqual(fixture.ports(), { a: 1, b: 1 });
    await fixture.double.listen();
    await fixture.waitForServices({ b: 1, c: 1 });
  });
});
