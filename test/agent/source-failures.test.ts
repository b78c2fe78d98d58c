import assert from 'node:assert/strict';
import { aggregateFailures } from '../../agent/source-failures.ts';
import type { Kind } from '../../api/objects.ts';
import { ApiError, ConnectionError, StaleResponse } from '../../sources/kubernetes/errors.ts';
import { policyResources, servingResources } from '../../sources/kubernetes/resources.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

const connectionError = (message: string, code: string) =>
  new ConnectionError(Object.assign(new Error(message), { code }));
const REFUSED = connectionError('refuses connections', 'ECONNREFUSED');
const RESET = connectionError('closed the connection', 'ECONNRESET');
const ALL = ['Service', 'EndpointSlice', 'Node'] as const;
const forbidden = (resource: string) =>
  new ApiError(
    403,
    'Forbidden',
    `${resource} is forbidden: the right to list ${resource} is missing`,
  );

describe('source-failures: aggregateFailures', () => {
  const world = () => {
    const lines: string[] = [];
    const calls: unknown[] = [];
    const timers = new FakeTimers();
    const record = (level: string) => (details: Record<string, unknown>, message: string) => {
      const { kind, kinds, err, repeated, failures } = details;
      const words = [level, kinds ?? kind, message, (err as Error | undefined)?.message];
      const counts = [repeated, failures].filter((count) => count !== undefined);
      lines.push([...words, ...counts].filter((word) => word !== undefined).join(' '));
    };
    const { log, observer } = aggregateFailures(
      { debug: () => {}, info: record('info'), warn: record('warn'), error: record('error') },
      {
        request: (request) => calls.push(request),
        watchOpen: (...watch) => calls.push(watch),
        upToDate: (resource) => calls.push(resource),
        notInstalled: (resource) => calls.push(resource),
        watchStalled: (resource) => calls.push(resource),
      },
      [...servingResources('node'), ...policyResources()],
      timers,
    );
    const fail = (kind: string, err: Error = REFUSED) => log.warn({ kind, err }, 'failed');
    const failAll = (err: Error = REFUSED) => {
      for (const kind of ['Node', 'Service', 'EndpointSlice']) fail(kind, err);
    };
    const recover = (...kinds: Kind[]) => {
      for (const kind of kinds) observer.watchOpen(kind, true);
    };
    return { lines, calls, log, observer, fail, failAll, recover, timers };
  };

  it('logs one line per cause with all affected kinds', () => {
    const { lines, fail, timers } = world();
    fail('Node');
    timers.advance(400);
    fail('Service');
    timers.advance(500);
    fail('EndpointSlice');
    assert.deepEqual(lines, []);
    timers.advance(100);
    assert.deepEqual(lines, [`warn Service,EndpointSlice,Node failed ${REFUSED.message}`]);
  });

  it('logs repeats with a count, a lasting failure as an error, and the recovery once', () => {
    const { lines, failAll, recover, timers } = world();
    for (let second = 0; second < 70; second++) {
      failAll();
      timers.advance(1000);
    }
    recover(...ALL);
    recover(...ALL);
    const kinds = 'Service,EndpointSlice,Node';
    const levels = lines.map((line) => line.split(' ').slice(0, 3).join(' '));
    assert.deepEqual(levels, [
      `warn ${kinds} failed`,
      `warn ${kinds} failed`,
      `warn ${kinds} failed`,
      `error ${kinds} failed`,
      `info ${kinds} list`,
    ]);
    assert.match(lines.at(-1) ?? '', / list and watch succeed again 210$/);
  });

  it('names the only kind that is forbidden', () => {
    const { lines, fail, failAll, recover, timers } = world();
    fail('Node', forbidden('nodes'));
    timers.advance(1000);
    const node = `warn Node failed ${forbidden('nodes').message}`;
    assert.deepEqual(lines, [node]);
    // The API server becomes unreachable and recovers.
    failAll();
    timers.advance(1000);
    recover('Service', 'EndpointSlice');
    fail('Node', forbidden('nodes'));
    assert.deepEqual(lines.slice(1), [
      `warn Service,EndpointSlice,Node failed ${REFUSED.message}`,
      'info Service,EndpointSlice list and watch succeed again 3',
    ]);
  });

  it('logs one line for all kinds when their messages differ only by kind', () => {
    const { lines, fail, timers } = world();
    fail('Service', forbidden('services'));
    fail('Node', forbidden('nodes'));
    timers.advance(1000);
    assert.equal(lines.length, 1);
    assert.match(lines[0] ?? '', /^warn Service,Node failed/);
    fail('Service', new StaleResponse('5', '9', 1));
    fail('Node', new StaleResponse('6', '8', 1));
    timers.advance(1000);
    assert.equal(lines.length, 2);
  });

  it('distinguishes causes by the error code of the connection', () => {
    const { lines, fail, timers } = world();
    fail('Node', RESET);
    fail('Service');
    timers.advance(1000);
    assert.deepEqual(lines, [
      `warn Node failed ${RESET.message}`,
      `warn Service failed ${REFUSED.message}`,
    ]);
  });

  it('limits the lines when the message always differs', () => {
    const { lines, failAll, timers } = world();
    for (let port = 0; port < 300; port++) {
      failAll(new ConnectionError(new Error(`the plugin failed: ${port}`)));
      timers.advance(1000);
    }
    assert.ok(lines.length <= 10, `${lines.length} lines`);
  });

  it('logs one recovery after several causes', () => {
    const { lines, failAll, recover, timers } = world();
    for (const cause of [RESET, REFUSED, new ApiError(503, 'ServiceUnavailable', 'starting')]) {
      failAll(cause);
      timers.advance(1000);
    }
    recover(...ALL);
    const kinds = 'Service,EndpointSlice,Node';
    assert.deepEqual(
      lines.map((line) => line.split(' ').slice(0, 2).join(' ')),
      [`warn ${kinds}`, `warn ${kinds}`, `warn ${kinds}`, `info ${kinds}`],
    );
    assert.match(lines.at(-1) ?? '', / 3$/, 'attempts of the last cause');
  });

  it('logs an error, in few lines, when two causes alternate', () => {
    const { lines, failAll, timers } = world();
    for (let second = 0; second < 120; second += 2) {
      failAll(second % 4 === 0 ? RESET : REFUSED);
      timers.advance(2000);
    }
    assert.ok(lines.some((line) => line.startsWith('error')));
    assert.ok(lines.length <= 12, lines.join('\n'));
  });

  it('logs a failure that ends within a second', () => {
    const { lines, fail, recover, timers } = world();
    fail('Service');
    recover('Service');
    timers.advance(10_000);
    assert.deepEqual(lines, [
      `warn Service failed ${REFUSED.message}`,
      'info Service list and watch succeed again 1',
    ]);
  });

  it('clears its timers', () => {
    const { failAll, recover, timers } = world();
    failAll();
    failAll(RESET);
    recover(...ALL);
    assert.equal(timers.pending, 0);
  });

  it('ends the failure of a kind whose CRD is not installed', () => {
    const { lines, observer, fail } = world();
    fail('CIDRGroup');
    observer.notInstalled('CIDRGroup');
    assert.deepEqual(lines, [
      `warn CIDRGroup failed ${REFUSED.message}`,
      'info CIDRGroup list and watch succeed again 1',
    ]);
  });

  it('forwards other log lines and all observer calls', () => {
    const { lines, calls, log, observer } = world();
    for (let time = 0; time < 2; time++) log.warn({ kind: 'CIDRGroup', objects: 3 }, 'gone');
    log.info({}, 'stopped');
    assert.deepEqual(lines, ['warn CIDRGroup gone', 'warn CIDRGroup gone', 'info stopped']);
    observer.watchOpen('Service', false);
    observer.upToDate('Node');
    observer.watchStalled('Node');
    assert.deepEqual(calls, [['Service', false], 'Node', 'Node']);
  });
});
