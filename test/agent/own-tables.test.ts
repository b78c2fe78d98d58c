import assert from 'node:assert/strict';
import { OWN_TABLES } from '../../agent/preflight/rule-facts.ts';

describe('rules of other programs: tables of Portwide', () => {
  it('are not foreign, also while a client looks', () => {
    for (const table of ['portwide-trace', 'portwide-flows', 'portwide-policy']) {
      assert.ok(OWN_TABLES.includes(table), table);
    }
  });
});
