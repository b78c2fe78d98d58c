import assert from 'node:assert/strict';
import { logResolvers } from '../../agent/dns/forward.ts';
import { NoResponseError } from '../../dns/exchange.ts';

const RESOLVER = { address: '10.0.0.53', port: 53 };
const MINUTE = 60_000;

describe('forward: log lines about resolvers', () => {
  let now = 0;
  let lines: string[] = [];
  const write = (details: object, message: string) => {
    lines.push(`${now / 1000} ${message} ${JSON.stringify(details)}`);
  };
  const start = () => {
    [now, lines] = [0, []];
    return logResolvers({ info: write, warn: write, error: write, debug: () => {} }, () => now);
  };
  const timeout = new NoResponseError(RESOLVER, 'TIMEOUT');

  it('says once that a resolver does not answer and once that it answers again', () => {
    const log = start();
    log.failed(RESOLVER, timeout);
    now += 500;
    log.failed(RESOLVER, timeout);
    log.answered(RESOLVER);
    log.answered(RESOLVER);
    assert.equal(lines.length, 2, lines.join('\n'));
    assert.match(lines[0] ?? '', /^0 upstream resolver does not answer .*10\.0\.0\.53/);
    assert.match(lines[1] ?? '', /^0\.5 upstream resolver answers again .*10\.0\.0\.53/);
  });

  it('says little about a resolver that answers probes and no queries', () => {
    const log = start();
    while (now < 5 * MINUTE) {
      log.failed(RESOLVER, timeout);
      now += 250;
      log.answered(RESOLVER);
      now += 250;
    }
    assert.ok(lines.length >= 4 && lines.length <= 16, `${lines.length} lines`);
    assert.match(lines.at(-2) ?? '', /"repeated":\d\d/);
  });
});
