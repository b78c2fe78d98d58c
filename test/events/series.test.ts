import assert from 'node:assert/strict';
import { type Occurrence, serviceRef } from '../../events/event.ts';
import { SeriesCache } from '../../events/series.ts';

describe('series: the series cache', () => {
  const occurrence = (note: string): Occurrence => ({
    type: 'Warning',
    regarding: serviceRef('default/web', ''),
    reason: 'RefusedOverlap',
    action: 'ServeService',
    note,
    scope: 'node',
  });

  it('keeps the last 1000 series', () => {
    const cache = new SeriesCache();
    for (let index = 0; index < 1000; index++) cache.observe(occurrence(`${index}`), 1000, index);
    assert.equal(cache.observe(occurrence('0'), 1000, 0).entry.count, 2);
    cache.observe(occurrence('one more'), 1000, 0);
    assert.equal(cache.size, 1000);
    assert.equal(cache.observe(occurrence('0'), 1000, 0).entry.count, 3);
    assert.equal(cache.observe(occurrence('2'), 1000, 0).entry.count, 2);
    assert.equal(cache.observe(occurrence('1'), 1000, 0).entry.count, 1, 'the entry was evicted');
  });
});
