import assert from 'node:assert/strict';
import { createSnooperObserver } from '../../agent/policy-fqdn.ts';

describe('policy-fqdn: log lines', () => {
  let now = 0;
  let lines: string[] = [];
  const write = (_: object, message: string) => lines.push(message);
  const log = { info: write, warn: write, error: write, debug: () => {} };
  beforeEach(() => {
    [now, lines] = [0, []];
  });

  it('says little about many DNS messages that fail in five minutes', () => {
    const observer = createSnooperObserver(log, () => now);
    const reports: ((error: Error) => void)[] = [
      observer.addFailed,
      observer.removeFailed,
      observer.packetFailed,
    ];
    for (; now < 300_000; now += 300) {
      for (const report of reports) report(new Error(`failed at ${now}`));
    }
    assert.equal(new Set(lines).size, reports.length);
    // The first, new reasons, and summaries.
    assert.ok(lines.length <= 12 * reports.length, `${lines.length} lines`);
  });
});
